"""Sparse inversion: the images of all clients at once, patch by patch (FedMITR 4.1).

Patches are numbered row by row. ``keep`` (K, B, k) are the numbers of the patches that are still
inverted. Nets see only these patches, so a patch that stopped costs no more work.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from attar.blocks.execution import Outputs, Runner, eager
from attar.errors import SettingsError
from attar.settings import Fraction

Losses = tuple[Tensor, Tensor]
"""The loss of each client (K,), and the class attention to each kept patch (K, B, k)."""

Stopped = Literal["frozen", "drifting"]


@dataclass(frozen=True)
class Sparsity:
    """Which patches stop, when, and what happens to their pixels.

    Attributes:
        mask_ratio: r, the part of the remaining patches that stop at every stop.
        stop_at: when patches stop, as parts of the inversion; 1: after its last step.
        stopped: whether the pixels of a stopped patch are frozen, or go on drifting: the priors
            and the momentum of Adam still move them.
        attention: whose class attention decides, that of the inverted client or of the server.
    """

    mask_ratio: Fraction = 0.3  # r, of the patches that remain
    stop_at: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)  # parts of T_I; 1: after the last step
    stopped: Stopped = "frozen"  # drifting: priors and momentum still move stopped pixels
    attention: Literal["client", "server"] = "client"  # whose class attention decides

    def __post_init__(self) -> None:
        if not all(0 < part <= 1 for part in self.stop_at):
            raise SettingsError(
                f"stop_at = {self.stop_at}: parts of the inversion, above 0 and at most 1."
            )

    def patches_left(self, patches: int, steps: int) -> list[int]:
        """How many patches are left after 0 to ``steps`` steps, of ``patches`` at the start."""
        left = [patches]
        stops = [max(1, math.ceil(part * steps - 1e-9)) for part in self.stop_at]
        for step in range(1, steps + 1):
            left.append(left[-1])
            for _ in range(stops.count(step)):
                left[-1] = left_after(left[-1], self.mask_ratio)
        return left


class SparseInversion:
    """A batch of images for each client, whose pixels Adam moves; they stay in [0, 1].

    Clients do not influence each other: the gradient of the summed losses is each client's own.

    Args:
        start: the first pixels (K, B, C, H, W); values outside of [0, 1] are clamped.
        loss_of: from the images, ``keep``, and the further inputs of ``step``, to ``Losses``.
        grid: rows and columns of patches.
        left: how many patches are left after each step, see ``Sparsity.patches_left``.
        stopped: what happens to the pixels of stopped patches, see ``Sparsity``.
        lr: step size of Adam.
        betas: of Adam.
        run: how steps run on the device.
        captured: what the loss reads beside its arguments.

    Attributes:
        images: (K, B, C, H, W), as they are now.
        keep: (K, B, k), the patches that are still inverted.
        loss: the mean loss of the last step, before its update.
    """

    def __init__(
        self,
        start: Tensor,
        loss_of: Callable[..., Losses],
        *,
        grid: tuple[int, int],
        left: Sequence[int],
        stopped: Stopped,
        lr: float,
        betas: tuple[float, float],
        run: Runner = eager,
        captured: Sequence[object] = (),
    ) -> None:
        self.images = start.clamp(0, 1)
        patches = torch.arange(left[0], device=start.device)
        self.keep = patches.expand(*start.shape[:2], left[0]).contiguous()
        self.loss = torch.zeros((), device=start.device)
        self._loss_of = loss_of
        self._grid = grid
        self._left = left
        self._move = MOVES[stopped]
        self._optimiser = Adam([self.images], lr=lr, betas=betas, fused=start.is_cuda)
        self._run = run
        self._captured = captured
        self._steps = 0
        self._attention = torch.empty(0)
        self._moving = torch.ones((), dtype=torch.bool, device=start.device)

    def step(self, *inputs: Tensor) -> Tensor:
        """Take one Adam step on ``loss_of(images, keep, *inputs)``; the loss before the update.

        Args:
            inputs: tensors that change from batch to batch, such as labels.
        """
        tensors = (self.images, self.keep, *inputs)
        outputs = self._run("invert", self._gradients, tensors, self._captured)
        loss, self._attention, self.images.grad = outputs
        self.loss = loss.clone()
        self._move(self._optimiser, self.images, self._moving)
        self.images.clamp_(0, 1)
        self._steps += 1
        return self.loss

    def stop_patches(self) -> None:
        """Stop the patches of lowest class attention in the last step, if it is time (5)."""
        left = self._left[self._steps]
        if left < self.keep.shape[-1]:
            self.keep = most_attended(self._attention, self.keep, left)
            self._moving = over_pixels(self.high, self._grid, *self.images.shape[-2:])

    @property
    def high(self) -> Tensor:
        """(K, B, patches) bool, the patches that are still inverted: those of high density."""
        return mask_of(self.keep, self._left[0])

    def _gradients(self, images: Tensor, keep: Tensor, *inputs: Tensor) -> Outputs:
        """The unit of work that is recorded: mean loss, attention, gradient of the pixels."""
        source = images.detach().requires_grad_()
        losses, attention = self._loss_of(source, keep, *inputs)
        (gradient,) = torch.autograd.grad(losses.sum(), source)
        # fused Adam wants the layout of the pixels
        return losses.detach().mean(), attention.detach(), gradient.contiguous()


# --- what moves pixels ----------------------------------------------------------------------------


def move_kept_patches(optimiser: Optimizer, pixels: Tensor, moving: Tensor) -> None:
    """Take a step, and put the pixels of stopped patches back: momentum would move them, too."""
    before = pixels.clone()
    optimiser.step()
    pixels.copy_(torch.where(moving, pixels, before))


def move_all_patches(optimiser: Optimizer, pixels: Tensor, moving: Tensor) -> None:
    """Take a step with all pixels."""
    optimiser.step()


MOVES: dict[Stopped, Callable[[Optimizer, Tensor, Tensor], None]] = {
    "frozen": move_kept_patches,
    "drifting": move_all_patches,
}


# --- jitter ---------------------------------------------------------------------------------------


def draw_moves(steps: int, clients: int, side: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Draw how each client's batch is shifted and flipped before each step.

    Args:
        steps: how many.
        clients: how many; each has its own moves.
        side: height and width of the images.
        rng: the source of chance.

    Returns:
        (steps, K, 3): pixels down and to the right, up to an eighth of a side in both directions,
        and whether to flip.
    """
    shifts = [
        torch.randint(-(length // 8), length // 8 + 1, (steps, clients), generator=rng)
        for length in side
    ]
    return torch.stack([*shifts, torch.randint(0, 2, (steps, clients), generator=rng)], -1)


def move_images(images: Tensor, moves: Tensor) -> Tensor:
    """Roll the images (K, B, C, H, W) of each client, then flip them; moves are (K, 3)."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) - moves[:, :1]) % height
    across = torch.arange(width, device=images.device).expand(len(images), width)
    across = torch.where(moves[:, 2:].bool(), across.flip(1), across)
    columns = (across - moves[:, 1:2]) % width
    rolled = images.gather(3, rows[:, None, None, :, None].expand_as(images))
    return rolled.gather(4, columns[:, None, None, None].expand_as(images))


def move_patches(
    keep: Tensor, moves: Tensor, grid: tuple[int, int], side: tuple[int, int]
) -> Tensor:
    """Where the patches (K, B, k) are after ``move_images``, to the nearest patch."""
    numbers, parts = (keep // grid[1], keep % grid[1]), moves[:, :2] / torch.tensor(side).to(moves)
    shifts = [(part * cells).round().long() for part, cells in zip(parts.T, grid, strict=True)]
    row, column = (
        (number + shift[:, None, None]) % cells
        for number, shift, cells in zip(numbers, shifts, grid, strict=True)
    )
    flipped = moves[:, 2, None, None].bool()
    places: Tensor = row * grid[1] + torch.where(flipped, grid[1] - 1 - column, column)
    return places


# --- patches --------------------------------------------------------------------------------------


def left_after(patches: int, ratio: float) -> int:
    """Patches that are left after one stop of a ``ratio`` of them, rounded down; at least one."""
    return max(1, patches - math.floor(ratio * patches + 1e-9))


def most_attended(attention: Tensor, keep: Tensor, number: int) -> Tensor:
    """The ``number`` patches with the highest attention, in the order of their numbers.

    Args:
        attention: (..., k), to each of the patches ``keep``.
        keep: (..., k), numbers of patches.
        number: how many.

    Returns:
        (..., number), numbers of patches.
    """
    chosen = attention.topk(number, dim=-1).indices
    return keep.gather(-1, chosen).sort(dim=-1).values


def mask_of(keep: Tensor, patches: int) -> Tensor:
    """Numbers of patches (..., k) -> (..., patches) bool, whether each patch is among them."""
    mask = torch.zeros(*keep.shape[:-1], patches, dtype=torch.bool, device=keep.device)
    return mask.scatter(-1, keep, True)


def split_patches(high: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """A mask (B, patches) with ``number`` patches set in every row, as numbers of patches.

    Returns:
        The patches that are set (B, number), and the others (B, patches - number); contiguous,
        since compiled nets are specific to strides.
    """
    order = (~high).to(torch.uint8).argsort(dim=-1, stable=True)
    return order[..., :number].contiguous(), order[..., number:].contiguous()


def over_pixels(mask: Tensor, grid: tuple[int, int], height: int, width: int) -> Tensor:
    """A mask over patches (..., patches) -> over pixels (..., 1, height, width)."""
    rows = torch.arange(height, device=mask.device) * grid[0] // height
    columns = torch.arange(width, device=mask.device) * grid[1] // width
    cells: Tensor = mask.unflatten(-1, grid)[..., rows[:, None], columns]
    return cells.unsqueeze(-3)
