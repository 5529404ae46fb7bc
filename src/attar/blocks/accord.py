"""The teacher of ``accord`` at work in a run: what of the uploads it uses, its answers, and the words that say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attar.blocks.classroom import Classroom, GuidedState
from attar.blocks.ensemble import accord
from attar.blocks.familiarity import Familiarity
from attar.blocks.shares import even_shares, evidence, guessed_counts, shares_of, told_counts
from attar.core import Mixture, Part, Upload

Use = Literal["models", "counts", "statistics", "all"]
Shares = Literal["sent", "guessed", "even"]


@dataclass(frozen=True)
class Blend:
    """p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c, of which every factor may be missing."""

    room: Classroom
    counts: Tensor  # (K, C), as sent
    told: Tensor  # (K, 1) bool: whose counts are used as sent
    amounts: Tensor  # (K, 1) n_k, which everybody sends
    statistics: tuple[Part | None, ...]  # empty: there is no gate
    familiar: Familiarity | None
    how: Shares
    guesses: bool  # whether somebody's counts have to be guessed by inversion
    sharpness: float  # b
    temperature: float  # t
    doubt: float

    def shares(self, state: GuidedState) -> Tensor:
        """s_kc, (K, C): from counts, those that were not sent guessed from U."""
        known = self.room.teachers.known
        if self.how == "even":
            return even_shares(known)
        counts = self.counts
        if self.guesses:
            counts = torch.where(self.told, counts, guessed_counts(state.guidance, self.amounts))
        return shares_of(evidence(counts), known, self.doubt)

    def answer(self, images: Tensor, state: GuidedState) -> Tensor:
        """log p(c|x), (B, C)."""
        return accord(images, self.room.teachers, self.familiar, self.shares(state), self.sharpness, self.temperature)

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
        told = sum(part is not None for part in self.statistics)
        return (
            "Class shares: the same for everybody that knows a class."
            if self.how == "even"
            else f"Class shares: from the label counts of {sent} of {clients} clients, the others' guessed by inversion.",
            f"Familiarity gate: from the statistics of {told} of {clients} clients."
            if self.familiar is not None
            else "Familiarity gate: none.",
        )


def blend(
    room: Classroom, use: Use, how: Shares, sharpness: float, temperature: float, doubt: float
) -> Blend:
    """The teacher that can be made of what was sent, and of what of that may be used."""
    counts, told = told_counts(room.uploads, room.server.task.classes)
    told &= how == "sent" and use in ("counts", "all")
    statistics = _statistics(room.uploads) if sharpness and use in ("statistics", "all") else ()
    familiar = Familiarity(room.teachers, statistics).to(room.device) if statistics else None
    amounts = torch.tensor([[float(upload.num_examples)] for upload in room.uploads])
    own = [table.to(room.device) for table in (counts, told[:, None], amounts)]
    guesses = how != "even" and not bool(told.all())
    return Blend(room, *own, statistics, familiar, how, guesses, sharpness, temperature, doubt)


def _statistics(uploads: Sequence[Upload]) -> tuple[Part | None, ...]:
    found = tuple(upload.parts.get("statistics") for upload in uploads)
    return found if any(part is not None for part in found) else ()
