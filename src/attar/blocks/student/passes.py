"""Passes of a student over the pool: every image once, with the ensemble's answer to it."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attar.blocks.execution import Outputs
from attar.blocks.images import Augment, Pool, apply_augmentation, draw_augmentation
from attar.blocks.student.context import DistillationContext
from attar.blocks.student.distil import DataFreeState, StudentTraining, student_step
from attar.blocks.student.losses import distillation


def cached_batches(
    pool: Pool, batch_size: int, draws: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every batch of the pool once, in random order: images, and the cached answers."""
    for places in pool.batches(batch_size, draws):
        yield pool.images(places), pool.extras("answers", places)


def augmented_batches(
    context: DistillationContext, state: DataFreeState, batch_size: int, augment: Augment
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every batch of the pool once, in random order: images, and the ensemble's answers.

    Each image is augmented anew and the ensemble, which never changes, is asked about it with its
    stored label. It answers several batches in one call: an answer does not depend on the batch.
    """
    pieces = list(state.pool.batches(batch_size, state.draws, context.batches_together))
    sizes = [len(batch) for places in pieces for batch in places.split(batch_size)]
    choices = [draw_augmentation(augment, size, state.draws) for size in sizes]
    choice = torch.cat(choices).to(context.device).split([len(places) for places in pieces])

    def ask(images: Tensor, labels: Tensor) -> Outputs:
        with torch.no_grad():
            return (context.ensemble(state, images, labels),)

    captured = (context.teachers, state)
    for places, crops in zip(pieces, choice, strict=True):
        images = apply_augmentation(state.pool.images(places), crops)
        inputs = (images, state.pool.labels(places))
        (answers,) = context.run("ask about augmented images", ask, inputs, captured)
        yield from zip(images.split(batch_size), answers.clone().split(batch_size), strict=True)


def distil_epoch(
    context: DistillationContext,
    state: DataFreeState,
    training: StudentTraining,
    batch_size: int,
) -> Tensor:
    """One pass of the student over the pool, on the answers that the pool caches.

    Returns:
        The mean over the batches of T^2 KL(answers || student), Co-Boosting Eq. (4).
    """

    batches = cached_batches(state.pool, batch_size, state.draws)
    return _distil_batches(context, state, training, batches)


def distil_augmented_epoch(
    context: DistillationContext,
    state: DataFreeState,
    training: StudentTraining,
    batch_size: int,
    augment: Augment,
) -> Tensor:
    """One pass of the student over the pool, each image augmented anew.

    The ensemble answers the augmented images, so its answers cannot be cached.

    Returns:
        The mean over the batches of T^2 KL(ensemble || student).
    """
    batches = augmented_batches(context, state, batch_size, augment)
    return _distil_batches(context, state, training, batches)


def _distil_batches(
    context: DistillationContext,
    state: DataFreeState,
    training: StudentTraining,
    batches: Iterable[tuple[Tensor, Tensor]],
) -> Tensor:
    """One step of the student on each batch of images and answers; the mean of T^2 KL."""

    def loss_of(
        context: DistillationContext, state: DataFreeState, images: Tensor, answers: Tensor
    ) -> Tensor:
        student = context.student_logits(state.student, images)
        return distillation(student, answers, training.temperature)

    losses = [student_step(context, state, training, loss_of, *batch) for batch in batches]
    return torch.stack(losses).mean()
