"""Ensembles as deployable models: built from uploads by a named rule, and evaluated."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from attar.blocks.ensemble.averages import class_shares, data_shares, sent_counts
from attar.blocks.ensemble.gates import (
    GatedTeachers,
    choose_gate,
    even_shares,
    evidence_shares,
    has_effect,
)
from attar.blocks.ensemble.rules import GATED_RULES, combine
from attar.blocks.ensemble.teachers import Teachers
from attar.core import Gate, Mixture, Upload

RuleName = Literal[
    "mean-logits",
    "data-weighted",
    "mean-probabilities",
    "max-logits",
    "vote",
    "class-share",
    "accord",
    "trimmed",
]

REDUCTIONS: dict[RuleName, str] = {
    "mean-logits": "logits",
    "data-weighted": "logits",
    "mean-probabilities": "probabilities",
    "max-logits": "max",
    "vote": "vote",
    "class-share": "probabilities",
    "accord": "accord",
    "trimmed": "trimmed",
}
"""The key of ``RULES`` that each named rule stands for."""


class Ensemble(nn.Module):
    """A Mixture as a net: canonical images -> logits (B, C) over its classes."""

    weights: Tensor | None

    def __init__(self, mixture: Mixture, *, stack: bool | None = None) -> None:
        super().__init__()
        self.mixture = mixture
        self.teachers = Teachers(mixture.members, mixture.classes, stack=stack)
        gate = gate_of(mixture)
        self.gated = None if gate is None else GatedTeachers(self.teachers, gate)
        self.register_buffer("weights", mixture.weights, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of canonical images (B, C, H, W)."""
        known = self.teachers.known
        if self.gated is None:
            return combine(self.mixture.rule, self.teachers(images), known, self.weights)
        shares = even_shares(known) if self.weights is None else self.weights
        logits: Tensor = self.gated(images, shares)
        return logits


def gate_of(mixture: Mixture) -> Gate | None:
    """The gate of a mixture: None where its rule has none, without effect where none was given."""
    if mixture.rule not in GATED_RULES:
        return None
    return mixture.gate or Gate()


def build_mixture(rule: RuleName, uploads: Sequence[Upload], classes: tuple[str, ...]) -> Mixture:
    """The clients' classifiers, combined by a named rule.

    Args:
        rule: as users write it; "class-share" needs the label counts of all uploads, and "trimmed"
            weights by them where all were sent.
        uploads: each with a classifier.
        classes: of the task.
    """
    if rule == "accord":
        return _build_accord(uploads, classes)
    weights = None
    if rule == "data-weighted":
        weights = data_shares(uploads)
    elif rule == "class-share" or (rule == "trimmed" and _all_sent_counts(uploads)):
        weights = class_shares(uploads, classes)
    members = tuple(upload.parts["classifier"] for upload in uploads)
    return Mixture(members, REDUCTIONS[rule], weights, classes)


def _build_accord(uploads: Sequence[Upload], classes: tuple[str, ...]) -> Mixture:
    """The teacher of ``accord`` from what was sent, without any computation on images.

    Shares are even unless all clients sent label counts: guessing counts takes inversion, which
    only the method does.
    """
    members = tuple(upload.parts["classifier"] for upload in uploads)
    gate = choose_gate([upload.parts.get("statistics") for upload in uploads])
    counts, sent = sent_counts(uploads, classes)
    known = torch.tensor([[name in part.classes for name in classes] for part in members])
    if bool(sent.all()):
        shares = evidence_shares(counts, known, gated=has_effect(gate, members))
    else:
        shares = even_shares(known)
    return Mixture(members, "accord", shares, classes, gate)


def _all_sent_counts(uploads: Sequence[Upload]) -> bool:
    return all(upload.label_counts is not None for upload in uploads)


def use_knowledge_nets(uploads: Sequence[Upload]) -> list[Upload]:
    """The uploads with knowledge networks, where there are any, as their classifiers (FedKEM)."""
    return [
        replace(upload, parts={**upload.parts, "classifier": upload.parts["knowledge"]})
        if "knowledge" in upload.parts
        else upload
        for upload in uploads
    ]


def rule_needs_counts(rule: RuleName) -> bool:
    """Whether a named rule needs the label counts of all uploads."""
    return rule == "class-share"
