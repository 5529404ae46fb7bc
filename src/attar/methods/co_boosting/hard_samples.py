"""Hard samples, and ensemble weights that are learned on them (Co-Boosting, 3.2 and 3.3)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.execution import Outputs, Runner, eager
from attar.blocks.images import Augment, apply_augmentation, draw_augmentation
from attar.blocks.student import DataFreeState, DistillationContext

MAX_LOGITS = 2**25  # of one backward pass to the weights

Harden = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(images, labels, directions u) to hard images."""


@dataclass
class BoostingState(DataFreeState):
    """What changes in a run of Co-Boosting.

    Attributes:
        weights: w of the clients, (K,).
    """

    weights: Tensor


@dataclass(frozen=True)
class PoolBatch:
    """A batch of the pool as the student will see it.

    Attributes:
        images: augmented and hardened, (B, C, H, W).
        labels: the target labels, (B,).
        logits: of every client on these images, (K, B, C).
    """

    images: Tensor
    labels: Tensor
    logits: Tensor


def pool_batches(
    context: DistillationContext,
    state: DataFreeState,
    batch_size: int,
    harden: Harden | None = None,
    *,
    augment: Augment = "none",
    together: int = 1,
) -> Iterator[PoolBatch]:
    """Pass over the pool in random order: each batch augmented, hardened, answered by the clients.

    The clients' logits on a batch serve both (12) and (4).

    Args:
        context: what ``prepare`` made.
        state: its pool and draws.
        batch_size: images in a batch.
        harden: perturbs a batch; None: images stay as they are.
        augment: crops and flips, drawn anew for every image.
        together: batches that the clients answer in one call. An image's logits do not depend on
            its batch, so nothing changes but the speed, as long as ``harden`` does not change
            during the pass.
    """

    def answer(images: Tensor, labels: Tensor, directions: Tensor) -> Outputs:
        if harden is not None:
            images = harden(images, labels, directions)
        with torch.no_grad():
            return images.detach(), context.teachers(images)

    name = "clients on the pool" if harden is None else "clients on the hardened pool"
    captured = (context.teachers, state)
    pieces = list(state.pool.batches(batch_size, state.draws, together))
    sizes = [len(places) for places in pieces]
    directions = _draw_directions(context, state, sizes, wanted=harden is not None)
    crops = _draw_crops(augment, context, state, sizes)
    for places, towards, crop in zip(pieces, directions, crops, strict=True):
        labels, images = state.pool.labels(places), state.pool.images(places)
        if crop is not None:
            images = apply_augmentation(images, crop)
        images, logits = context.run(name, answer, (images, labels, towards), captured)
        yield from map(
            PoolBatch,
            images.clone().split(batch_size),
            labels.split(batch_size),
            logits.clone().split(batch_size, 1),
        )


def _draw_directions(
    context: DistillationContext, state: DataFreeState, sizes: Sequence[int], *, wanted: bool
) -> Sequence[Tensor]:
    """u ~ Unif([-1, 1])^C of every image, by pieces; empty where nothing is hardened."""
    number = sum(sizes) if wanted else 0
    uniform = torch.rand(number, context.num_classes, generator=state.draws)
    directions = (2 * uniform - 1).to(context.device)
    return list(directions.split(list(sizes))) if number else [directions] * len(sizes)


def _draw_crops(
    augment: Augment, context: DistillationContext, state: DataFreeState, sizes: Sequence[int]
) -> Sequence[Tensor | None]:
    """The crops and flips of every image, by pieces; None where nothing is augmented."""
    if augment == "none":
        return [None] * len(sizes)
    crops = draw_augmentation(augment, sum(sizes), state.draws).to(context.device)
    return list(crops.split(list(sizes)))


def perturb_images(
    images: Tensor,
    output: Callable[[Tensor], Tensor],
    directions: Tensor,
    epsilon: float,
    norm: str,
) -> Tensor:
    """Eq. (10): x + epsilon g / ||g||_2 with g the gradient at x of u^T A(x).

    The images are not clamped, as in the paper.

    Args:
        images: x, (B, C, H, W).
        output: A, from images to (B, classes).
        directions: u, (B, classes).
        epsilon: length of the step.
        norm: "l2": each image has its own norm. "sign": x + epsilon sign(g).
    """
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        likeness = (directions * output(inputs)).sum()
        (gradient,) = torch.autograd.grad(likeness, inputs)
    if norm == "sign":
        return images + epsilon * gradient.sign()
    length: Tensor = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)
    return images + epsilon * gradient / length[:, None, None, None]


def scale_weights(base: Tensor, weights: Tensor) -> Tensor:
    """The clients' weights (K,), (K, C) or (B, K, C) times n w_k, which is 1 at the start."""
    scale = len(weights) * weights
    return base * (scale if base.dim() == 1 else scale[:, None])


Ensemble = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A_w: clients' logits (K, B, C), labels (B,) and w (K,) to logits (B, C)."""


def weight_gradient_sign(
    weights: Tensor, batches: Sequence[PoolBatch], ensemble: Ensemble
) -> Tensor:
    """The sign of the gradient of Eq. (11), the mean of CE(A_w(x), y) over all images.

    Args:
        weights: w, (K,), at which the gradient is taken.
        batches: the images, their labels and the clients' logits on them.
        ensemble: A_w.

    Returns:
        (K,) of -1, 0 and 1.
    """
    gradient = torch.zeros_like(weights)
    number = max(1, MAX_LOGITS // batches[0].logits.numel())
    for first in range(0, len(batches), number):
        chunk = batches[first : first + number]
        logits = torch.cat([batch.logits for batch in chunk], 1)
        labels = torch.cat([batch.labels for batch in chunk])
        gradient += _gradient_of_sum(weights, logits, labels, ensemble)
    return gradient.sign()


def _gradient_of_sum(weights: Tensor, logits: Tensor, labels: Tensor, ensemble: Ensemble) -> Tensor:
    weights = weights.detach().requires_grad_()
    loss = F.cross_entropy(ensemble(logits, labels, weights), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, weights)
    return gradient


def stepped_weights(
    weights: Tensor,
    batches: Sequence[PoolBatch],
    ensemble: Ensemble,
    step: float,
    run: Runner = eager,
    captured: Sequence[object] = (),
) -> Tensor:
    """Eq. (12): Normalize(w - mu sign(gradient of (11))).

    Args:
        weights: w, (K,).
        batches: the images of (11). The step on a single batch, of which there may be thousands in
            an epoch, is one piece of work for the runner.
        ensemble: A_w.
        step: mu.
        run: how that piece runs on the device.
        captured: what the ensemble reads beside its arguments.
    """

    def work(logits: Tensor, labels: Tensor, weights: Tensor, size: Tensor) -> Outputs:
        sign = _gradient_of_sum(weights, logits, labels, ensemble).sign()
        return (normalise_weights(weights - size * sign),)

    if len(batches) > 1:
        sign = weight_gradient_sign(weights, batches, ensemble)
        return normalise_weights(weights - step * sign)
    (batch,) = batches
    size = torch.full((), step, dtype=weights.dtype, device=weights.device)
    inputs = (batch.logits, batch.labels, weights, size)
    updated: Tensor = run("weigh", work, inputs, captured)[0]
    return updated


def normalise_weights(weights: Tensor) -> Tensor:
    """Normalize of Eq. (12): clamp each weight to [0, 1].

    Weights that are all 0 would be no ensemble: they start again at 1/n.
    """
    bounded = weights.detach().clamp(0, 1)
    return bounded.masked_fill(~(bounded.sum() > 0), 1 / len(bounded))
