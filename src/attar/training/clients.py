"""A client's data, and the checks and the split that come before training."""

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
    """The labelled images of one client. They are never sent.

    Attributes:
        name: Of the client; no two clients of a federation have the same.
        pixels: uint8 (N, C, H, W).
        labels: int64 (N,), indices into ``classes``.
        classes: Names of the classes.
    """

    name: str
    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    @property
    def image_shape(self) -> Shape:
        """Channels, height and width."""
        channels, height, width = self.pixels.shape[1:]
        return (channels, height, width)


def check_clients(clients: Sequence[ClientData]) -> None:
    """Check that every client's data can be trained on.

    Raises:
        DataError: Some cannot; the error names each of these clients, and why.
    """
    numbers = Counter(client.name for client in clients)
    problems = [
        f"two clients are called {name!r}" for name, number in numbers.items() if number > 1
    ]
    for client in clients:
        reasons = [*_name_problems(client), *_data_problems(client)]
        problems += [f"client {client.name!r}: {reason}" for reason in reasons]
    if problems:
        raise DataError(
            "Clients that cannot train:",
            problems=problems,
            fix="give each client a name and labelled images of its own",
        )


def _name_problems(client: ClientData) -> list[str]:
    """Return why no upload can be written under these names."""
    name = [] if is_client_name(client.name) else [f"its name must be {CLIENT_NAME}"]
    return name + class_name_problems(client.classes)


def _data_problems(client: ClientData) -> list[str]:
    """Return why no net can be trained on these images and labels."""
    pixels = client.pixels
    labels = client.labels
    classes = client.classes
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


def group_by_stack(
    clients: Sequence[ClientData], specs: Sequence[ModelSpec]
) -> dict[tuple[ModelSpec, Shape, tuple[str, ...]], list[ClientData]]:
    """Group the clients that can train as one stack, after checking their data.

    Args:
        clients: In any order.
        specs: The architecture of each client.

    Returns:
        The clients of each architecture, image shape and class list.

    Raises:
        DataError: Some client cannot be trained on.
        SpecError: There are not as many architectures as clients.
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


def check_initial(initial: Part, clients: Sequence[tuple[str, ModelSpec]]) -> None:
    """Check that clients can start from a model.

    Args:
        initial: The model.
        clients: Name and architecture of each client.

    Raises:
        SpecError: Some client trains another architecture, or the weights of ``initial`` do not
            fit its own; the error names all of them.
    """
    problems = [
        f"client {name!r} trains {spec}, the model is {initial.spec}"
        for name, spec in clients
        if spec != initial.spec
    ]
    skeleton = initial.spec.skeleton(initial.preprocess.input_shape, len(initial.classes))
    expected = {key: tuple(value.shape) for key, value in skeleton.state_dict().items()}
    shapes = {key: tuple(value.shape) for key, value in initial.state.items()}
    problems += [
        f"weight {key}: expected {expected.get(key, 'none')}, got {shapes.get(key, 'none')}"
        for key in sorted(expected.keys() | shapes.keys())
        if expected.get(key) != shapes.get(key)
    ]
    if problems:
        raise SpecError(
            "Local training cannot start from the given model:",
            problems=problems,
            fix="give a model of the clients' architecture; its classes may be others",
        )


def split(client: ClientData, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Draw which images a client trains on, and which it holds out for validation.

    Args:
        client: Whose images.
        fraction: Share of the images of each class to hold out, rounded; never the last image of a
            class.
        seed: Of the run.

    Returns:
        Indices to train on and indices to validate on, both sorted.
    """
    number = len(client.labels)
    if not fraction:
        return torch.arange(number), torch.empty(0, dtype=torch.int64)
    draws = seeds.rng(seed, "validation", client.name)
    shuffled = torch.randperm(number, generator=draws)
    train = []
    validation = []
    for label in torch.unique(client.labels).tolist():
        members = shuffled[client.labels[shuffled] == label]
        held_out = _number_held_out(len(members), fraction)
        validation.append(members[:held_out])
        train.append(members[held_out:])
    return torch.cat(train).sort().values, torch.cat(validation).sort().values


def count_training_images(client: ClientData, fraction: float) -> int:
    """Return how many images a client trains on where it holds out this share of each class."""
    sizes = client.labels.bincount().tolist()
    return sum(size - _number_held_out(size, fraction) for size in sizes if size)


def _number_held_out(members: int, fraction: float) -> int:
    """Return how many of a class's images are held out: never all of them."""
    return min(int(fraction * members + 0.5), members - 1)


def count_labels(labels: Tensor, classes: Sequence[str]) -> tuple[int, ...]:
    """Return how many of the labels are of each class."""
    return tuple(labels.bincount(minlength=len(classes)).tolist())
