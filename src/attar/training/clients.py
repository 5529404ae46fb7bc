"""What a client holds at home, checked before anything is trained."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attar import seeds
from attar.core import ModelSpec, Part
from attar.errors import DataError, SpecError
from attar.nets.registry import Shape
from attar.uploads import CLIENT_NAME, class_name_problems, is_client_name


@dataclass(frozen=True)
class ClientData:
    """What one client holds; it stays at home."""

    name: str
    pixels: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,), index into classes
    classes: tuple[str, ...]

    @property
    def image_shape(self) -> Shape:
        channels, height, width = self.pixels.shape[1:]
        return (channels, height, width)


def check_clients(clients: Sequence[ClientData]) -> None:
    """Raise one DataError that names every client whose data cannot be trained on, and why."""
    problems = [
        f"two clients are called {name!r}"
        for name, n in Counter(c.name for c in clients).items()
        if n > 1
    ]
    for client in clients:
        problems += [
            f"client {client.name!r}: {problem}"
            for problem in [*_unsendable(client), *_problems(client)]
        ]
    if problems:
        raise DataError(
            "Clients that cannot train:",
            problems=problems,
            fix="give each client a name and labelled images of its own",
        )


def _unsendable(client: ClientData) -> list[str]:
    """Why no upload could be written under these names."""
    name = [] if is_client_name(client.name) else [f"its name must be {CLIENT_NAME}"]
    return name + class_name_problems(client.classes)


def _problems(client: ClientData) -> list[str]:
    pixels, labels, classes = client.pixels, client.labels, client.classes
    problems = []
    if pixels.ndim != 4 or pixels.dtype != torch.uint8:
        problems.append(
            f"images must be uint8 (N, C, H, W), got {pixels.dtype} {tuple(pixels.shape)}"
        )
    if labels.ndim != 1 or labels.dtype != torch.int64:
        problems.append(f"labels must be int64 (N,), got {labels.dtype} {tuple(labels.shape)}")
    if problems:
        return problems
    if len(pixels) == 0:
        problems.append("has no images")
    if len(pixels) != len(labels):
        problems.append(f"{len(pixels)} images but {len(labels)} labels")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        low, high = int(labels.min()), int(labels.max())
        problems.append(f"labels from {low} to {high} do not index its {len(classes)} classes")
    return problems


def checked_groups(
    clients: Sequence[ClientData], specs: Sequence[ModelSpec]
) -> dict[tuple[ModelSpec, Shape, tuple[str, ...]], list[ClientData]]:
    """The clients that can train as one stack: of one spec (``specs`` has one for each), image
    shape and class list.
    """
    check_clients(clients)
    if len(specs) != len(clients):
        raise SpecError(
            f"{len(clients)} clients, but {len(specs)} nets.",
            fix="give each client its net, in the clients' order",
        )
    groups: dict[tuple[ModelSpec, Shape, tuple[str, ...]], list[ClientData]] = {}
    for client, spec in zip(clients, specs, strict=True):
        groups.setdefault((spec, client.image_shape, client.classes), []).append(client)
    return groups


def check_initial(initial: Part, takers: Sequence[tuple[str, ModelSpec]]) -> None:
    """Raise one SpecError if some (client, spec) cannot start from ``initial``, or its weights
    do not fit.
    """
    problems = [
        f"client {name!r} trains {spec}, the model is {initial.spec}"
        for name, spec in takers
        if spec != initial.spec
    ]
    wanted = initial.spec.skeleton(
        initial.preprocess.input_shape, len(initial.classes)
    ).state_dict()
    shapes = {key: tuple(value.shape) for key, value in wanted.items()}
    given = {key: tuple(value.shape) for key, value in initial.state.items()}
    problems += [
        f"weight {key}: expected {shapes.get(key, 'none')}, got {given.get(key, 'none')}"
        for key in sorted(shapes.keys() | given.keys())
        if shapes.get(key) != given.get(key)
    ]
    if problems:
        raise SpecError(
            "Local training cannot start from the given model:",
            problems=problems,
            fix="give a model of the clients' architecture; its classes may be others",
        )


def split(client: ClientData, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to train on and to validate on. Each class gives its rounded share, but never its
    last image.
    """
    if not fraction:
        return torch.arange(len(client.labels)), torch.empty(0, dtype=torch.int64)
    shuffled = torch.randperm(
        len(client.labels), generator=seeds.generator(seed, "validation", client.name)
    )
    kept, train = [], []
    for label in torch.unique(client.labels).tolist():
        members = shuffled[client.labels[shuffled] == label]
        number = min(int(fraction * len(members) + 0.5), len(members) - 1)
        kept.append(members[:number])
        train.append(members[number:])
    return torch.cat(train).sort().values, torch.cat(kept).sort().values
