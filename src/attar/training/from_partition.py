"""A data set and a partition become clients with data of their own, and images for the server."""

from collections.abc import Sequence

import torch

from attar.core import Images
from attar.data.dataset import Dataset, Split
from attar.data.partition import Partition
from attar.data.tensors import to_pixels
from attar.errors import DataError
from attar.training.clients import ClientData


def client_names(count: int) -> list[str]:
    """client-0, client-1, …, padded so that they sort."""
    return [f"client-{number:0{len(str(count - 1))}d}" for number in range(count)]


def share_out(
    dataset: Dataset, partition: Partition, names: Sequence[str] | None = None
) -> list[ClientData]:
    """One ClientData for each client of the partition that holds an image; clients with none
    have nothing to send.
    """
    names = names or client_names(len(partition.clients))
    return [
        as_client(name, dataset.train.take(indices), dataset.classes)
        for name, indices in zip(names, partition.clients, strict=True)
        if len(indices)
    ]


def as_client(name: str, split: Split, classes: Sequence[str]) -> ClientData:
    """A client that holds exactly these images."""
    return ClientData(name, to_pixels(split), torch.from_numpy(split.labels.copy()), tuple(classes))


def server_images(split: Split, source: str, *, labelled: bool = False) -> Images:
    """Images for the server; their labels stay behind unless asked for."""
    return Images(
        to_pixels(split), torch.from_numpy(split.labels.copy()) if labelled else None, source
    )


def parse_clients(text: str, names: Sequence[str], where: str) -> list[int]:
    """``all``, ``3``, ``client-3``, ``0-4``, or several of these separated by commas."""
    if text == "all":
        return list(range(len(names)))
    places: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if word in names:
            places.append(names.index(word))
        elif word.isdecimal() and int(word) < len(names):
            places.append(int(word))
        elif (
            dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last) < len(names)
        ):
            places += range(int(first), int(last) + 1)
        else:
            raise DataError(
                f"{where} has no client {word!r}.",
                fix=f"use all, or 0 to {len(names) - 1}, such as 3 or 0-2,4",
            )
    return sorted(set(places))
