"""The steps of data-free distillation: images are made, answered, pooled, and learned by a student.

A method's own part is its losses and the order of these steps in its ``epoch``. A loss of a method
is a function ``loss_of(context, state, images, ...)`` from tensors to a scalar tensor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from attar.blocks.execution import Outputs, gradient_step
from attar.blocks.images import (
    GeneratorTraining,
    PlainGeneratorTraining,
    Pool,
    PoolSettings,
    SyntheticBatch,
    draw_noise,
    generate_batch,
    new_generator,
)
from attar.blocks.student.context import DistillationContext, GuidedState, blank_guidance
from attar.blocks.student.student import new_student
from attar.core import Result, State
from attar.seeds import rng
from attar.settings import NonNegative, Positive, flat

StudentSchedule = Literal["constant", "cosine"]
"""How the student's step size changes over the epochs."""

GALLERY = 64  # synthetic images that a result shows
# Largest norm of the student's gradient in later rounds, as in Co-Boosting's code, where the
# settings give none.
LATER_ROUNDS_CLIP = 10.0
NO_BATCHNORM = (
    "No client has BatchNorm: the BatchNorm term found nothing to compare and was left out."
)
# Cost of a batch with cached answers, where one that the clients are asked about costs 1.
CACHED_COST = 0.25


@dataclass(frozen=True)
class StudentTraining:
    """How the student learns from synthetic images.

    Attributes:
        lr: step size eta_S of SGD.
        momentum: of SGD.
        weight_decay: of SGD.
        schedule: of the step size, over all epochs.
        temperature: of the distillation.
        clip: largest norm of the gradient, of the generator's as well; None: no limit.
    """

    lr: Positive = flat("student_lr", 0.01)  # eta_S
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 0.0
    schedule: StudentSchedule = "constant"
    temperature: Positive = 1.0  # of the distillation
    clip: Positive | None = None  # largest norm of either net's gradient


@dataclass
class DataFreeState(GuidedState):
    """What changes in a data-free run.

    Attributes:
        student: the net that is distilled.
        optimiser: of the student.
        schedule: of the student's step size.
        generator: makes images from noise; None where pixels are optimised directly.
        pool: the synthetic images so far.
        draws: the source of chance, on the CPU.
    """

    student: nn.Module
    optimiser: Optimizer
    schedule: LRScheduler
    generator: nn.Module | None
    pool: Pool
    draws: torch.Generator


LossOf = Callable[..., Tensor]
"""(context, state, images, ...) to a scalar."""

Answer = Callable[[Tensor, Tensor], Tensor]
"""(images, labels) to an ensemble's logits."""


# --- the beginning --------------------------------------------------------------------------------


