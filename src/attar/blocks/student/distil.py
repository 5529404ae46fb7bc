"""Where synthetic images are made, kept and learned from: the steps that the generator family
has in common.

A method's own part is its losses. It hands its settings over as they are; the fields that are
read here bear the same names in every method.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from attar.blocks.execution import Outputs, gradient_step
from attar.blocks.images import (
    Augment,
    Loss,
    Pool,
    Synthesis,
    apply,
    draw,
    draw_noise,
    new_generator,
    train_generator,
)
from attar.blocks.images.inversion import Keep
from attar.blocks.student.context import Classroom, GuidedState, no_guidance
from attar.blocks.student.losses import distillation
from attar.blocks.student.student import new_student, resting
from attar.core import Result
from attar.seeds import generator as seeded

Schedule = Literal["constant", "cosine"]
GALLERY = 64  # synthetic images that a result shows
# norm of the student's gradient in later rounds, as in Co-Boosting's code, where a method does not
# bound it
GENTLE = 10.0
NO_BATCHNORM = (
    "No client has BatchNorm: the BatchNorm term found nothing to compare and was left out."
)


class LearningSettings(Protocol):
    """How the student learns from the pool."""

    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def student_lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def temperature(self) -> float: ...
    @property
    def clip(self) -> float | None: ...
    @property
    def pool_limit(self) -> int | None: ...
    @property
    def pool_bytes(self) -> bool: ...


class GeneratorSettings(LearningSettings, Protocol):
    """How the generator is trained for one batch of images."""

    @property
    def generator_steps(self) -> int: ...
    @property
    def generator_lr(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def noise(self) -> int: ...
    @property
    def generator_width(self) -> int: ...
    @property
    def reset_generator(self) -> bool: ...
    @property
    def train_noise(self) -> bool: ...
    @property
    def keep(self) -> Keep: ...


@dataclass
class StudioState(GuidedState):
    """Student, generator (None where pixels are optimised directly), pool, and what is drawn at
    random.
    """

    student: nn.Module
    optimiser: Optimizer
    schedule: LRScheduler
    generator: nn.Module | None
    pool: Pool
    draws: torch.Generator


def open_studio(
    room: Classroom,
    settings: LearningSettings,
    generator: nn.Module | None = None,
    *,
    start_from: str = "fresh",
    batches: int = 1,
    notes: Mapping[str, Tensor] | None = None,
) -> StudioState:
    """Everything that changes, at its beginning: a student, and an empty pool, to which an epoch
    adds so many batches.
    """
    student = room.quickened(new_student(room.plan, room.uploads, room.server, start_from))
    optimiser = SGD(
        student.parameters(),
        lr=settings.student_lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    schedule: LRScheduler = LambdaLR(optimiser, lambda _: 1.0)
    if settings.schedule == "cosine":
        schedule = CosineAnnealingLR(optimiser, max(1, settings.epochs))
    capacity = settings.pool_limit or max(1, settings.epochs * batches * settings.batch_size)
    pool = Pool(
        room.server.task.input_shape,
        capacity,
        room.device,
        whole_bytes=settings.pool_bytes,
        notes=notes,
    )
    return StudioState(
        no_guidance(room),
        student,
        optimiser,
        schedule,
        generator,
        pool,
        seeded(room.server.seed, "studio"),
    )


def room_generator(room: Classroom, settings: GeneratorSettings, *purpose: int) -> nn.Module:
    shape, seed = room.server.task.input_shape, room.server.seed
    return room.quickened(
        new_generator(shape, settings.noise, settings.generator_width, seed, *purpose).to(
            room.device
        )
    )


def generate(
    room: Classroom,
    settings: GeneratorSettings,
    state: StudioState,
    loss_of: Loss,
    *given: Tensor,
    show: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Train the generator on fresh noise and ``loss_of(images, *given)``; a batch of its images,
    and the loss.
    """
    assert state.generator is not None
    if settings.reset_generator:
        fresh = room_generator(room, settings, state.step)
        state.generator.load_state_dict(
            fresh.state_dict()
        )  # in place: recorded steps know where its weights lie
    noise = draw_noise(settings.batch_size, settings.noise, state.draws, room.device)
    how = Synthesis(
        settings.generator_steps,
        settings.generator_lr,
        settings.beta1,
        settings.keep,
        settings.clip,
        room.run,
        (state.student, state),
        show,
    )
    with resting(state.student):
        return train_generator(
            state.generator, noise, loss_of, how, given, train_noise=settings.train_noise
        )


