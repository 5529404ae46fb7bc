"""``accord`` at work in a run: what its teacher uses of the uploads, its answers and words; what
the student learns from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from attar.blocks.ensemble import (
    Familiarity,
    Spread,
    accord,
    even_shares,
    gate_from,
    guessed_counts,
    shares_of,
    told_counts,
)
from attar.blocks.images import Decoders, Pool, sketches
from attar.blocks.student import (
    Classroom,
    GeneratorSettings,
    GuidedState,
    StudioState,
    blank_answers,
    client_guidance,
    open_studio,
    pixel_losses,
    remember,
    room_generator,
)
from attar.core import Mixture, Part, Phase, Upload
from attar.seeds import derive

Use = Literal["models", "counts", "statistics", "all"]
Shares = Literal["sent", "guessed", "even"]

GUESSED_ON = 8  # images of each class
SKETCHED = 4  # batches in a step
RAREST = 10.0  # how much more often a rare sketch is repeated than a common one, at most
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


@dataclass
class AccordState(StudioState):
    drawn: Pool  # images that decoders made
    sketched: Pool  # and those that a program drew, with the teacher's answers
    mean: dict[str, Tensor]  # of the student's weights
    learned: int  # steps of the student


@dataclass(frozen=True)
class Blend:
    """p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c, of which every factor
    may be missing.
    """

    room: Classroom
    counts: Tensor  # (K, C), as sent
    told: Tensor  # (K, 1) bool: whose counts are used as sent
    amounts: Tensor  # (K, 1) n_k, which everybody sends
    statistics: tuple[Part | None, ...]  # empty: there is no gate
    familiar: Familiarity | Spread | None
    how: Shares
    guesses: bool  # whether somebody's counts have to be guessed by inversion
    sharpness: float  # b
    temperature: float  # t

    def shares(self, state: GuidedState) -> Tensor:
        """s_kc, (K, C): from counts, those that were not sent guessed from U; in doubt where
        there is no gate.
        """
        known, counts = self.room.teachers.known, self.counts
        if self.how == "even":
            return even_shares(known)
        if self.guesses:
            counts = torch.where(self.told, counts, guessed_counts(state.guidance, self.amounts))
        return shares_of(counts, known, doubt=self.familiar is None)

    def answer(self, images: Tensor, state: GuidedState) -> Tensor:
        """log p(c|x), (B, C)."""
        return accord(
            images,
            self.room.teachers,
            self.familiar,
            self.shares(state),
            self.sharpness,
            self.temperature,
        )

    def answer_drawn(self, images: Tensor, labels: Tensor, state: GuidedState) -> Tensor:
        """The same of images that decoders drew for these labels."""
        return with_labels(self.answer(images, state), labels, self.room.teachers.known)

    def deployable(self, state: GuidedState) -> Mixture:
        members = tuple(upload.parts["classifier"] for upload in self.room.uploads)
        shares, classes = self.shares(state).cpu(), self.room.server.task.classes
        return Mixture(
            members, "accord", shares, classes, self.statistics, self.sharpness, self.temperature
        )

    @property
    def knows_all(self) -> bool:
        """Whether there is a client with a classifier for every class."""
        return len(self.room.teachers.somewhere) == self.room.num_classes

    def ingredients(self) -> tuple[str, ...]:
        """What the teacher is made of, a sentence each."""
        clients, sent = len(self.room.uploads), int(self.told.sum())
        return self._shares_told(sent, clients), f"Familiarity gate: {self._gate_told(clients)}."

    def _gate_told(self, clients: int) -> str:
        if self.familiar is None:
            return "none"
        heard = clients - int(self.familiar.silent.sum())
        return f"from {'the statistics' if self.statistics else 'BatchNorm'} of {heard} of {clients} clients"

    def _shares_told(self, sent: int, clients: int) -> str:
        if self.how == "even":
            return "Class shares: the same for everybody that knows a class."
        sources = [f"from the label counts of {sent} of {clients} clients"] if sent else []
        sources += (
            [f"guessed by inversion for {clients - sent} of {clients} clients"]
            if clients > sent
            else []
        )
        return f"Class shares: {', '.join(sources)}."


@dataclass(frozen=True)
class Context:
    """What ``prepare`` makes."""

    teacher: Blend
    weak: Sequence[Upload]  # who sent a decoder
    allotted: Tensor  # int64 (weak, C): images that each decoder makes of each class


def blend(
    room: Classroom, use: Use, how: Shares, familiarity: float, spread: float, temperature: float
) -> Blend:
    """The teacher that can be made of what was sent, and of what of that may be used."""
    counts, told = told_counts(room.uploads, room.server.task.classes)
    told &= how == "sent" and use in ("counts", "all")
    statistics = _statistics(room.uploads) if familiarity and use in ("statistics", "all") else ()
    sharpness = familiarity if statistics else spread
    gate = gate_from(room.teachers, statistics) if sharpness else None
    familiar = None if gate is None else gate.to(room.device)
    amounts = torch.tensor([[float(upload.num_examples)] for upload in room.uploads])
    guesses = how != "even" and not bool(told.all())
    own = counts.to(room.device), told[:, None].to(room.device), amounts.to(room.device)
    return Blend(room, *own, statistics, familiar, how, guesses, sharpness, temperature)


def open_accord(context: Context, settings: Settings, *, start_from: str) -> AccordState:
    """Everything that changes, at its beginning."""
    room = context.teacher.room
    maker = room_generator(room, settings) if settings.generator_steps else None
    shape, notes = room.server.task.input_shape, blank_answers(room)
    studio = open_studio(
        room, settings, maker, start_from=start_from, batches=1 if maker else 0, notes=notes
    )
    drawn = Pool(shape, max(1, int(context.allotted.sum())), room.device, notes=notes)
    sketched = Pool(shape, max(1, settings.sketches), room.device, whole_bytes=True, notes=notes)
    mean = {name: weight.clone() for name, weight in studio.student.state_dict().items()}
    return AccordState(**vars(studio), drawn=drawn, sketched=sketched, mean=mean, learned=0)


def preparations(context: Context, settings: Settings) -> list[Phase]:
    """What comes before the student learns: withheld counts are guessed, decoders draw, sketches
    are made and answered.
    """
    teacher, weak = context.teacher, context.weak
    guessed = [guess_phase(teacher, settings)] if teacher.guesses else []
    drawn = [draw_phase(teacher, weak, context.allotted, settings.batch_size)] if weak else []
    return [*guessed, *drawn, *([sketch_phase(teacher, settings)] if settings.sketches else [])]


def guess_phase(teacher: Blend, settings: Settings) -> Phase:
    """U of every client, a step each: pixels are moved towards each class, and how far the loss
    falls says how well it is known.

    It falls from the client's highest loss of any class: a class that it sees in noise, as one
    who holds little else does, has a low one from the beginning. The geometric mean over
    ``repeats`` beginnings: u spans orders of magnitude, and one lucky start shall not decide.
    """
    room = teacher.room

    def step(state: GuidedState) -> dict[str, float]:
        row = state.step
        classes = room.teachers.known[row].nonzero().squeeze(1)
        found = []
        for number in range(settings.repeats):
            losses = pixel_losses(
                lambda images: room.teachers.one(row, images),
                classes,
                room.server.task.input_shape,
                derive(room.server.seed, "guess", number),
                steps=settings.guess_steps,
                lr=settings.guess_lr,
                images=GUESSED_ON,
            )
            found.append(client_guidance(losses, settings.guidance_floor).clamp(min=_TINY).log())
        state.guidance[row, classes] = torch.stack(found).mean(0).exp()
        return {}

    return Phase(
        "guess",
        len(room.uploads),
        step,
        lambda _: 2.0 * settings.repeats * settings.guess_steps,
        learns=False,
    )


def draw_phase(teacher: Blend, weak: Sequence[Upload], allotted: Tensor, batch_size: int) -> Phase:
    """One step: the decoders' images of every class, ``allotted`` (K, C) of them, become a pool,
    answered by the teacher.
    """
    room = teacher.room

    def step(state: AccordState) -> dict[str, float]:
        decoders = Decoders(weak, room.server)
        for column in range(allotted.shape[1]):
            images = decoders.of_class(column, allotted[:, column])
            for some in images.split(batch_size) if len(images) else ():
                labels = torch.full((len(some),), column, device=some.device)
                remember(
                    room,
                    state,
                    some,
                    labels,
                    lambda x, y: teacher.answer_drawn(x, y, state),
                    state.drawn,
                )
        return {}

    return Phase("draw", 1, step, lambda _: float(allotted.sum()) / 100, learns=False)


def sketch_phase(teacher: Blend, settings: Settings) -> Phase:
    """Sketches, some batches in a step, and what the teacher says of them. It does not change:
    once is enough.
    """
    room, number, size = teacher.room, settings.sketches, SKETCHED * settings.batch_size

    def step(state: AccordState) -> dict[str, float]:
        some = min(size, number - state.step * size)
        images = state.sketched.seen(
            sketches(some, room.server.task.input_shape, state.draws, room.device)
        )
        with torch.no_grad():
            answers = torch.cat(
                [teacher.answer(batch, state) for batch in images.split(settings.batch_size)]
            )
        state.sketched.add(images, answers.argmax(1), answers=answers)
        return {}

    return Phase("sketch", -(-number // size), step, lambda _: float(SKETCHED), learns=False)


def sketch_batches(
    state: AccordState, number: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Sketches and the teacher's answers, drawn so that every class that it sees in them comes
    up equally often.

    Teachers see few classes in most sketches. A rare class is repeated ten times as often as the
    commonest one at most.
    """
    pool = state.sketched
    if not len(pool):
        return
    first = pool.labels(torch.arange(len(pool), device=pool.device)).cpu()
    wanted = 1 / torch.bincount(first)[first]
    wanted = wanted.clamp(max=RAREST * wanted.min())
    for places in (
        torch.multinomial(wanted, number, replacement=True, generator=state.draws)
        .to(pool.device)
        .split(batch_size)
    ):
        yield pool.images(places), pool.notes("answers", places)


def with_labels(answers: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """log of (p + 1_y) / 2: half of it is the word of the client whose decoder drew the image;
    all of it where nobody knows y.
    """
    said = answers.exp()
    label, trust = (
        torch.zeros_like(said).scatter(1, labels[:, None], 1.0),
        0.5 * known.any(0)[labels, None],
    )
    return (trust * said + (1 - trust) * label).clamp(min=_TINY).log()


def _statistics(uploads: Sequence[Upload]) -> tuple[Part | None, ...]:
    found = tuple(upload.parts.get("statistics") for upload in uploads)
    return found if any(part is not None for part in found) else ()
