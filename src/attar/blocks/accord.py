"""The teacher of ``accord`` at work in a run: what of the uploads it uses, its answers, and the words that say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from attar.blocks.classroom import Classroom, GuidedState
from attar.blocks.decoders import Decoders
from attar.blocks.ensemble import accord, accord_of
from attar.blocks.familiarity import Familiarity, Spread, gate_from
from attar.blocks.pool import Pool
from attar.blocks.shares import even_shares, evidence, guessed_evidence, shares_of, told_counts
from attar.blocks.stratify import guidance, pixel_losses
from attar.blocks.studio import StudioState
from attar.core import Mixture, Part, Phase, Server, Upload
from attar.seeds import derive

Use = Literal["models", "counts", "statistics", "all"]
Shares = Literal["sent", "guessed", "even"]

GUESSED_ON = 8  # images of each class
_TINY = 1e-12


class GuessSettings(Protocol):
    """How withheld counts are guessed."""

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


@dataclass(frozen=True)
class Blend:
    """p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c, of which every factor may be missing."""

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
        """s_kc, (K, C): from counts, those that were not sent guessed from U."""
        known = self.room.teachers.known
        if self.how == "even":
            return even_shares(known)
        found = evidence(self.counts)
        if self.guesses:
            found = torch.where(self.told, found, guessed_evidence(state.guidance, self.amounts))
        return shares_of(found, self.counts, known)

    def answer(self, images: Tensor, state: GuidedState) -> Tensor:
        """log p(c|x), (B, C)."""
        return accord(images, self.room.teachers, self.familiar, self.shares(state), self.sharpness, self.temperature)

    def answer_and_strangeness(self, images: Tensor, labels: Tensor, state: GuidedState) -> tuple[Tensor, Tensor]:
        """log p(c|x), and how strange an image looks to those who hold its label: mean of sum_k s_ky max(0, z_k(x)).

        0 without statistics: what BatchNorm tells has no zero point.
        """
        if not isinstance(self.familiar, Familiarity):
            return self.answer(images, state), images.new_zeros(())
        (logits, scores), shares = self.familiar(images), self.shares(state)
        answers = accord_of(logits, scores, self.room.teachers.known, shares, self.sharpness, self.temperature)
        return answers, (shares[:, labels] * scores.relu()).sum(0).mean()

    def deployable(self, state: GuidedState) -> Mixture:
        members = tuple(upload.parts["classifier"] for upload in self.room.uploads)
        shares, classes = self.shares(state).cpu(), self.room.server.task.classes
        return Mixture(members, "accord", shares, classes, self.statistics, self.sharpness, self.temperature)

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
        sources += [f"guessed by inversion for {clients - sent} of {clients} clients"] if clients > sent else []
        return f"Class shares: {', '.join(sources)}."


@dataclass(frozen=True)
class Context:
    """What ``prepare`` makes."""

    teacher: Blend
    weak: Sequence[Upload]  # who sent a decoder
    allotted: Tensor  # int64 (weak, C): images that each decoder makes of each class


def blend(room: Classroom, use: Use, how: Shares, familiarity: float, spread: float, temperature: float) -> Blend:
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


def guess_phase(teacher: Blend, settings: GuessSettings) -> Phase:
    """U of every client, a step each: pixels are moved towards each class, and how far the loss falls says how well it is known.

    The geometric mean over ``repeats`` beginnings: u spans orders of magnitude, and one lucky start shall not decide.
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
            found.append(guidance(losses, settings.guidance_floor).clamp(min=_TINY).log())
        state.guidance[row, classes] = torch.stack(found).mean(0).exp()
        return {}

    return Phase("guess", len(room.uploads), step, lambda _: 2.0 * settings.repeats * settings.guess_steps, learns=False)


def draw_phase(weak: Sequence[Upload], server: Server, allotted: Tensor) -> Phase:
    """One step: the decoders' images of every class, ``allotted`` (K, C) of them, become a pool of their own."""

    def step(state: AccordState) -> dict[str, float]:
        decoders = Decoders(weak, server)
        for column in range(allotted.shape[1]):
            images = decoders.of_class(column, allotted[:, column])
            state.drawn.add(images, torch.full((len(images),), column, device=images.device))
        return {}

    return Phase("draw", 1, step, lambda _: float(allotted.sum()) / 100, learns=False)


def with_labels(answers: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """log of (p + 1_y) / 2: half of it is the word of the client whose decoder drew the image; all of it where nobody knows y."""
    said = answers.exp()
    label, trust = torch.zeros_like(said).scatter(1, labels[:, None], 1.0), 0.5 * known.any(0)[labels, None]
    return (trust * said + (1 - trust) * label).clamp(min=_TINY).log()


def _statistics(uploads: Sequence[Upload]) -> tuple[Part | None, ...]:
    found = tuple(upload.parts.get("statistics") for upload in uploads)
    return found if any(part is not None for part in found) else ()
