"""The images of a stack of clients, on the device as bytes, and their order in an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attar import seeds
from attar.blocks.images import Augment, apply_augmentation, draw_augmentation
from attar.core import Preprocess
from attar.training.clients import ClientData
from attar.training.stacking import Call


@dataclass(frozen=True)
class EpochOrder:
    """Which image comes when in one epoch, and how it is augmented.

    Attributes:
        rows: (N,), rows of the images: client after client, each in its own random order.
        augmentation: (N, 3), what ``draw_augmentation`` drew; None without augmentation.
    """

    rows: Tensor
    augmentation: Tensor | None


@dataclass(frozen=True)
class ResidentImages:
    """All clients' images one after the other on the device.

    They lie there as bytes, four times smaller than floats.

    Attributes:
        pixels: uint8 (N, C, H, W).
        labels: int64 (N,).
        names: The clients.
        sizes: Each client's number of images.
        starts: The row of each client's first image.
        offsets: int64 (K,), where each client's images begin in an ``EpochOrder``.
    """

    pixels: Tensor
    labels: Tensor
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    offsets: Tensor

    @classmethod
    def load(
        cls, clients: Sequence[ClientData], chosen: Sequence[Tensor], device: str
    ) -> "ResidentImages":
        """Copy the clients' images to the device.

        Args:
            clients: In the order in which they lie in the stack.
            chosen: For each client, which of its images to take.
            device: Where they go.
        """
        pairs = list(zip(clients, chosen, strict=True))
        sizes = [len(rows) for rows in chosen]
        starts = _starts(sizes)
        return cls(
            pixels=torch.cat([client.pixels[rows] for client, rows in pairs]).to(device),
            labels=torch.cat([client.labels[rows] for client, rows in pairs]).to(device),
            names=tuple(client.name for client in clients),
            sizes=tuple(sizes),
            starts=tuple(starts),
            offsets=torch.tensor(starts, device=device),
        )

    def select(self, names: Sequence[str]) -> "ResidentImages":
        """Return the images of these clients, in this order, without copying them."""
        places = [self.names.index(name) for name in names]
        sizes = [self.sizes[place] for place in places]
        return ResidentImages(
            pixels=self.pixels,
            labels=self.labels,
            names=tuple(names),
            sizes=tuple(sizes),
            starts=tuple(self.starts[place] for place in places),
            offsets=torch.tensor(_starts(sizes), device=self.pixels.device),
        )

    def shuffle(self, seed: int, epoch: int, augment: Augment) -> EpochOrder:
        """Draw the order of one epoch and its augmentation.

        Both are drawn for each client by name: its epoch is the same whoever trains beside it,
        on whatever device.
        """
        rows = []
        choices = []
        for name, size, start in zip(self.names, self.sizes, self.starts, strict=True):
            order = torch.randperm(size, generator=seeds.rng(seed, "shuffle", name, epoch))
            rows.append(order + start)
            if augment != "none":
                draws = seeds.rng(seed, "augment", name, epoch)
                choices.append(draw_augmentation(augment, size, draws))
        device = self.pixels.device
        return EpochOrder(
            rows=torch.cat(rows).to(device),
            augmentation=torch.cat(choices).to(device) if choices else None,
        )

    def positions(self, call: Call) -> Tensor:
        """Return where in the epoch's order the images of one call stand, (k * B,)."""
        repeats = 2 if call.number == 1 else 1  # see batch
        within = torch.arange(call.number, device=self.pixels.device).repeat(repeats)
        return (self.offsets[call.first : call.last, None] + call.start + within).flatten()

    def batch(
        self, call: Call, order: EpochOrder, preprocess: Preprocess, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs (k, B, ...) and labels (k, B) of one call.

        A batch of a single image is doubled: BatchNorm cannot normalise one image, and without
        BatchNorm the mean gradient of an image and its double is that of the image.
        """
        positions = self.positions(call)
        rows = order.rows[positions]
        pixels = self.pixels[rows]
        if order.augmentation is not None:
            pixels = apply_augmentation(pixels, order.augmentation[positions])
        inputs = preprocess(to_floats(pixels, dtype))
        clients = call.last - call.first
        return inputs.view(clients, -1, *inputs.shape[1:]), self.labels[rows].view(clients, -1)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where each of several stretches begins that follow each other."""
    return list(accumulate(sizes, initial=0))[:-1]


def to_floats(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes as floats in [0, 1]."""
    return pixels.to(dtype).div_(255)
