"""Inversion that stops where there is little to see: every client's images at once, patch by
patch (FedMITR 4.1).

Patches are numbered row by row. ``keep`` (K, B, k) are those that still are inverted; a patch
that stopped costs no more work.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam

from attar.blocks.execution import Outputs, Run, at_once
from attar.errors import SettingsError

Losses = tuple[Tensor, Tensor]
"""The loss of each client (K,), and the class attention to each kept patch (K, B, k)."""


@dataclass(frozen=True)
class SparseInversion:
    """How long pixels are optimised, when patches stop, and what becomes of their pixels."""

    steps: int
    lr: float
    betas: tuple[float, float]
    ratio: float  # of the remaining patches, at every stop
    stop_at: tuple[float, ...]  # parts of the steps
    grid: tuple[int, int]
    frozen: bool = True  # the pixels of a patch that stopped stay as they are
    run: Run = at_once
    owners: Sequence[object] = ()  # what the loss reads beside its arguments, see replay.py

    def __post_init__(self) -> None:
        if not all(0 < part <= 1 for part in self.stop_at):
            raise SettingsError(
                f"stop_at = {self.stop_at}: parts of the inversion, above 0 and at most 1."
            )

    def require_stops(self) -> None:
        """Refuse a plan that leaves no patch of low density, to those who want to work on such."""
        first, *_, last = self.remaining()
        if first == last:
            raise SettingsError(
                f"None of {first} patches stops, so none can be relabelled.",
                fix="set relabel=0, or a higher mask_ratio",
            )

    def remaining(self) -> list[int]:
        """Patches that are left at iterations 0 to ``steps``; the last is how many there are at the end."""
        left = [self.grid[0] * self.grid[1]]
        stops = [max(1, math.ceil(part * self.steps - 1e-9)) for part in self.stop_at]
        for iteration in range(1, self.steps + 1):
            left.append(left[-1])
            for _ in range(stops.count(iteration)):
                left[-1] = left_after(left[-1], self.ratio)
        return left


class Inverted(NamedTuple):
    """Images (K, B, C, H, W), which of their patches were inverted to the end (K, B, P), and the
    mean loss of the last step.
    """

    images: Tensor
    high: Tensor
    loss: Tensor


def left_after(patches: int, ratio: float) -> int:
    """One stop: a ``ratio`` of the patches, rounded down, and never all of them."""
    return max(1, patches - math.floor(ratio * patches + 1e-9))


def most_attended(attention: Tensor, keep: Tensor, number: int) -> Tensor:
    """The ``number`` patches of ``keep`` (..., k) with the highest ``attention`` (..., k), in
    the order of their places.
    """
    chosen = attention.topk(number, dim=-1).indices
    return keep.gather(-1, chosen).sort(dim=-1).values


def mask_of(keep: Tensor, patches: int) -> Tensor:
    """(..., k) numbers of patches -> (..., P) whether each is among them."""
    return torch.zeros(*keep.shape[:-1], patches, dtype=torch.bool, device=keep.device).scatter(
        -1, keep, True
    )


def sides(high: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """A mask (B, P) with ``number`` patches set in every row -> their numbers (B, number), and
    those of the others.
    """
    order = (~high).to(torch.uint8).argsort(dim=-1, stable=True)
    return order[..., :number].contiguous(), order[
        ..., number:
    ].contiguous()  # compiled nets know them by their strides


def over_pixels(mask: Tensor, grid: tuple[int, int], height: int, width: int) -> Tensor:
    """A mask over patches (..., P) -> over the pixels of images of any size, (..., 1, height,
    width).
    """
    rows = torch.arange(height, device=mask.device) * grid[0] // height
    columns = torch.arange(width, device=mask.device) * grid[1] // width
    cells: Tensor = mask.unflatten(-1, grid)[..., rows[:, None], columns]
    return cells.unsqueeze(-3)


def invert_sparsely(
    start: Tensor,
    loss_of: Callable[..., Losses],
    how: SparseInversion,
    given: Sequence[Tensor] = (),
) -> Inverted:
    """Adam steps on the pixels of all clients' images and ``loss_of(images, keep, *given)``;
    they stay in [0, 1].

    Clients do not touch each other: the gradient of the summed losses is each one's own. At a
    stop the patches with the lowest class attention of the iteration before are left out from
    then on.
    """
    pixels, patches, left = start.clone(), how.grid[0] * how.grid[1], how.remaining()
    optimiser = Adam([pixels], lr=how.lr, betas=how.betas, fused=pixels.is_cuda)
    keep = (
        torch.arange(patches, device=pixels.device).expand(*pixels.shape[:2], patches).contiguous()
    )
    moving = torch.ones((), dtype=torch.bool, device=pixels.device)
    attention, loss = torch.empty(0), torch.zeros((), device=pixels.device)

    def work(pixels: Tensor, keep: Tensor, *given: Tensor) -> Outputs:
        source = pixels.detach().requires_grad_()
        losses, attention = loss_of(source, keep, *given)
        (gradient,) = torch.autograd.grad(losses.sum(), source)
        return (
            losses.detach().mean(),
            attention.detach(),
            gradient.contiguous(),
        )  # fused Adam wants the pixels' layout

    for iteration in range(how.steps + 1):
        pixels.clamp_(0, 1)
        if left[iteration] < keep.shape[-1]:
            keep = most_attended(attention, keep, left[iteration])
            moving = over_pixels(mask_of(keep, patches), how.grid, *pixels.shape[-2:])
        if iteration == how.steps:
            break
        outputs = how.run("invert", work, (pixels, keep, *given), how.owners)
        loss, attention, pixels.grad = outputs
        before = pixels.clone()
        optimiser.step()
        if how.frozen:
            pixels.copy_(
                torch.where(moving, pixels, before)
            )  # Adam's momentum would move them without any gradient
    return Inverted(pixels.detach(), mask_of(keep, patches), loss.clone())
