"""The images of all clients of a stack, on the device as bytes, and the order in which one epoch
walks over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attar import seeds
from attar.blocks.images import Augment
from attar.blocks.images import augment as augmentation
from attar.core import Preprocess
from attar.training.clients import ClientData
from attar.training.stacking import Call


@dataclass(frozen=True)
class Walk:
    """One epoch: which image comes when, and how it is cut. Client k's share begins at its offset."""

    order: Tensor  # (N,) row of the image
    choices: Tensor | None  # (N, 3) of augment.draw


@dataclass(frozen=True)
class Resident:
    """All clients' images one after the other; bytes on the device are four times smaller than
    floats.
    """

    pixels: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,)
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]  # row of each client's first image
    offsets: Tensor  # int64 (K,): where each client's images begin in a walk

    @classmethod
    def of(cls, clients: Sequence[ClientData], chosen: Sequence[Tensor], device: str) -> "Resident":
        sizes = [len(rows) for rows in chosen]
        starts = _starts(sizes)
        return cls(
            torch.cat(
                [client.pixels[rows] for client, rows in zip(clients, chosen, strict=True)]
            ).to(device),
            torch.cat(
                [client.labels[rows] for client, rows in zip(clients, chosen, strict=True)]
            ).to(device),
            tuple(client.name for client in clients),
            tuple(sizes),
            tuple(starts),
            torch.tensor(starts, device=device),
        )

    def seated(self, names: Sequence[str]) -> "Resident":
        """The same images on the device, of which only those of these clients are walked over,
        in this order.
        """
        places = [self.names.index(name) for name in names]
        sizes = [self.sizes[place] for place in places]
        starts = tuple(self.starts[place] for place in places)
        offsets = torch.tensor(_starts(sizes), device=self.pixels.device)
        return Resident(self.pixels, self.labels, tuple(names), tuple(sizes), starts, offsets)

    def walk(self, seed: int, epoch: int, augment: Augment) -> Walk:
        """Drawn for each client by name: its epoch is the same whoever trains beside it, on
        whatever device.
        """
        order, choices = [], []
        for name, size, start in zip(self.names, self.sizes, self.starts, strict=True):
            order.append(
                torch.randperm(size, generator=seeds.generator(seed, "shuffle", name, epoch))
                + start
            )
            if augment != "none":
                choices.append(
                    augmentation.draw(augment, size, seeds.generator(seed, "augment", name, epoch))
                )
        device = self.pixels.device
        return Walk(torch.cat(order).to(device), torch.cat(choices).to(device) if choices else None)

    def places(self, call: Call) -> Tensor:
        """(k * B,): where in the walk the images of one call stand."""
        within = torch.arange(call.number, device=self.pixels.device).repeat(
            2 if call.number == 1 else 1
        )
        return (self.offsets[call.first : call.last, None] + call.start + within).flatten()

    def batch(
        self, call: Call, walk: Walk, preprocess: Preprocess, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Inputs (k, B, ...) and labels (k, B) of one call.

        A batch of a single image is doubled: BatchNorm cannot normalise one, and without
        BatchNorm the mean gradient of an image and its double is that of the image.
        """
        places = self.places(call)
        rows = walk.order[places]
        pixels = self.pixels[rows]
        if walk.choices is not None:
            pixels = augmentation.apply(pixels, walk.choices[places])
        inputs = preprocess(canonical(pixels, dtype))
        clients = call.last - call.first
        return inputs.view(clients, -1, *inputs.shape[1:]), self.labels[rows].view(clients, -1)


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:place]) for place in range(len(sizes))]


def canonical(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes -> floats in [0, 1]."""
    return pixels.to(dtype).div_(255)
