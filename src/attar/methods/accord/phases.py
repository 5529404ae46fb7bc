"""What accord does before the student learns: guess counts, draw from decoders, draw sketches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from attar.blocks.images import Decoders, Pool, sketches
from attar.blocks.student import (
    GeneratorSettings,
    GuidedState,
    StudioState,
    blank_answers,
    guidance,
    open_studio,
    pixel_losses,
    remember,
    room_generator,
)
from attar.core import Phase, Upload
from attar.methods.accord.teacher import Teacher, mix_with_labels
from attar.seeds import derive

GUESS_IMAGES = 8  # of each class, in the inversion that guesses counts
SKETCH_BATCHES = 4  # in a step of the phase "sketch"
MAX_REPETITION = 10.0  # how much more often a rare sketch is drawn than a common one
_TINY = 1e-12


class Settings(GeneratorSettings, Protocol):
    """How withheld counts are guessed, and how many sketches there are."""

    @property
    def sketches(self) -> int: ...

    @property
    def guess_steps(self) -> int: ...
    @property
    def guess_lr(self) -> float: ...
    @property
    def repeats(self) -> int: ...
    @property
    def guidance_floor(self) -> float: ...


@dataclass(frozen=True)
class Context:
    """What ``prepare`` makes.

    Attributes:
        teacher: the clients with classifiers, as one teacher.
        weak: the uploads with a decoder.
        allotted: int64 (weak, C), images that each decoder draws of each class.
    """

    teacher: Teacher
    weak: Sequence[Upload]
    allotted: Tensor


@dataclass
class AccordState(StudioState):
    """Everything that changes.

    Attributes:
        drawn: images that decoders drew, with the answers of the teacher.
        sketched: sketches, with the answers of the teacher.
        mean: running mean of the student's weights.
        learned: steps that the student has taken.
    """

    drawn: Pool
    sketched: Pool
    mean: dict[str, Tensor]
    learned: int


def start_accord(context: Context, settings: Settings, *, start_from: str) -> AccordState:
    """A student at its start, and empty pools."""
    room = context.teacher.context
    shape = room.server.task.input_shape
    notes = blank_answers(room)
    maker = room_generator(room, settings) if settings.generator_steps else None
    studio = open_studio(
        room, settings, maker, start_from=start_from, batches=1 if maker else 0, notes=notes
    )
    return AccordState(
        **vars(studio),
        drawn=Pool(shape, max(1, int(context.allotted.sum())), room.device, notes=notes),
        sketched=Pool(shape, max(1, settings.sketches), room.device, whole_bytes=True, notes=notes),
        mean={name: weight.clone() for name, weight in studio.student.state_dict().items()},
        learned=0,
    )


def preparations(context: Context, settings: Settings) -> list[Phase]:
    """The phases before the student learns, as far as they are needed."""
    phases = []
    if context.teacher.guesses:
        phases.append(guess_phase(context.teacher, settings))
    if context.weak:
        phases.append(draw_phase(context, settings.batch_size))
    if settings.sketches:
        phases.append(sketch_phase(context.teacher, settings))
    return phases


def guess_phase(teacher: Teacher, settings: Settings) -> Phase:
    """Fill the guidance u_kc, a client in each step, from which withheld counts are guessed.

    Pixels are moved down the client's loss of each class; u says how far the loss falls, from the
    highest loss of *any* class: a class that the client sees in noise (it holds little else) has a
    low loss from the beginning. u spans orders of magnitude, so the geometric mean over several
    beginnings is taken.
    """
    room = teacher.context

    def step(state: GuidedState) -> dict[str, float]:
        row = state.step
        classes = room.teachers.known[row].nonzero().squeeze(1)
        log_guidance = []
        for number in range(settings.repeats):
            losses = pixel_losses(
                lambda images: room.teachers.one(row, images),
                classes,
                room.server.task.input_shape,
                derive(room.server.seed, "guess", number),
                steps=settings.guess_steps,
                lr=settings.guess_lr,
                images=GUESS_IMAGES,
            )
            u = guidance(losses, settings.guidance_floor, "client")
            log_guidance.append(u.clamp(min=_TINY).log())
        state.guidance[row, classes] = torch.stack(log_guidance).mean(0).exp()
        return {}

    work = 2.0 * settings.repeats * settings.guess_steps
    return Phase("guess", len(room.uploads), step, lambda _: work, learns=False)


def draw_phase(context: Context, batch_size: int) -> Phase:
    """Have the decoders draw their images of every class, and the teacher answer them; one step."""
    teacher = context.teacher
    room = teacher.context

    def step(state: AccordState) -> dict[str, float]:
        def answer(images: Tensor, labels: Tensor) -> Tensor:
            return mix_with_labels(teacher.answer(images, state), labels, room.teachers.known)

        decoders = Decoders(context.weak, room.server)
        for column in range(context.allotted.shape[1]):
            images = decoders.of_class(column, context.allotted[:, column])
            for batch in images.split(batch_size) if len(images) else ():
                labels = torch.full((len(batch),), column, device=batch.device)
                remember(room, state, batch, labels, answer, state.drawn)
        return {}

    work = float(context.allotted.sum()) / 100
    return Phase("draw", 1, step, lambda _: work, learns=False)


def sketch_phase(teacher: Teacher, settings: Settings) -> Phase:
    """Draw sketches and have the teacher answer them; some batches in each step.

    The teacher does not change, so one answer for each sketch is enough.
    """
    room = teacher.context
    number = settings.sketches
    size = SKETCH_BATCHES * settings.batch_size

    def step(state: AccordState) -> dict[str, float]:
        wanted = min(size, number - state.step * size)
        images = sketches(wanted, room.server.task.input_shape, state.draws, room.device)
        images = state.sketched.seen(images)
        with torch.no_grad():
            answers = torch.cat(
                [teacher.answer(batch, state) for batch in images.split(settings.batch_size)]
            )
        state.sketched.add(images, answers.argmax(1), answers=answers)
        return {}

    work = float(SKETCH_BATCHES)
    return Phase("sketch", -(-number // size), step, lambda _: work, learns=False)


def sketch_batches(
    pool: Pool, draws: torch.Generator, number: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of sketches with the teacher's answers, balanced over the classes of these answers.

    The teacher sees few classes in most sketches. Each class comes equally often, but a rare sketch
    at most ten times as often as one of the commonest class.

    Args:
        pool: of sketches, whose labels are the teacher's first choices.
        draws: random numbers.
        number: of sketches, in all batches.
        batch_size: of them in each batch.

    Yields:
        Images (B, C, H, W) and answers (B, classes).
    """
    if not len(pool):
        return
    labels = pool.labels(torch.arange(len(pool), device=pool.device)).cpu()
    odds = 1 / torch.bincount(labels)[labels]
    odds = odds.clamp(max=MAX_REPETITION * odds.min())
    order = torch.multinomial(odds, number, replacement=True, generator=draws).to(pool.device)
    for places in order.split(batch_size):
        yield pool.images(places), pool.notes("answers", places)
