"""Clients of a recipe: dealt, trained once, kept as bundles under a name that follows from what
they are.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from attar.bench.defaults import training_defaults
from attar.bench.grid import OF_START, ClientSet
from attar.bench.recipe import Federation
from attar.core import Images
from attar.data.dataset import Dataset, Split
from attar.data.partition import Partition, label_counts, partition
from attar.data.partition_file import hash_labels
from attar.data.sources import load_data
from attar.errors import OutOfTime, RunError, SettingsError
from attar.internal.files import Stamp, stamp, write_atomic
from attar.models import load_start, parse_nets
from attar.running import Watch
from attar.settings import configure
from attar.training import (
    StatisticsSettings,
    TrainingFlags,
    client_names,
    make_client,
    make_stacks,
    parse_clients,
    server_images,
    train_stack,
)
from attar.uploads import Received, encode, receive

LEFT_OUT = "left-out"


@dataclass(frozen=True)
class Dealt:
    """A federation's data: who holds what, and what is tested on."""

    dataset: Dataset
    partition: Partition
    test: Split
    names: list[str]

    def public(self, federation: Federation, *, labelled: bool) -> Images | None:
        """What the server holds: images of other data, or those that were set aside. Only of
        these are labels of any use.
        """
        if federation.public is not None and not labelled:
            return server_images(
                load(federation.public).train, f"{federation.public}, the training part"
            )
        if not len(self.partition.held_out):
            return None
        held = self.dataset.train.take(self.partition.held_out)
        return server_images(
            held, f"{federation.data}, held out before the split", labelled=labelled
        )

    def counts(self) -> list[list[int]]:
        table = label_counts(
            self.dataset.train.labels, self.partition.clients, len(self.dataset.classes)
        )
        return [[int(count) for count in row] for row in table]


@lru_cache(maxsize=2)  # the cells of a federation follow each other
def load(source: str) -> Dataset:
    return load_data(source)


def deal(federation: Federation, seed: int) -> Dealt:
    dataset = load(federation.data)
    left = None
    if federation.leave_out is not None:
        if federation.leave_out not in dataset.domains:
            raise SettingsError(
                f"{federation.data} has no domain {federation.leave_out!r}: {', '.join(dataset.domains) or 'none'}"
            )
        left = dataset.domains.index(federation.leave_out)
    images = (1 - federation.hold_out) * len(dataset.train)
    smallest = max(federation.min_size, int(federation.least_share * images / federation.clients))
    dealt = partition(
        dataset.train.labels,
        federation.rule,
        federation.clients,
        seed,
        hold_out=federation.hold_out,
        min_size=smallest,
        domains=dataset.train.domains,
        leave_out=left,
    )
    test = dataset.test
    if federation.tested_on == LEFT_OUT:
        unseen = dataset.train.take(dealt.left_out)
        assert dataset.test.domains is not None
        test = unseen.join(dataset.test.take((dataset.test.domains == left).nonzero()[0]))
    return Dealt(dataset, dealt, test, client_names(federation.clients))


def bundle_folder(out: Path, clients: ClientSet) -> Path:
    """Where the uploads of these clients lie, or will lie.

    Clients that were trained before training had a version may lie under another name.
    """
    folders = [out / "clients" / key for key in clients.keys]
    return next((folder for folder in folders if folder.exists()), folders[0])


def trained(folder: Path) -> dict[str, Any] | None:
    """What a finished training wrote beside its bundles."""
    try:
        found: dict[str, Any] = json.loads((folder / "clients.json").read_text())
    except FileNotFoundError:
        return None
    return found


def train_clients(
    clients: ClientSet,
    out: Path,
    device: str,
    *,
    deadline: float | None = None,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Train a set of clients unless its bundles are there; stopped on the way, it goes on from
    there the next time.

    The uploads of a stack are written when it is done; ``clients.json`` is written last and says
    that all are.
    """
    folder = bundle_folder(out, clients)
    if (before := trained(folder)) is not None:
        return before
    federation, spec = clients.federation, clients.spec
    data = deal(federation, clients.seed)
    places = [
        place
        for place in parse_clients(spec.clients, data.names, "the federation")
        if len(data.partition.clients[place])
    ]
    initial = None if federation.start is None else load_start(Path(federation.start))
    nets = [initial.spec] if initial is not None and spec.net == OF_START else parse_nets(spec.net)
    chosen = [
        make_client(
            data.names[place],
            data.dataset.train.take(data.partition.clients[place]),
            data.dataset.classes,
        )
        for place in places
    ]
    flags = configure(TrainingFlags, dict(spec.training), of="local training")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        begun = time.monotonic()
        stacks = make_stacks(
            chosen,
            [nets[place % len(nets)] for place in places],
            flags,
            preset=spec.preset,  # type: ignore[arg-type]
            seed=clients.seed,
            device=device,
            initial=initial,
            defaults=training_defaults(clients.defaults),
        )
        for number, stack in enumerate(stacks):
            paths = {client.name: folder / f"{client.name}.attar" for client in stack.clients}
            if all(path.exists() for path in paths.values()):
                continue
            left = None if deadline is None else (deadline - time.time()) / 60
            if left is not None and left <= 0:
                raise OutOfTime(
                    "Out of time.", fix="run the same command again: it goes on from here"
                )
            uploads, _ = train_stack(
                stack,
                checkpoint=folder / f".stack-{number}.training",
                watch=watch,
                precision=clients.precision,
                minutes=left,
                statistics=StatisticsSettings(**clients.defaults.section("statistics"))
                if federation.statistics
                else None,
            )
            for upload in uploads:
                write_atomic(paths[upload.client], encode(upload))
        told = {
            **clients.described(),
            "labels": hash_labels(data.dataset.train.labels),
            "clients": [client.name for client in chosen],
            "counts": data.counts(),
            "classes": list(data.dataset.classes),
            "seconds": round(time.monotonic() - begun, 3),
        }
        write_atomic(folder / "clients.json", json.dumps(told, indent=1) + "\n")
    return told


def uploads_of(sets: Sequence[ClientSet], out: Path) -> list[Received]:
    """The uploads of several groups, in the order of the clients' names."""
    received: list[Received] = []
    for one in sets:
        folder = bundle_folder(out, one)
        told = trained(folder)
        if told is None:
            raise RunError(f"The clients in {folder} are not trained.")
        paths = [folder / f"{name}.attar" for name in told["clients"]]
        received += _read(tuple(paths), tuple(stamp(path) for path in paths))
    return sorted(received, key=lambda one: one.path.name)


@lru_cache(
    maxsize=2
)  # the cells of a federation follow each other, and most have one group of clients or two
def _read(paths: tuple[Path, ...], _stamps: tuple[Stamp | None, ...]) -> tuple[Received, ...]:
    """Read and checked once for as long as the files bear these stamps."""
    return tuple(receive(paths))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two benches in one folder shall not train the same clients at once; a lock of a dead
    process counts for nothing.
    """
    lock = folder / ".training.lock"
    try:
        owner = int(lock.read_text())
        os.kill(owner, 0)
    except PermissionError:
        pass  # it lives, under another user
    except (FileNotFoundError, ValueError, ProcessLookupError):
        owner = os.getpid()
    if owner != os.getpid():
        raise RunError(
            f"Process {owner} trains these clients already.", fix=f"wait for it, or delete {lock}"
        )
    write_atomic(lock, f"{os.getpid()}\n")
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
