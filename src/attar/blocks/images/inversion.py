"""Making a batch of synthetic images: through a generator, or from pixels directly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from attar.blocks.execution import Outputs, Run, at_once

Keep = Literal["last", "best"]
Loss = Callable[..., Tensor]
"""(images, *given) -> a number; ``given`` are tensors that change from batch to batch, such as
labels.
"""


@dataclass(frozen=True)
class Synthesis:
    """How a batch is made: Adam steps, the batch that is kept, where the steps run, and who
    looks on.
    """

    steps: int
    lr: float
    beta1: float = 0.9
    keep: Keep = "last"
    clip: float | None = None
    run: Run = at_once
    owners: Sequence[object] = ()  # what the loss reads beside its arguments, see replay.py
    show: Callable[[Tensor], None] | None = None  # is shown the images of every step


def train_generator(
    generator: nn.Module,
    noise: Tensor,
    loss_of: Loss,
    how: Synthesis,
    given: Sequence[Tensor] = (),
    *,
    train_noise: bool = False,
) -> tuple[Tensor, Tensor]:
    """Adam steps of the generator on ``loss_of(images, *given)``; the batch of the last step, or
    of the lowest loss.

    With ``train_noise`` the noise is trained, too. Also returns the last loss, for the record.
    """
    return _optimise(
        generator,
        list(generator.parameters()),
        noise.clone(),
        loss_of,
        how,
        given,
        move_input=train_noise,
    )


def invert_pixels(
    start: Tensor, loss_of: Loss, how: Synthesis, given: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor]:
    """Adam steps on the pixels themselves (DeepInversion), which stay in [0, 1]."""

    def stay(pixels: Tensor) -> None:
        pixels.clamp_(0, 1)

    return _optimise(
        torch.clone, [], start.clone(), loss_of, how, given, move_input=True, before_step=stay
    )


def _optimise(
    images_of: Callable[[Tensor], Tensor],
    weights: list[nn.Parameter],
    source: Tensor,
    loss_of: Loss,
    how: Synthesis,
    given: Sequence[Tensor],
    *,
    move_input: bool,
    before_step: Callable[[Tensor], None] = lambda _: None,
) -> tuple[Tensor, Tensor]:
    moved = [*weights, source] if move_input else weights
    optimiser = Adam(moved, lr=how.lr, betas=(how.beta1, 0.999), fused=source.is_cuda)

    def work(source: Tensor, *given: Tensor) -> Outputs:
        source = source.detach().requires_grad_(move_input)
        images = images_of(source)
        loss = loss_of(images, *given)
        wanted = [*weights, source] if move_input else weights
        slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
        # fused Adam wants the layout of the input, which a student with channels last does not give
        if move_input:
            slopes = (*slopes[:-1], slopes[-1].contiguous())
        return (images.detach(), loss.detach(), *slopes)

    kept, lowest, loss = torch.empty(0), torch.empty(0), torch.empty(0)
    for step in range(how.steps):
        before_step(source)
        images, last, *gradients = how.run(
            "synthesise", work, (source, *given), (images_of, *how.owners)
        )
        assert images is not None
        assert last is not None
        loss = last
        if how.show is not None:
            how.show(images.clone())
        if how.keep == "best" and step > 0:  # chosen on the device: no waiting
            better = loss < lowest
            kept, lowest = torch.where(better, images, kept), torch.where(better, loss, lowest)
        elif how.keep == "best" or step == how.steps - 1:
            kept, lowest = images.clone(), loss.clone()
        for tensor, gradient in zip(moved, gradients, strict=True):
            tensor.grad = gradient
        if how.clip is not None:
            clip_grad_norm_(weights, how.clip)
        optimiser.step()
    return kept, loss.clone()
