"""The pool of synthetic images: one tensor on the device, filled batch by batch.

The pool only ever grows at its end, so a checkpoint appends what is new as a shard and never rewrites the rest. With a limit
it is a ring: the oldest images give way to the newest.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.nets.registry import Shape


@dataclass(frozen=True)
class Shard:
    """A piece of the pool on disk, up to the ``end``-th image ever added."""

    name: str
    end: int
    sha256: str


class Pool:
    """Images in [0, 1] with their labels, kept as float32 or, with ``whole_bytes``, rounded to uint8."""

    def __init__(self, shape: Shape, capacity: int, device: str, *, whole_bytes: bool = False) -> None:
        kind = torch.uint8 if whole_bytes else torch.float32
        self._pixels = torch.zeros(capacity, *shape, dtype=kind, device=device)
        self._labels = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.added = 0  # images ever added; the newest ``capacity`` of them are kept
        self.shards: list[Shard] = []  # what checkpoints have written of it

    def __len__(self) -> int:
        return min(self.added, len(self._labels))

    @property
    def device(self) -> torch.device:
        return self._labels.device

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Append a batch."""
        if self._pixels.dtype == torch.uint8:
            images = (images * 255).round().clamp(0, 255)
        self._put(images.detach().to(self._pixels.dtype), labels)

    def _put(self, pixels: Tensor, labels: Tensor) -> None:
        self.added += len(labels)
        skip = max(0, len(labels) - len(self._labels))  # of a batch larger than the pool, the last ones stay
        places = torch.arange(self.added - len(labels) + skip, self.added, device=self._labels.device) % len(self._labels)
        self._pixels[places] = pixels[skip:].to(self._pixels.device)
        self._labels[places] = labels[skip:].to(self._labels.device)

    def images(self, places: Tensor) -> Tensor:
        """Canonical images at these places."""
        pixels = self._pixels[places]
        return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels

    def labels(self, places: Tensor) -> Tensor:
        return self._labels[places]

    def batches(self, batch_size: int, draws: torch.Generator, together: int = 1) -> Iterator[Tensor]:
        """Places of every image once, in random order, a batch at a time.

        ``together``: so many batches at a time, and those that are left over one by one, so that a run meets two sizes and no more:
        each is recorded and compiled on its own.
        """
        order = torch.randperm(len(self), generator=draws).to(self._labels.device)
        full = len(order) - len(order) % (together * batch_size)
        pieces = (*order[:full].split(together * batch_size), *order[full:].split(batch_size))
        yield from (piece for piece in pieces if len(piece))

    def newest(self, count: int) -> Tensor:
        """The images added last, as far as there are any."""
        first = max(self.added - count, self.added - len(self), 0)
        places = torch.arange(first, self.added, device=self._labels.device) % max(1, len(self._labels))
        return self.images(places)

    def since(self, added: int) -> dict[str, Tensor]:
        """What was added after the first ``added`` images and is still here, in order: a shard."""
        places = torch.arange(max(added, self.added - len(self._labels)), self.added) % max(1, len(self._labels))
        places = places.to(self._labels.device)
        return {"pixels": self._pixels[places].cpu(), "labels": self._labels[places].cpu()}

    def forget_old_shards(self) -> list[Shard]:
        """Take out the shards all of whose images have given way to newer ones."""
        old = [shard for shard in self.shards if shard.end <= self.added - len(self._labels)]
        self.shards = self.shards[len(old) :]
        return old

    def put_back(self, shard: dict[str, Tensor], end: int) -> None:
        """Append a shard that ``since`` gave, whose last image was the ``end``-th ever added."""
        self.added = end - len(shard["labels"])
        self._put(shard["pixels"], shard["labels"])
