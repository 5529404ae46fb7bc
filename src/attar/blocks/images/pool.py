"""The pool of synthetic images: one tensor on the device, filled batch by batch.

The pool only ever grows at its end, so a checkpoint appends what is new as a shard and never
rewrites the rest. With a limit it is a ring: the newest images replace the oldest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.nets.registry import Shape
from attar.settings import PositiveInt, flat


@dataclass(frozen=True)
class PoolSettings:
    """How many synthetic images are kept, and in which form.

    Attributes:
        limit: images; None: all of them.
        as_bytes: keep them as uint8, a quarter of the memory, in place of float32.
    """

    limit: PositiveInt | None = flat("pool_limit", None)  # images; None: all of them
    as_bytes: bool = flat("pool_bytes", False)  # keep the pool as uint8


@dataclass(frozen=True)
class Shard:
    """A piece of the pool on disk.

    Attributes:
        name: of its file.
        end: how many images had ever been added up to its last one.
        sha256: of the file.
    """

    name: str
    end: int
    sha256: str


class Pool:
    """Images in [0, 1] with their labels, and further values of every image by name.

    Args:
        shape: of an image, (C, H, W).
        capacity: images; beyond it the newest replace the oldest.
        device: where the images are.
        as_bytes: keep images rounded to uint8 in place of torch's default type, float32.
        extras: what else is kept of every image, such as the ensemble's answer: by name an
            example of one image's value.
    """

    def __init__(
        self,
        shape: Shape,
        capacity: int,
        device: str,
        *,
        as_bytes: bool = False,
        extras: Mapping[str, Tensor] | None = None,
    ) -> None:
        dtype = torch.uint8 if as_bytes else torch.get_default_dtype()
        self._pixels = torch.zeros(capacity, *shape, dtype=dtype, device=device)
        self._labels = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._extras = {
            name: torch.zeros(capacity, *example.shape, dtype=example.dtype, device=device)
            for name, example in (extras or {}).items()
        }
        self.added = 0  # images ever added; the newest ``capacity`` of them are kept
        self.shards: list[Shard] = []  # what checkpoints have written of it

    def __len__(self) -> int:
        return min(self.added, len(self._labels))

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self._labels.device

    @property
    def extra_names(self) -> frozenset[str]:
        """The names of what is kept of every image beside pixels and label."""
        return frozenset(self._extras)

    def add(self, images: Tensor, labels: Tensor, **extras: Tensor) -> None:
        """Append a batch.

        Args:
            images: (B, C, H, W) in [0, 1].
            labels: (B,).
            extras: by name the values of every image, (B, ...).
        """
        self._append(self._stored(images), labels, extras)

    def blank_extras(self, number: int) -> dict[str, Tensor]:
        """Zeros in place of the extras of so many images."""
        return {
            name: values.new_zeros(number, *values.shape[1:])
            for name, values in self._extras.items()
        }

    def as_stored(self, images: Tensor) -> Tensor:
        """Images as they will come out of the pool: rounded where it keeps bytes."""
        return _to_float(self._stored(images))

    def _stored(self, images: Tensor) -> Tensor:
        if self._pixels.dtype == torch.uint8:
            images = (images * 255).round().clamp(0, 255)
        return images.detach().to(self._pixels.dtype)

    def _append(self, pixels: Tensor, labels: Tensor, extras: Mapping[str, Tensor]) -> None:
        if set(extras) != set(self._extras):
            raise ValueError(
                f"a batch with extras {sorted(extras)} for a pool with {sorted(self._extras)}"
            )
        number, capacity = len(labels), len(self._labels)
        self.added += number
        skip = max(0, number - capacity)  # a batch larger than the pool: the last images stay
        ends = torch.arange(self.added - number + skip, self.added, device=self.device)
        places = ends % capacity
        self._pixels[places] = pixels[skip:].to(self.device)
        self._labels[places] = labels[skip:].to(self.device)
        for name, values in extras.items():
            self._extras[name][places] = values[skip:].detach().to(self._extras[name])

    def images(self, places: Tensor) -> Tensor:
        """The images at these places, (N, C, H, W) in [0, 1]."""
        return _to_float(self._pixels[places])

    def labels(self, places: Tensor) -> Tensor:
        """The labels at these places, (N,)."""
        return self._labels[places]

    def extras(self, name: str, places: Tensor) -> Tensor:
        """The values of one extra at these places, (N, ...)."""
        return self._extras[name][places]

    def batches(
        self, batch_size: int, draws: torch.Generator, together: int = 1
    ) -> Iterator[Tensor]:
        """Pass over all images once in random order.

        Args:
            batch_size: images in a batch; the last batch may be smaller.
            draws: shuffles the images.
            together: batches in one piece. What is left over comes batch by batch, so that a run
                meets two sizes only: each is recorded and compiled separately.

        Yields:
            The places of the images of a piece.
        """
        order = torch.randperm(len(self), generator=draws).to(self.device)
        full = len(order) - len(order) % (together * batch_size)
        pieces = (*order[:full].split(together * batch_size), *order[full:].split(batch_size))
        yield from (piece for piece in pieces if len(piece))

    def newest(self, count: int) -> Tensor:
        """The ``count`` images added last, or all if there are fewer."""
        return self.images(self.latest(count))

    def latest(self, count: int) -> Tensor:
        """The places of the ``count`` images added last, or of all if there are fewer."""
        first = max(self.added - count, self.added - len(self), 0)
        ends = torch.arange(first, self.added, device=self.device)
        return ends % max(1, len(self._labels))

    def since(self, added: int) -> dict[str, Tensor]:
        """A shard: what was added after the first ``added`` images and is still in the pool."""
        first = max(added, self.added - len(self._labels))
        places = torch.arange(first, self.added) % max(1, len(self._labels))
        places = places.to(self.device)
        extras = {f"note.{name}": values[places].cpu() for name, values in self._extras.items()}
        return {
            "pixels": self._pixels[places].cpu(),
            "labels": self._labels[places].cpu(),
            **extras,
        }

    def forget_old_shards(self) -> list[Shard]:
        """Remove, and return, the shards whose images have all been replaced by newer ones."""
        old = [shard for shard in self.shards if shard.end <= self.added - len(self._labels)]
        self.shards = self.shards[len(old) :]
        return old

    def put_back(self, shard: dict[str, Tensor], end: int) -> None:
        """Append a shard that ``since`` returned.

        Args:
            shard: its tensors by name.
            end: how many images had ever been added up to its last one.
        """
        self.added = end - len(shard["labels"])
        extras = {
            name.removeprefix("note."): values
            for name, values in shard.items()
            if name.startswith("note.")
        }
        self._append(shard["pixels"], shard["labels"], extras)


def _to_float(pixels: Tensor) -> Tensor:
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
