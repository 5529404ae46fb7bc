"""From a data set and a partition to the clients' data, and to images for the server."""

from collections.abc import Sequence

import torch

from attar.core import Images
from attar.data.dataset import Dataset, Split
from attar.data.partition import Partition
from attar.data.tensors import to_pixels
from attar.errors import DataError
from attar.training.clients import ClientData


def client_names(count: int) -> list[str]:
    """Return client-0, client-1, …, with as many digits as make them sort by number."""
    return [f"client-{number:0{len(str(count - 1))}d}" for number in range(count)]


def share_out(
    dataset: Dataset, partition: Partition, names: Sequence[str] | None = None
) -> list[ClientData]:
    """Give each client of a partition its images.

    Args:
        dataset: Its training images are shared out.
        partition: Which client has which of them.
        names: Of the clients; client-0, client-1, … unless given.

    Returns:
        The clients in the order of the partition, without those that have no image.
    """
    names = names or client_names(len(partition.clients))
    return [
        make_client(name, dataset.train.take(indices), dataset.classes)
        for name, indices in zip(names, partition.clients, strict=True)
        if len(indices)
    ]


def make_client(name: str, split: Split, classes: Sequence[str]) -> ClientData:
    """Return a client that has exactly these images."""
    return ClientData(
        name=name,
        pixels=to_pixels(split),
        labels=torch.from_numpy(split.labels.copy()),
        classes=tuple(classes),
    )


def server_images(split: Split, source: str, *, labelled: bool = False) -> Images:
    """Return images for the server.

    Args:
        split: The images.
        source: Where they come from, for the record.
        labelled: Whether the server gets their labels, too.
    """
    labels = torch.from_numpy(split.labels.copy()) if labelled else None
    return Images(to_pixels(split), labels, source)


def parse_clients(text: str, names: Sequence[str], where: str) -> list[int]:
    """Return the places of the clients that a text names, sorted.

    Args:
        text: ``all``, ``3``, ``client-3``, ``0-4``, or several of these separated by commas.
        names: All clients.
        where: What the clients are in, for the error.

    Raises:
        DataError: There is no such client.
    """
    if text == "all":
        return list(range(len(names)))
    places: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        is_range = bool(dash) and first.isdecimal() and last.isdecimal()
        if word in names:
            places.append(names.index(word))
        elif word.isdecimal() and int(word) < len(names):
            places.append(int(word))
        elif is_range and int(first) <= int(last) < len(names):
            places += range(int(first), int(last) + 1)
        else:
            raise DataError(
                f"{where} has no client {word!r}.",
                fix=f"use all, or 0 to {len(names) - 1}, such as 3 or 0-2,4",
            )
    return sorted(set(places))
