"""Trains the clients of a recipe once; their folder is named by all that decides how they train."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from attar.bench.cells import ClientSet
from attar.bench.defaults import training_defaults
from attar.bench.federation_data import FederationData, load_federation
from attar.bench.locks import hold
from attar.bench.nets import OF_START
from attar.data.partition_file import hash_labels
from attar.errors import OutOfTime, RunError
from attar.internal.files import Stamp, stamp, write_atomic
from attar.models import load_start, parse_nets
from attar.running import OnPoint, ProgressReport, Watch
from attar.settings import configure
from attar.training import (
    LocalStack,
    StatisticsSettings,
    TrainingFlags,
    make_client,
    make_stacks,
    parse_clients,
    train_stack,
)
from attar.uploads import Received, encode, receive


def bundle_folder(out: Path, clients: ClientSet) -> Path:
    """Where the uploads of these clients lie, or will lie.

    Clients that were trained before training had a version may lie under another name.
    """
    folders = [out / "clients" / key for key in clients.keys]
    return next((folder for folder in folders if folder.exists()), folders[0])


def read_training(folder: Path) -> dict[str, Any] | None:
    """What a finished training wrote beside its uploads; None where it is not finished."""
    try:
        training: dict[str, Any] = json.loads((folder / "clients.json").read_text())
    except FileNotFoundError:
        return None
    return training


def train_clients(
    clients: ClientSet,
    out: Path,
    device: str,
    *,
    deadline: float | None = None,
    watch: Watch | None = None,
    on_point: OnPoint | None = None,
) -> dict[str, Any]:
    """Train a set of clients, unless its uploads are there, or resume its training.

    The uploads of a stack are written when it is done; ``clients.json`` is written last and says
    that all are.

    Args:
        clients: The clients.
        out: The bench's folder.
        device: Where they train.
        deadline: By ``time.time()``; None: no limit.
        watch: Is called with the progress.
        on_point: Is called with each point of the training's history.

    Returns:
        The content of ``clients.json``.

    Raises:
        OutOfTime: The deadline came; what was done is saved, here or by another process that
            trains these clients.
    """
    folder = bundle_folder(out, clients)
    if (before := read_training(folder)) is not None:
        return before
    data = load_federation(clients.federation, clients.seed)
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / ".training.lock", deadline) as waited:
        if waited and (done := read_training(folder)) is not None:
            return done
        start = time.monotonic()
        stacks = _make_stacks(clients, data, device)
        for number, stack in enumerate(stacks):
            checkpoint = folder / f".stack-{number}.training"
            progress = _watch_part(watch, number, len(stacks))
            points = _name_part(on_point, number, len(stacks))
            _train_stack(clients, stack, checkpoint, deadline, progress, points)
        training = {
            **clients.describe(),
            "labels": hash_labels(data.dataset.train.labels),
            "clients": [data.names[place] for place in _places(clients, data)],
            "counts": data.counts(),
            "classes": list(data.dataset.classes),
            "seconds": round(time.monotonic() - start, 3),
        }
        write_atomic(folder / "clients.json", json.dumps(training, indent=1) + "\n")
    return training


def _places(clients: ClientSet, data: FederationData) -> list[int]:
    """The numbers of the clients that hold images."""
    places = parse_clients(clients.spec.clients, data.names, "the federation")
    return [place for place in places if len(data.partition.clients[place])]


def _make_stacks(clients: ClientSet, data: FederationData, device: str) -> Sequence[LocalStack]:
    federation = clients.federation
    spec = clients.spec
    initial = None if federation.start is None else load_start(Path(federation.start))
    nets = [initial.spec] if initial is not None and spec.net == OF_START else parse_nets(spec.net)
    places = _places(clients, data)
    return make_stacks(
        [
            make_client(
                data.names[place],
                data.dataset.train.take(data.partition.clients[place]),
                data.dataset.classes,
            )
            for place in places
        ],
        [nets[place % len(nets)] for place in places],
        configure(TrainingFlags, dict(spec.training), of="local training"),
        preset=spec.preset,  # type: ignore[arg-type]
        seed=clients.seed,
        device=device,
        initial=initial,
        defaults=training_defaults(clients.defaults),
    )


def _watch_part(watch: Watch | None, number: int, parts: int) -> Watch | None:
    """Make a watch of one of several equal parts that reports how far the whole is."""
    if watch is None:
        return None

    def report(progress: ProgressReport) -> None:
        watch(replace(progress, done=(number + progress.done) / parts))

    return report


def _name_part(on_point: OnPoint | None, number: int, parts: int) -> OnPoint | None:
    """Tell the phases of several stacks apart, which have the same names."""
    if on_point is None or parts == 1:
        return on_point
    return lambda point: on_point({**point, "phase": f"{point['phase']} {number + 1}"})


def _train_stack(
    clients: ClientSet,
    stack: LocalStack,
    checkpoint: Path,
    deadline: float | None,
    watch: Watch | None,
    on_point: OnPoint | None,
) -> None:
    """Train a stack, or resume it, and write its uploads beside the checkpoint."""
    files = {client.name: checkpoint.parent / f"{client.name}.attar" for client in stack.clients}
    if all(file.exists() for file in files.values()):
        return
    minutes = None if deadline is None else (deadline - time.time()) / 60
    if minutes is not None and minutes <= 0:
        raise OutOfTime("Out of time.", fix="run the same command again: it goes on from here")
    statistics = None
    if clients.federation.statistics:
        statistics = StatisticsSettings(**clients.defaults.section("statistics"))
    uploads, _ = train_stack(
        stack,
        checkpoint=checkpoint,
        watch=watch,
        precision=clients.precision,
        minutes=minutes,
        statistics=statistics,
        on_point=on_point,
    )
    for upload in uploads:
        write_atomic(files[upload.client], encode(upload))


def read_uploads(sets: Sequence[ClientSet], out: Path) -> list[Received]:
    """Read the uploads of several groups.

    Args:
        sets: The groups.
        out: The bench's folder.

    Returns:
        The uploads in the order of the clients' names.

    Raises:
        RunError: The clients of a group are not trained.
        BundleError: An upload is damaged.
    """
    received: list[Received] = []
    for clients in sets:
        folder = bundle_folder(out, clients)
        training = read_training(folder)
        if training is None:
            raise RunError(f"The clients in {folder} are not trained.")
        paths = [folder / f"{name}.attar" for name in training["clients"]]
        received += _receive(tuple(paths), tuple(stamp(path) for path in paths))
    return sorted(received, key=lambda upload: upload.path.name)


# The cells of a federation follow each other, and most have one group of clients or two.
@lru_cache(maxsize=2)
def _receive(paths: tuple[Path, ...], _stamps: tuple[Stamp | None, ...]) -> tuple[Received, ...]:
    """Read and check uploads, once for as long as the files have these stamps."""
    return tuple(receive(paths))
