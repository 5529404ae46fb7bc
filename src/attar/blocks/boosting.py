"""The ensemble's weights, boosted on hard samples (Co-Boosting, section 3.3)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import Teachers
from attar.blocks.perturb import diversified
from attar.blocks.pool import Pool
from attar.blocks.studio import StudioState


@dataclass(frozen=True)
class Hardened:
    """A batch of the pool as the student will see it, with every client's logits on it."""

    images: Tensor
    labels: Tensor
    logits: Tensor  # (K, B, C)


@dataclass
class BoostingState(StudioState):
    weights: Tensor  # w (K,)


def pool_batches(
    teachers: Teachers,
    pool: Pool,
    batch_size: int,
    draws: torch.Generator,
    harden: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Iterator[Hardened]:
    """The pool in random order, perturbed by ``harden(images, labels)``. The clients' logits serve both (12) and (4)."""
    for places in pool.batches(batch_size, draws):
        images, labels = pool.images(places), pool.labels(places)
        if harden is not None:
            images = harden(images, labels)
        with torch.no_grad():
            logits = teachers(images)
        yield Hardened(images, labels, logits)


class HardeningSettings(Protocol):
    @property
    def epsilon(self) -> float: ...
    @property
    def direction(self) -> str: ...
    @property
    def perturb(self) -> str: ...
    @property
    def temperature(self) -> float: ...


def hardened(
    images: Tensor,
    answer: Callable[[Tensor], Tensor],
    num_classes: int,
    settings: HardeningSettings,
    draws: torch.Generator,
) -> Tensor:
    """Eq. (10) with a fresh u ~ Unif([-1, 1])^d for every image; u meets the logits, or the softened probabilities."""
    towards = 2 * torch.rand(len(images), num_classes, generator=draws).to(images.device) - 1  # u

    def output(x: Tensor) -> Tensor:
        return answer(x) if settings.perturb == "logits" else (answer(x) / settings.temperature).softmax(-1)

    return diversified(images, output, towards, settings.epsilon, settings.direction)


def sign_step(weights: Tensor, batches: Sequence[Hardened], ensemble: Callable[[Hardened], Tensor]) -> Tensor:
    """The sign of the gradient of Eq. (11), the mean of CE(A_w(x), y) over all images of the batches, at ``weights``."""
    gradient = torch.zeros_like(weights)
    for batch in batches:
        loss = F.cross_entropy(ensemble(batch), batch.labels, reduction="sum")
        (part,) = torch.autograd.grad(loss, weights)
        gradient += part
    return gradient.sign()


def normalised(weights: Tensor) -> Tensor:
    """Normalize of Eq. (12): each weight into [0, 1]. Weights that are all 0 would be no ensemble: they start again at 1/n."""
    bounded = weights.detach().clamp(0, 1)
    return torch.where(bounded.sum() > 0, bounded, 1 / len(bounded))
