"""What accord does before the student learns: guess counts, draw from decoders, draw sketches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attar.blocks.images import Decoders, Pool, procedural_images
from attar.blocks.student import (
    DataFreeState,
    DistillationContext,
    GuidedState,
    add_with_answers,
    client_guidance,
    pixel_losses,
)
from attar.core import Phase, Upload
from attar.methods.accord.teacher import Teacher, mix_with_labels
from attar.seeds import derive
from attar.settings import NonNegativeInt, Positive, PositiveInt, flat

GUESS_IMAGES = 8  # of each class, in the inversion that guesses counts
SKETCH_BATCHES = 4  # in a step of the phase "sketch"
MAX_REPETITION = 10.0  # how much more often a rare sketch is drawn than a common one
_TINY = 1e-12


@dataclass(frozen=True)
class Guessing:
    """The inversion by which withheld label counts are guessed.

    Attributes:
        steps: Adam steps on the pixels, for every client and class.
        lr: step size of Adam.
        repeats: beginnings, over which the geometric mean of the guidance is taken.
        floor: lower bound of the divisor of the guidance.
    """

    steps: PositiveInt = flat("guess_steps", 20)  # of the inversion that guesses withheld counts
    lr: Positive = flat("guess_lr", 0.05)
    repeats: PositiveInt = 2  # its beginnings
    floor: Positive = flat("guidance_floor", 1e-4)


@dataclass(frozen=True)
class Sketching:
    """The images that a program draws.

    Attributes:
        number: of sketches; 0: none.
        of_epoch: how many of them are learned in every epoch.
    """

    number: NonNegativeInt = flat("sketches", 12000)  # images that a program draws; 0: none
    of_epoch: PositiveInt = flat("sketches_of_epoch", 2560)  # learned in every epoch


@dataclass(frozen=True)
class AccordContext(DistillationContext):
    """What ``prepare`` makes.

    Attributes:
        teacher: the clients with classifiers, as one teacher.
        weak: the uploads with a decoder.
        allotted: int64 (weak, C), images that each decoder draws of each class.
    """

    teacher: Teacher = field(kw_only=True)
    weak: Sequence[Upload] = field(kw_only=True)
    allotted: Tensor = field(kw_only=True)

    def ensemble(self, state: GuidedState, images: Tensor, labels: Tensor) -> Tensor:
        """log p(c|x) (B, C) of accord's teacher; it does not look at target labels."""
        return self.teacher.answer(images, state.guidance)


@dataclass
class AccordState(DataFreeState):
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


def guess_phase(context: AccordContext, settings: Guessing) -> Phase:
    """Fill the guidance u_kc, a client in each step, from which withheld counts are guessed.

    Pixels are moved down the client's loss of each class; u says how far the loss falls, from the
    highest loss of *any* class: a class that the client sees in noise (it holds little else) has a
    low loss from the beginning. u spans orders of magnitude, so the geometric mean over several
    beginnings is taken.
    """
    teachers = context.teachers

    def step(state: GuidedState) -> dict[str, float]:
        client = state.step
        classes = teachers.known[client].nonzero().squeeze(1)
        log_guidance = []
        for number in range(settings.repeats):
            losses = pixel_losses(
                lambda images: teachers.run_one(client, images),
                classes,
                context.server.task.input_shape,
                derive(context.server.seed, "guess", number),
                steps=settings.steps,
                lr=settings.lr,
                images=GUESS_IMAGES,
            )
            u = client_guidance(losses, settings.floor)
            log_guidance.append(u.clamp(min=_TINY).log())
        state.guidance[client, classes] = torch.stack(log_guidance).mean(0).exp()
        return {}

    work = 2.0 * settings.repeats * settings.steps
    return Phase("guess", len(context.uploads), step, lambda _: work, learns=False)


def draw_phase(context: AccordContext, batch_size: int) -> Phase:
    """Have the decoders draw their images of every class, and the teacher answer them; one step."""

    def step(state: AccordState) -> dict[str, float]:
        def answer(images: Tensor, labels: Tensor) -> Tensor:
            answers = context.teacher.answer(images, state.guidance)
            return mix_with_labels(answers, labels, context.teachers.known)

        decoders = Decoders(context.weak, context.server)
        for column in range(context.allotted.shape[1]):
            images = decoders.generate(column, context.allotted[:, column])
            for batch in images.split(batch_size) if len(images) else ():
                labels = torch.full((len(batch),), column, device=batch.device)
                add_with_answers(context, state, batch, labels, answer, state.drawn)
        return {}

    work = float(context.allotted.sum()) / 100
    return Phase("draw", 1, step, lambda _: work, learns=False)


def sketch_phase(context: AccordContext, number: int, batch_size: int) -> Phase:
    """Draw ``number`` sketches and have the teacher answer them; some batches in each step.

    The teacher does not change, so one answer for each sketch is enough.
    """
    size = SKETCH_BATCHES * batch_size

    def step(state: AccordState) -> dict[str, float]:
        wanted = min(size, number - state.step * size)
        images = procedural_images(
            wanted, context.server.task.input_shape, state.draws, context.device
        )
        images = state.sketched.as_stored(images)
        with torch.no_grad():
            answers = torch.cat(
                [
                    context.teacher.answer(batch, state.guidance)
                    for batch in images.split(batch_size)
                ]
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
        yield pool.images(places), pool.extras("answers", places)
