"""``attar partition``: deal out the training images of a data source to clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from attar.cli.arguments import Json, Seed, load_source
from attar.cli.output import console, tables
from attar.data.dataset import Dataset
from attar.data.partition import Partition, label_counts
from attar.data.partition import partition as make_partition
from attar.data.partition_file import write_partition
from attar.data.picture import draw_partition
from attar.errors import DataError, SettingsError
from attar.internal.files import write_atomic
from attar.training import client_names


def partition(
    data: Positional[str],
    /,
    *,
    rule: Annotated[
        str,
        arg(
            help="iid, dirichlet:A, dirichlet-equal:A, dirichlet-windows:A, dirichlet-client:A, "
            "classes:C, disjoint:C or domain; each with +lognormal:S for uneven sizes."
        ),
    ] = "dirichlet:0.3",
    clients: int = 5,
    out: Path = Path("partition.json"),
    seed: Seed = 0,
    hold_out: float = 0.0,
    min_size: int = 0,
    leave_out: str | None = None,
    picture: Path | None = None,
    json: Json = False,
) -> None:
    """Decide who holds which training image of a data source, and write that as a file.

    Args:
        data: A data source such as fashion-mini, folder:DIR or npz:FILE (see `attar ls data`).
        clients: How many clients.
        out: The partition file.
        hold_out: A fraction of the images set aside, without labels, for the server (FedDF).
        min_size: The fewest images a client may have.
        leave_out: The name of a domain that no client gets.
        picture: Where the SVG of the partition goes; beside --out unless given.
    """
    picture = picture or out.with_suffix(".svg")
    if picture == out:
        raise SettingsError(
            f"{out} would be both the partition and its picture.",
            fix="name another --out, such as parts.json",
        )
    dataset = load_source(data, quiet=json)
    labels = dataset.train.labels
    made = make_partition(
        labels,
        rule,
        clients,
        seed,
        hold_out=hold_out,
        min_size=min_size,
        domains=dataset.train.domains,
        leave_out=None if leave_out is None else _domain_index(dataset, leave_out, data),
    )
    write_partition(out, made, data, labels)
    counts = label_counts(labels, made.clients, len(dataset.classes))
    names = client_names(clients)
    title = f"{data}, {rule}, seed {seed}"
    write_atomic(picture, draw_partition(counts, dataset.classes, names, title))

    def show() -> None:
        tables.show_partition(title, names, counts, dataset.classes)
        if len(made.held_out):
            console.say(f"{len(made.held_out):,} images are held out for the server, unlabelled.")
        console.say(f"Partition: {out}   picture: {picture}")

    about = {"data": data, "rule": rule, "seed": seed, "file": str(out), "picture": str(picture)}
    console.emit(about | _as_record(made, names, counts, dataset.classes), show, json=json)


def _domain_index(dataset: Dataset, domain: str, source: str) -> int:
    if domain not in dataset.domains:
        known = ", ".join(dataset.domains) or "none"
        raise DataError(f"{source} has no domain {domain!r}.", fix=f"its domains: {known}")
    return dataset.domains.index(domain)


def _as_record(
    made: Partition, names: Sequence[str], counts: NDArray[np.int64], classes: Sequence[str]
) -> dict[str, Any]:
    return {
        "held_out": len(made.held_out),
        "left_out": len(made.left_out),
        "classes": list(classes),
        "clients": [
            {"client": name, "label_counts": row.tolist()}
            for name, row in zip(names, counts, strict=True)
        ],
    }
