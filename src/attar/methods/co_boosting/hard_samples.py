"""The ensemble's weights, boosted on hard samples (Co-Boosting, section 3.3)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.execution import Outputs, Run, at_once
from attar.blocks.images import Augment, apply, draw
from attar.blocks.student import Classroom, StudioState
from attar.methods.co_boosting.perturb import diversified

WEIGHED = 2**25  # logits that are weighed at once

Harden = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(images, labels, directions u) -> images."""


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
    room: Classroom,
    state: BoostingState,
    batch_size: int,
    harden: Harden | None = None,
    *,
    augment: Augment = "none",
    together: int = 1,
) -> Iterator[Hardened]:
    """The pool in random order, augmented, then perturbed by ``harden``. The clients' logits on
    a batch serve both (12) and (4).

    ``together``: the clients see so many batches in one go. An image's logits are its own, so
    nothing changes but the speed, as long as what ``harden`` asks stays the same meanwhile.
    """

    def work(images: Tensor, labels: Tensor, towards: Tensor) -> Outputs:
        if harden is not None:
            images = harden(images, labels, towards)
        with torch.no_grad():
            return images.detach(), room.teachers(images)

    pieces = list(state.pool.batches(batch_size, state.draws, together))
    sizes = [len(places) for places in pieces]
    number = 0 if harden is None else sum(sizes)
    towards = (2 * torch.rand(number, room.num_classes, generator=state.draws) - 1).to(
        room.device
    )  # u, for every image
    own = towards.split(sizes) if number else [towards] * len(pieces)
    cuts = (
        [None] * len(pieces)
        if augment == "none"
        else draw(augment, sum(sizes), state.draws).to(room.device).split(sizes)
    )
    name = "clients on the pool" if harden is None else "clients on the hardened pool"
    for places, directions, cut in zip(pieces, own, cuts, strict=True):
        labels, kept = state.pool.labels(places), state.pool.images(places)
        shown = kept if cut is None else apply(kept, cut)
        images, logits = room.run(name, work, (shown, labels, directions), (room.teachers, state))
        assert images is not None
        assert logits is not None
        each = (
            values.split(batch_size, axis)
            for values, axis in ((images.clone(), 0), (labels, 0), (logits.clone(), 1))
        )
        yield from map(Hardened, *each)


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
    images: Tensor, answer: Callable[[Tensor], Tensor], towards: Tensor, settings: HardeningSettings
) -> Tensor:
    """Eq. (10) with u ~ Unif([-1, 1])^d for every image; u meets the logits, or the softened
    probabilities.
    """

    def output(x: Tensor) -> Tensor:
        return (
            answer(x)
            if settings.perturb == "logits"
            else (answer(x) / settings.temperature).softmax(-1)
        )

    return diversified(images, output, towards, settings.epsilon, settings.direction)


def sign_step(
    weights: Tensor,
    batches: Sequence[Hardened],
    ensemble: Callable[[Tensor, Tensor, Tensor], Tensor],
    run: Run = at_once,
    owners: Sequence[object] = (),
) -> Tensor:
    """The sign of the gradient of Eq. (11), the mean of CE(A_w(x), y) over all images of the
    batches, at ``weights``.

    ``ensemble(logits, labels, weights)`` is A_w.
    """

    def work(logits: Tensor, labels: Tensor, weights: Tensor) -> Outputs:
        weights = weights.detach().requires_grad_()
        loss = F.cross_entropy(ensemble(logits, labels, weights), labels, reduction="sum")
        return torch.autograd.grad(loss, weights)

    gradient = torch.zeros_like(weights)
    number = max(1, WEIGHED // batches[0].logits.numel())
    for some in (batches[first : first + number] for first in range(0, len(batches), number)):
        logits, labels = (
            torch.cat([batch.logits for batch in some], 1),
            torch.cat([batch.labels for batch in some]),
        )
        (part,) = (run if len(batches) == 1 else at_once)(
            "weigh", work, (logits, labels, weights), owners
        )
        assert part is not None
        gradient += part
    return gradient.sign()


def normalised(weights: Tensor) -> Tensor:
    """Normalize of Eq. (12): each weight into [0, 1]. Weights that are all 0 would be no
    ensemble: they start again at 1/n.
    """
    bounded = weights.detach().clamp(0, 1)
    return torch.where(bounded.sum() > 0, bounded, 1 / len(bounded))
