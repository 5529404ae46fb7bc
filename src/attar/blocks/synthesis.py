"""Making a batch of synthetic images: through a generator, or from pixels directly."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam

Keep = Literal["last", "best"]


def train_generator(
    generator: nn.Module,
    noise: Tensor,
    loss_of: Callable[[Tensor], Tensor],
    *,
    steps: int,
    lr: float,
    beta1: float = 0.9,
    keep: Keep = "last",
    train_noise: bool = False,
    clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``steps`` Adam steps of the generator on ``loss_of(images)``; the batch of the last step, or of the lowest loss.

    With ``train_noise`` the noise is trained, too. Also returns the last loss, for the record.
    """
    noise = noise.clone().requires_grad_(train_noise)
    weights = list(generator.parameters())
    return _optimise(lambda: generator(noise), loss_of, weights, [noise] if train_noise else [], steps, lr, beta1, keep, clip)


def invert_pixels(
    start: Tensor, loss_of: Callable[[Tensor], Tensor], *, steps: int, lr: float, keep: Keep = "last"
) -> tuple[Tensor, Tensor]:
    """``steps`` Adam steps on the pixels themselves (DeepInversion), which stay in [0, 1]."""
    pixels = start.clone().requires_grad_()

    def images() -> Tensor:
        with torch.no_grad():
            pixels.clamp_(0, 1)
        return pixels * 1.0

    return _optimise(images, loss_of, [], [pixels], steps, lr, 0.9, keep, None)


def _optimise(
    images_now: Callable[[], Tensor],
    loss_of: Callable[[Tensor], Tensor],
    weights: list[nn.Parameter],
    inputs: list[Tensor],
    steps: int,
    lr: float,
    beta1: float,
    keep: Keep,
    clip: float | None,
) -> tuple[Tensor, Tensor]:
    optimiser = Adam([*weights, *inputs], lr=lr, betas=(beta1, 0.999))
    kept, lowest, loss = torch.empty(0), torch.empty(0), torch.empty(0)
    for step in range(steps):
        images = images_now()
        loss = loss_of(images)
        if step == 0 or keep == "last":
            kept, lowest = images.detach(), loss.detach()
        else:  # chosen on the device: no waiting
            better = loss.detach() < lowest
            kept, lowest = torch.where(better, images.detach(), kept), torch.where(better, loss.detach(), lowest)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        optimiser.step()
    return kept, loss.detach()
