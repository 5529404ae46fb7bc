"""Accord's teacher during a run: its class shares, its gate, and its answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attar.blocks.ensemble import (
    BATCHNORM_SHARPNESS,
    STATISTICS_SHARPNESS,
    TEMPERATURE,
    GatedTeachers,
    choose_gate,
    even_shares,
    evidence_shares,
    sent_counts,
)
from attar.blocks.student import DistillationContext
from attar.core import Mixture, Part
from attar.settings import NonNegative, Positive, flat

Use = Literal["models", "counts", "statistics", "all"]
Shares = Literal["sent", "guessed", "even"]
_TINY = 1e-12


@dataclass(frozen=True)
class TeacherSettings:
    """What the teacher uses of the uploads, and how.

    Attributes:
        use: what of the uploads may be used: the models alone, or with label counts, with feature
            statistics, with all that was sent.
        shares: where class shares come from: the counts that were sent (withheld ones are guessed),
            guessed counts although they were sent, or even shares.
        familiarity: b of a gate from feature statistics; 0: none.
        spread: b of a gate from BatchNorm, where there are no statistics; 0: none.
        temperature: t, of the clients' probabilities.
    """

    use: Use = "all"  # what may be used: models alone, with counts, with statistics, or all
    shares: Shares = "sent"  # guessed: by inversion although they were sent; even: left out
    familiarity: NonNegative = STATISTICS_SHARPNESS  # b of a gate from statistics; 0: none
    spread: NonNegative = BATCHNORM_SHARPNESS  # b of a gate from BatchNorm; 0: none
    temperature: Positive = flat("teacher_temperature", TEMPERATURE)  # t


@dataclass(frozen=True)
class Teacher:
    """p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c.

    Attributes:
        context: the clients' nets and the server.
        ensemble: the gate and the temperature, over these nets.
        source: where the class shares come from.
        counts: n_kc (K, C), zeros for a client without counts.
        sent: (K, 1) bool, clients whose counts are used as they were sent.
        amounts: n_k (K, 1), which all clients send.
        guesses: whether the counts of some client have to be guessed by inversion; a field, since
            reading ``sent`` in a step would make the host wait for the device.
    """

    context: DistillationContext
    ensemble: GatedTeachers
    source: Shares
    counts: Tensor
    sent: Tensor
    amounts: Tensor
    guesses: bool

    @property
    def knows_all(self) -> bool:
        """Whether some client has a classifier for every class."""
        return len(self.context.teachers.known_columns) == self.context.num_classes

    def shares(self, guidance: Tensor) -> Tensor:
        """s_kc (K, C); ``guidance`` u_kc (K, C) stands in for counts that were not sent."""
        known = self.context.teachers.known
        if self.source == "even":
            return even_shares(known)
        counts = self.counts
        if self.guesses:
            counts = torch.where(self.sent, counts, guess_counts(guidance, self.amounts))
        return evidence_shares(counts, known, gated=self.ensemble.scorer is not None)

    def answer(self, images: Tensor, guidance: Tensor) -> Tensor:
        """log p(c|x) (B, C) of images (B, C, H, W)."""
        logits: Tensor = self.ensemble(images, self.shares(guidance))
        return logits

    def deploy(self, guidance: Tensor) -> Mixture:
        """The teacher as a model of its own."""
        members = tuple(upload.parts["classifier"] for upload in self.context.uploads)
        shares = self.shares(guidance).cpu()
        classes = self.context.server.task.classes
        return Mixture(members, "accord", shares, classes, self.ensemble.gate)

    def remarks(self) -> tuple[str, str]:
        """What shares and gate come from, a sentence each."""
        clients = len(self.context.uploads)
        sent = int(self.sent.sum())
        sources = [f"from the label counts of {sent} of {clients} clients"] if sent else []
        if clients > sent:
            sources.append(f"guessed by inversion for {clients - sent} of {clients} clients")
        shares = f"Class shares: {', '.join(sources)}."
        if self.source == "even":
            shares = "Class shares: the same for everybody that knows a class."
        scorer = self.ensemble.scorer
        if scorer is None:
            return shares, "Familiarity gate: none."
        scored = clients - int(scorer.missing.sum())
        origin = "the statistics" if self.ensemble.gate.statistics else "BatchNorm"
        return shares, f"Familiarity gate: from {origin} of {scored} of {clients} clients."


def build_teacher(context: DistillationContext, settings: TeacherSettings) -> Teacher:
    """The teacher from what the clients of ``context`` sent, as far as the settings allow."""
    counts, sent = sent_counts(context.uploads, context.server.task.classes)
    if settings.shares != "sent" or settings.use not in ("counts", "all"):
        sent = torch.zeros_like(sent)
    statistics: Sequence[Part | None] = ()
    if settings.use in ("statistics", "all"):
        statistics = [upload.parts.get("statistics") for upload in context.uploads]
    gate = choose_gate(
        statistics,
        statistics_sharpness=settings.familiarity,
        batchnorm_sharpness=settings.spread,
        temperature=settings.temperature,
    )
    amounts = torch.tensor([[float(upload.num_examples)] for upload in context.uploads])
    return Teacher(
        context=context,
        ensemble=GatedTeachers(context.teachers, gate).to(context.device),
        source=settings.shares,
        counts=counts.to(context.device),
        sent=sent[:, None].to(context.device),
        amounts=amounts.to(context.device),
        guesses=settings.shares != "even" and not bool(sent.all()),
    )


def guess_counts(guidance: Tensor, amounts: Tensor) -> Tensor:
    """n_kc = n_k u_kc / sum_c u_kc: a client's images, split in proportion to its guidance.

    Args:
        guidance: u_kc (K, C), Eq. (2) of FedHydra with the highest loss of any class.
        amounts: n_k (K, 1).

    Returns:
        (K, C); zeros for a client without any guidance.
    """
    return amounts * guidance / guidance.sum(1, keepdim=True).clamp(min=_TINY)


def mix_with_labels(answers: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """log of (p + onehot(y)) / 2 for images that a decoder drew for label y.

    Args:
        answers: log p(c|x) (B, C) of the teacher.
        labels: y (B,).
        known: (K, C), whether client k has class c; where no client has class y the target is
            onehot(y) alone.

    Returns:
        (B, C).
    """
    p = answers.exp()
    onehot = torch.zeros_like(p).scatter(1, labels[:, None], 1.0)
    weight = 0.5 * known.any(0)[labels, None]
    return (weight * p + (1 - weight) * onehot).clamp(min=_TINY).log()