def learn(
    room: Classroom,
    settings: LearningSettings,
    state: StudioState,
    loss_of: Callable[..., Tensor],
    *inputs: Tensor,
) -> Tensor:
    """One step of the student on ``loss_of(*inputs)``; the loss before it.

    In a later round the student goes on from a trained one, which the first images made against
    it would break (docs/rounds.md).
    """
    clip = GENTLE if settings.clip is None and "model" in room.server.memory else settings.clip
    return gradient_step(
        room.run, "learn", state.optimiser, loss_of, inputs, (state.student, state), clip
    )


Answer = Callable[[Tensor, Tensor], Tensor]
"""What an ensemble says: (images, labels) -> logits."""


def blank_answers(room: Classroom) -> dict[str, Tensor]:
    """What a pool that remembers keeps of an image."""
    return {"answers": torch.zeros(room.num_classes)}


def remember(
    room: Classroom,
    state: StudioState,
    images: Tensor,
    labels: Tensor,
    answer: Answer,
    pool: Pool | None = None,
) -> None:
    """The pool grows by a batch, and by what an ensemble that never changes says to it: asked
    once, it serves every pass.

    ``pool``: another than the state's.
    """
    pool = state.pool if pool is None else pool

    def ask(images: Tensor, labels: Tensor) -> Outputs:
        with torch.no_grad():
            return (answer(images, labels),)

    (answers,) = room.run("ask", ask, (pool.seen(images), labels), (room.teachers, state, pool))
    assert answers is not None
    pool.add(images, labels, answers=answers)


def remembered(
    settings: LearningSettings, state: StudioState, pool: Pool | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every batch of the pool once, in random order: images, and what was said to them."""
    pool = state.pool if pool is None else pool
    for places in pool.batches(settings.batch_size, state.draws):
        yield pool.images(places), pool.notes("answers", places)


def distil_pool(room: Classroom, settings: LearningSettings, state: StudioState) -> Tensor:
    """One pass of the student over the pool, Co-Boosting Eq. (4): KL to the answers that it
    remembers; the mean loss.
    """

    def of_batch(images: Tensor, answers: Tensor) -> Tensor:
        return distillation(room.plan.logits(state.student, images), answers, settings.temperature)

    return torch.stack(
        [learn(room, settings, state, of_batch, *batch) for batch in remembered(settings, state)]
    ).mean()


def distil_anew(
    room: Classroom,
    settings: LearningSettings,
    state: StudioState,
    answer: Answer,
    augment: Augment,
) -> Tensor:
    """One pass of the student over the pool, every image cut and mirrored anew: the ensemble is
    asked about what the student sees.
    """

    def of_batch(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            answers = answer(images, labels)
        return distillation(room.plan.logits(state.student, images), answers, settings.temperature)

    losses = []
    for places in state.pool.batches(settings.batch_size, state.draws):
        cuts = draw(augment, len(places), state.draws).to(places.device)
        images = apply(state.pool.images(places), cuts)
        losses.append(learn(room, settings, state, of_batch, images, state.pool.labels(places)))
    return torch.stack(losses).mean()


# what a batch costs whose answers are known, where one that the clients are asked about costs 1
REMEMBERED = 0.25


def work_of_epoch(
    generator_steps: int, more: float = 0.0, *, grows: bool = True, asked: bool = False
) -> Callable[[int], float]:
    """An epoch's cost: its generator steps, the batches of a pool that ``grows`` by one each
    epoch, and those that are always there.

    ``asked``: the clients are asked about them in every epoch.
    """
    each = 1.0 if asked else REMEMBERED
    return lambda epoch: 2.0 * generator_steps + each * ((epoch + 1) * grows + more)


def student_result(
    room: Classroom,
    state: StudioState,
    *,
    wants_batchnorm: bool = False,
    weights: Mapping[str, Tensor] | None = None,
) -> Result:
    """The student, a look at the newest synthetic images, and a word if the BatchNorm term had
    nothing to do.

    ``weights``: those that are delivered, where they are not the student's last.
    """
    remarks = (NO_BATCHNORM,) if wants_batchnorm and not room.teachers.have_batchnorm() else ()
    gallery = {"synthetic": state.pool.newest(GALLERY)} if len(state.pool) else {}
    student = room.plan.part_of(state.student.state_dict() if weights is None else weights)
    return Result({"student": student}, {}, gallery, remarks)