def start_data_free(
    context: DistillationContext,
    training: StudentTraining,
    epochs: int,
    pool: Pool,
    generator: nn.Module | None = None,
    *,
    start_from: str = "fresh",
) -> DataFreeState:
    """The state before the first epoch, with a student on the server's device.

    Args:
        context: what ``prepare`` made.
        training: how the student learns.
        epochs: over which its step size is scheduled.
        pool: for the synthetic images, see ``start_pool``.
        generator: makes the images; None where pixels are optimised directly.
        start_from: "fresh", or the "average" or "uniform" mean of clients, see ``new_student``.
    """
    fresh = new_student(context.plan, context.uploads, context.server, start_from)
    student = context.maybe_compile(fresh)
    optimiser = SGD(
        student.parameters(),
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    schedule: LRScheduler = LambdaLR(optimiser, lambda _: 1.0)
    if training.schedule == "cosine":
        schedule = CosineAnnealingLR(optimiser, max(1, epochs))
    return DataFreeState(
        guidance=blank_guidance(context),
        student=student,
        optimiser=optimiser,
        schedule=schedule,
        generator=generator,
        pool=pool,
        draws=rng(context.server.seed, "studio"),
    )


def start_pool(
    context: DistillationContext,
    settings: PoolSettings,
    images: int,
    extras: Mapping[str, Tensor] | None = None,
) -> Pool:
    """An empty pool on the server's device.

    Args:
        context: the task and the device.
        settings: its limit, and whether it keeps bytes.
        images: how many will be added; the capacity where the settings give no limit.
        extras: what is kept of every image beside its label, see ``Pool``; ``answer_extras``
            for the ensemble's answers.
    """
    return Pool(
        context.server.task.input_shape,
        settings.limit or max(1, images),
        context.device,
        as_bytes=settings.as_bytes,
        extras=extras,
    )


def answer_extras(context: DistillationContext) -> dict[str, Tensor]:
    """The extras of a pool that caches the ensemble's answer to every image."""
    return {"answers": torch.zeros(context.num_classes)}


def start_generator(
    context: DistillationContext, training: PlainGeneratorTraining, *purpose: int
) -> nn.Module:
    """A fresh image generator on the server's device; ``purpose`` tells apart several of them."""
    generator = new_generator(
        context.server.task.input_shape,
        training.noise,
        training.width,
        context.server.seed,
        *purpose,
    )
    return context.maybe_compile(generator.to(context.device))


# --- the steps ------------------------------------------------------------------------------------


def start_batch(
    context: DistillationContext,
    state: DataFreeState,
    loss_of: LossOf,
    training: GeneratorTraining,
    batch_size: int,
    *,
    clip: float | None = None,
    history: bool = False,
) -> SyntheticBatch:
    """Start a batch of the generator on fresh noise, with fresh moments of its Adam.

    Each ``step(*inputs)`` of the batch is one Adam step on
    ``loss_of(context, state, images, *inputs)``. Freeze the student meanwhile.

    Args:
        context: what ``prepare`` made.
        state: its generator is trained, reset before where the settings say so.
        loss_of: the generator's loss.
        training: how the generator is trained.
        batch_size: images in the batch.
        clip: largest norm of the generator's gradient; None: no limit.
        history: keep the images of every step.
    """
    assert state.generator is not None
    if training.reset:  # in place: recorded steps have the addresses of the weights
        fresh = start_generator(context, training, state.step)
        state.generator.load_state_dict(fresh.state_dict())
    return generate_batch(
        state.generator,
        draw_noise(batch_size, training.noise, state.draws, context.device),
        partial(loss_of, context, state),
        training,
        clip=clip,
        history=history,
        run=context.run,
        captured=(state.student, state),
    )


def add_to_pool(
    context: DistillationContext, state: DataFreeState, images: Tensor, labels: Tensor
) -> None:
    """Add a batch to the pool, with the ensemble's answers if the pool caches them."""
    if "answers" in state.pool.extra_names:
        add_with_answers(context, state, images, labels, partial(context.ensemble, state))
    else:
        state.pool.add(images, labels)


def add_with_answers(
    context: DistillationContext,
    state: State,
    images: Tensor,
    labels: Tensor,
    answer: Answer,
    pool: Pool | None = None,
) -> None:
    """Add a batch to a pool, with the answers of an ensemble that never changes.

    Asked once, it serves every later pass over the pool.

    Args:
        context: what ``prepare`` made.
        state: what the answer may read.
        images: (B, C, H, W).
        labels: (B,).
        answer: from images, as the pool stores them, and labels to logits (B, C).
        pool: None: ``state.pool``.
    """
    if pool is None:
        assert isinstance(state, DataFreeState)
        pool = state.pool

    def ask(images: Tensor, labels: Tensor) -> Outputs:
        with torch.no_grad():
            return (answer(images, labels),)

    captured = (context.teachers, state, pool)
    (answers,) = context.run("ask", ask, (pool.as_stored(images), labels), captured)
    pool.add(images, labels, answers=answers)


def student_step(
    context: DistillationContext,
    state: DataFreeState,
    training: StudentTraining,
    loss_of: LossOf,
    *inputs: Tensor,
) -> Tensor:
    """Take one SGD step of the student on ``loss_of(context, state, *inputs)``.

    In a later round the student starts from a trained one, which the first images made against it
    would break: there the gradient is clipped in any case (docs/rounds.md).

    Returns:
        The loss before the step.
    """
    clip = training.clip
    if clip is None and "model" in context.server.memory:
        clip = LATER_ROUNDS_CLIP
    loss = partial(loss_of, context, state)
    captured = (state.student, state)
    return gradient_step(context.run, "learn", state.optimiser, loss, inputs, captured, clip)


def epoch_cost(
    generator_steps: int,
    *,
    fixed_batches: float = 0.0,
    grows: bool = True,
    cached: bool = True,
) -> Callable[[int], float]:
    """The relative cost of each epoch, as ``Phase.work`` wants it.

    Args:
        generator_steps: of an epoch.
        fixed_batches: batches that are learned in every epoch beside the pool.
        grows: whether the pool grows by a batch each epoch, and all of it is learned.
        cached: whether answers are cached; else the clients are asked in every epoch.
    """
    each = CACHED_COST if cached else 1.0
    return lambda epoch: 2.0 * generator_steps + each * ((epoch + 1) * grows + fixed_batches)


def student_result(
    context: DistillationContext,
    state: DataFreeState,
    *,
    wants_batchnorm: bool = False,
    weights: Mapping[str, Tensor] | None = None,
) -> Result:
    """The student and its newest synthetic images.

    Args:
        context: what ``prepare`` made.
        state: at the end of the run.
        wants_batchnorm: add a remark where no client has BatchNorm, whose term did nothing then.
        weights: of the delivered student; None: its last ones.
    """
    remarks = (NO_BATCHNORM,) if wants_batchnorm and not context.teachers.have_batchnorm() else ()
    images = {"synthetic": state.pool.newest(GALLERY)} if len(state.pool) else {}
    student = context.plan.part_of(state.student.state_dict() if weights is None else weights)
    return Result(models={"student": student}, images=images, remarks=remarks)
