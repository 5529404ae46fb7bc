"""Teachers whose weights do not fit into memory together: loaded a few nets at a time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attar.blocks.ensemble.hooks import Hook
from attar.core import Part


class Group(Protocol):
    """What is needed of a ``TeacherGroup`` here."""

    size: int

    def __call__(
        self, images: Tensor, hooks: Sequence[Hook], keep: Tensor | None = None
    ) -> tuple[Tensor, dict[Hook, Tensor]]: ...
    def code(self) -> nn.Module: ...
    def load(self, parts: Sequence[Part]) -> None: ...
    def stacks(self, images: Tensor) -> bool: ...
    def look(self, images: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]: ...
    def run_one(self, number: int, images: Tensor) -> Tensor: ...


class SwappedGroup(nn.Module):
    """A group of nets of one kind that share the places of fewer nets.

    Every call loads some of the nets, runs them, and loads the next. Nothing of a net is kept for
    the backward pass, which loads and runs each net again.
    """

    def __init__(self, group: Group, parts: Sequence[Part]) -> None:
        """``group`` holds the first of ``parts``; as many nets are in memory at once."""
        super().__init__()
        self.group = group
        self.seats = group.size
        self._parts = parts

    def code(self) -> nn.Module:
        """The layers of the nets, without weights."""
        return self.group.code()

    def forward(
        self, images: Tensor, hooks: Sequence[Hook], keep: Tensor | None = None
    ) -> tuple[Tensor, dict[Hook, Tensor]]:
        """As ``TeacherGroup.forward``."""

        def run(parts: Sequence[Part], images: Tensor) -> tuple[Tensor, ...]:
            self.group.load(parts)
            logits, measured = self.group(images, hooks, keep)
            return logits, *(measured[hook] for hook in hooks)

        # Nets that are not stacked run one by one: then only the activations of a single net are
        # in memory at once.
        seats = self.seats if self.group.stacks(images) else 1
        turns = [self._parts[first : first + seats] for first in range(0, len(self._parts), seats)]
        outputs = [_recompute(partial(run, parts), images) for parts in turns]
        logits, *measured = (torch.cat(values) for values in zip(*outputs, strict=True))
        return logits, dict(zip(hooks, measured, strict=True))

    def look(self, images: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``TeacherGroup.look``."""

        def run(part: Part, keep: Tensor | None, images: Tensor) -> tuple[Tensor, ...]:
            self.group.load([part])
            return self.group.look(images, keep)

        outputs = []
        for number, part in enumerate(self._parts):
            row = slice(number, number + 1)
            patches = None if keep is None else keep[row]
            outputs.append(_recompute(partial(run, part, patches), images[row]))
        logits, attention = (torch.cat(values) for values in zip(*outputs, strict=True))
        return logits, attention.detach()

    def run_one(self, number: int, images: Tensor) -> Tensor:
        """As ``TeacherGroup.run_one``."""

        def run(images: Tensor) -> tuple[Tensor, ...]:
            self.group.load([self._parts[number]])
            return (self.group.run_one(0, images),)

        (logits,) = _recompute(run, images)
        return logits


def _recompute(run: Callable[[Tensor], tuple[Tensor, ...]], images: Tensor) -> tuple[Tensor, ...]:
    """``run(images)``, which runs again in the backward pass instead of keeping activations."""
    outputs: tuple[Tensor, ...] = _Recomputed.apply(run, images)  # type: ignore[no-untyped-call]
    return outputs


class _Recomputed(torch.autograd.Function):
    """See ``_recompute``."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[Tensor], tuple[Tensor, ...]], images: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.run = run
        kind = images.device.type
        ctx.autocast = torch.autocast(
            kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), False
        )
        ctx.save_for_backward(images)
        return run(images)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (images,) = ctx.saved_tensors
        inputs = images.detach().requires_grad_()
        with torch.enable_grad(), ctx.autocast:
            outputs = ctx.run(inputs)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad
        ]
        (of_images,) = torch.autograd.grad(
            [output for output, _ in pairs], inputs, [gradient for _, gradient in pairs]
        )
        return None, of_images
