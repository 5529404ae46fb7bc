"""The pool of synthetic images: one tensor on the device, filled batch by batch.

The pool only ever grows at its end, so a checkpoint appends what is new as a shard and never
rewrites the rest. With a limit it is a ring: the oldest images give way to the newest.
"""

from collections.abc import Iterator, Mapping
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
    """Images in [0, 1] with their labels, kept as float32 or, with ``whole_bytes``, rounded to
    uint8.

    ``notes`` are what else is kept of every image, such as a mask: by name, an example of one
    image's.
    """

    def __init__(
        self,
        shape: Shape,
        capacity: int,
        device: str,
        *,
        whole_bytes: bool = False,
        notes: Mapping[str, Tensor] | None = None,
    ) -> None:
        kind = torch.uint8 if whole_bytes else torch.float32
        self._pixels = torch.zeros(capacity, *shape, dtype=kind, device=device)
        self._labels = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._notes = {
            name: torch.zeros(capacity, *one.shape, dtype=one.dtype, device=device)
            for name, one in (notes or {}).items()
        }
        self.added = 0  # images ever added; the newest ``capacity`` of them are kept
        self.shards: list[Shard] = []  # what checkpoints have written of it

    def __len__(self) -> int:
        return min(self.added, len(self._labels))

    @property
    def device(self) -> torch.device:
        return self._labels.device

    def add(self, images: Tensor, labels: Tensor, **notes: Tensor) -> None:
        """Append a batch."""
        self._put(self._as_kept(images), labels, notes)

    def blank_notes(self, number: int) -> dict[str, Tensor]:
        """Notes on so many images of which nothing is known yet."""
        return {
            name: values.new_zeros(number, *values.shape[1:])
            for name, values in self._notes.items()
        }

    def seen(self, images: Tensor) -> Tensor:
        """Images as they will be when they have been in the pool."""
        return _canonical(self._as_kept(images))

    def _as_kept(self, images: Tensor) -> Tensor:
        if self._pixels.dtype == torch.uint8:
            images = (images * 255).round().clamp(0, 255)
        return images.detach().to(self._pixels.dtype)

    def _put(self, pixels: Tensor, labels: Tensor, notes: Mapping[str, Tensor]) -> None:
        if set(notes) != set(self._notes):
            raise ValueError(
                f"a batch with notes {sorted(notes)} for a pool with {sorted(self._notes)}"
            )
        self.added += len(labels)
        skip = max(
            0, len(labels) - len(self._labels)
        )  # of a batch larger than the pool, the last ones stay
        places = torch.arange(
            self.added - len(labels) + skip, self.added, device=self._labels.device
        ) % len(self._labels)
        self._pixels[places] = pixels[skip:].to(self._pixels.device)
        self._labels[places] = labels[skip:].to(self._labels.device)
        for name, values in notes.items():
            self._notes[name][places] = values[skip:].detach().to(self._notes[name])

    def images(self, places: Tensor) -> Tensor:
        """Canonical images at these places."""
        return _canonical(self._pixels[places])

    def labels(self, places: Tensor) -> Tensor:
        return self._labels[places]

    def notes(self, name: str, places: Tensor) -> Tensor:
        return self._notes[name][places]

    def batches(
        self, batch_size: int, draws: torch.Generator, together: int = 1
    ) -> Iterator[Tensor]:
        """Places of every image once, in random order, a batch at a time.

        ``together``: so many batches at a time, and those that are left over one by one, so that
        a run meets two sizes and no more: each is recorded and compiled on its own.
        """
        order = torch.randperm(len(self), generator=draws).to(self._labels.device)
        full = len(order) - len(order) % (together * batch_size)
        pieces = (*order[:full].split(together * batch_size), *order[full:].split(batch_size))
        yield from (piece for piece in pieces if len(piece))

    def newest(self, count: int) -> Tensor:
        """The images added last, as far as there are any."""
        return self.images(self.latest(count))

    def latest(self, count: int) -> Tensor:
        """The places of the images added last, as far as there are any."""
        first = max(self.added - count, self.added - len(self), 0)
        return torch.arange(first, self.added, device=self._labels.device) % max(
            1, len(self._labels)
        )

    def since(self, added: int) -> dict[str, Tensor]:
        """What was added after the first ``added`` images and is still here, in order: a shard."""
        places = torch.arange(max(added, self.added - len(self._labels)), self.added) % max(
            1, len(self._labels)
        )
        places = places.to(self._labels.device)
        noted = {f"note.{name}": values[places].cpu() for name, values in self._notes.items()}
        return {"pixels": self._pixels[places].cpu(), "labels": self._labels[places].cpu(), **noted}

    def forget_old_shards(self) -> list[Shard]:
        """Take out the shards all of whose images have given way to newer ones."""
        old = [shard for shard in self.shards if shard.end <= self.added - len(self._labels)]
        self.shards = self.shards[len(old) :]
        return old

    def put_back(self, shard: dict[str, Tensor], end: int) -> None:
        """Append a shard that ``since`` gave, whose last image was the ``end``-th ever added."""
        self.added = end - len(shard["labels"])
        noted = {
            name.removeprefix("note."): values
            for name, values in shard.items()
            if name.startswith("note.")
        }
        self._put(shard["pixels"], shard["labels"], noted)


def _canonical(pixels: Tensor) -> Tensor:
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
