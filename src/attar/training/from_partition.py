"""A data set and a partition become clients with data of their own, and images for the server."""

from collections.abc import Sequence

import numpy as np
import torch

from attar.core import Images
from attar.data.dataset import Dataset, Split
from attar.data.partition import Partition
from attar.training.clients import ClientData


def client_names(count: int) -> list[str]:
    """client-0, client-1, …, padded so that they sort."""
    return [f"client-{number:0{len(str(count - 1))}d}" for number in range(count)]


def share_out(dataset: Dataset, partition: Partition, names: Sequence[str] | None = None) -> list[ClientData]:
    """One ClientData for each client of the partition that holds an image; clients with none have nothing to send."""
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
    return Images(to_pixels(split), torch.from_numpy(split.labels.copy()) if labelled else None, source)


def to_pixels(split: Split) -> torch.Tensor:
    """uint8 (N, H, W, C) -> (N, C, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(split.images.transpose(0, 3, 1, 2)))
