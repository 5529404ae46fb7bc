"""The rules that combine teachers' logits, and an ensemble as a model of its own.

Every rule is a masked reduction over K of logits (K, B, C) with the mask ``known`` (K, C).
Weights are (K,), (K, C) or (B, K, C).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from attar.blocks.ensemble.averages import class_shares, data_shares
from attar.blocks.ensemble.familiarity import (
    Familiarity,
    Spread,
    familiarity_gate,
    gate_from,
    gate_known,
)
from attar.blocks.ensemble.shares import even_shares, shares_of, told_counts
from attar.blocks.ensemble.teachers import Teachers
from attar.core import Mixture, Upload

_TINY = 1e-12  # probabilities never become log(0)
NEVER = -1e4  # a logit that no softmax chooses, and that stays finite
_TIE = 1e-4  # weight of the probabilities beside whole votes

RuleName = Literal[
    "mean-logits",
    "data-weighted",
    "mean-probabilities",
    "max-logits",
    "vote",
    "class-share",
    "accord",
]

REDUCTIONS: dict[RuleName, str] = {
    "mean-logits": "logits",
    "data-weighted": "logits",
    "mean-probabilities": "probabilities",
    "max-logits": "max",
    "vote": "vote",
    "class-share": "probabilities",
    "accord": "accord",
}

SHARPNESS = 0.25  # b of the familiarity gate from statistics
SPREAD_SHARPNESS = 1.0  # b of the one from BatchNorm
TEMPERATURE = 1.5  # of the clients' probabilities


def combine(rule: str, logits: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Per-client logits (K, B, C) -> logits (B, C) of the ensemble under one of ``RULES``."""
    if weights is None:
        weights = logits.new_ones(len(logits))
    if weights.dim() == 1:
        weights = weights[:, None].expand(known.shape)
    if weights.dim() == 2:
        weights = weights[:, None, :]
    else:
        weights = weights.transpose(0, 1)  # (B, K, C) -> (K, B, C)
    weights, mask = weights.to(logits), known[:, None, :]
    heard = weights * mask
    if rule == "sum":  # who does not know a class leaves its say to those who do
        heard = heard * (weights.sum(0) / heard.sum(0).clamp(min=_TINY))
    return RULES[rule](logits, mask, heard)


def mean_of_logits(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """sum_k w_kc f_k(x)_c / sum_k w_kc over the clients that know c (FedENS; weighted by data:
    DW-FedENS).

    A class to which nobody lends weight is never chosen.
    """
    total = weights.sum(0)
    return ((weights * logits).sum(0) / total.clamp(min=_TINY)).masked_fill(total <= 0, NEVER)


def sum_of_logits(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """sum_k w_kc f_k(x)_c, not divided by the weights (Co-Boosting Eq. 2, FedHydra Eq. 11).

    The weight of clients that do not know c is shared out over those that do (``combine``):
    every class keeps its scale.
    """
    return (weights * logits).sum(0)


def mean_of_probabilities(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of p(c|x) proportional to sum_k w_kc softmax(f_k(x))_c / sum_k w_kc."""
    probabilities = logits.masked_fill(~known, float("-inf")).softmax(-1)
    return _log((weights * probabilities).sum(0) / weights.sum(0).clamp(min=_TINY))


def sum_of_probabilities(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of p(c|x) proportional to sum_k w_kc softmax(f_k(x))_c, the weights as they are:
    shares times a gate.
    """
    return _log((weights * logits.masked_fill(~known, float("-inf")).softmax(-1)).sum(0))


def max_of_logits(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """max_k f_k(x)_c over the clients that know c (FedKEM, Eq. 5); it has no weights."""
    return logits.masked_fill(~known, float("-inf")).amax(0)


def vote(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of the share of the clients knowing c that put c first; ties go to the higher mean
    probability.
    """
    masked = logits.masked_fill(~known, float("-inf"))
    votes = torch.zeros_like(logits).scatter(-1, masked.argmax(-1, keepdim=True), 1.0)
    votes = votes + _TIE * masked.softmax(-1)
    return _log((weights * votes).sum(0) / weights.sum(0).clamp(min=_TINY))


def _log(shares: Tensor) -> Tensor:
    shares = shares.clamp(min=_TINY)
    return (shares / shares.sum(-1, keepdim=True)).log()


RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "logits": mean_of_logits,
    "sum": sum_of_logits,
    "probabilities": mean_of_probabilities,
    "accord": sum_of_probabilities,
    "max": max_of_logits,
    "vote": vote,
}


class Ensemble(nn.Module):
    """A Mixture at work: canonical images -> logits (B, C) over its classes."""

    weights: Tensor | None

    def __init__(self, mixture: Mixture, *, stack: bool | None = None) -> None:
        super().__init__()
        self.mixture = mixture
        self.teachers = Teachers(mixture.members, mixture.classes, stack=stack)
        self.familiar = (
            gate_from(self.teachers, mixture.statistics) if mixture.familiarity > 0 else None
        )
        self.register_buffer("weights", mixture.weights, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        known, mixture = self.teachers.known, self.mixture
        if mixture.rule != "accord":
            return combine(mixture.rule, self.teachers(images), known, self.weights)
        shares = even_shares(known) if self.weights is None else self.weights
        return accord(
            images, self.teachers, self.familiar, shares, mixture.familiarity, mixture.temperature
        )


def accord(
    images: Tensor,
    teachers: Teachers,
    familiar: Familiarity | Spread | None,
    shares: Tensor,
    sharpness: float,
    temperature: float,
) -> Tensor:
    """log p(c|x), p proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c; with nothing to
    tell them apart every gate is 1 / K.
    """
    if familiar is None:
        return combine("accord", teachers(images) / temperature, teachers.known, shares)
    logits, scores = familiar(images)
    return accord_of(logits, scores, teachers.known, shares, sharpness, temperature)


def accord_of(
    logits: Tensor,
    scores: Tensor,
    known: Tensor,
    shares: Tensor,
    sharpness: float,
    temperature: float,
) -> Tensor:
    """The same of logits (K, B, C) and z-scores (K, B)."""
    weights = shares * familiarity_gate(scores, sharpness).T[:, :, None]  # (B, K, C)
    return combine("accord", logits / temperature, known, weights)


def build_mixture(rule: RuleName, uploads: Sequence[Upload], classes: tuple[str, ...]) -> Mixture:
    """The clients' classifiers under one of the rules people ask for by name."""
    if rule == "accord":
        return accord_mixture(uploads, classes)
    members = tuple(upload.parts["classifier"] for upload in uploads)
    weights = None
    if rule == "data-weighted":
        weights = data_shares(uploads)
    elif rule == "class-share":
        weights = class_shares(uploads, classes)
    return Mixture(members, REDUCTIONS[rule], weights, classes)


def accord_mixture(uploads: Sequence[Upload], classes: tuple[str, ...]) -> Mixture:
    """The teacher of ``accord`` from what was sent: shares where everybody sent counts, the gate
    from statistics or BatchNorm.
    """
    members = tuple(upload.parts["classifier"] for upload in uploads)
    counts, told = told_counts(uploads, classes)
    known = torch.tensor([[name in part.classes for name in classes] for part in members])
    statistics = tuple(upload.parts.get("statistics") for upload in uploads)
    if bool(told.all()):
        shares = shares_of(counts, known, doubt=not gate_known(members, statistics))
    else:
        shares = even_shares(known)
    sharpness = SHARPNESS if any(part is not None for part in statistics) else SPREAD_SHARPNESS
    return Mixture(members, "accord", shares, classes, statistics, sharpness, TEMPERATURE)


def as_classifiers(uploads: Sequence[Upload]) -> list[Upload]:
    """Knowledge networks in the place of classifiers: whoever sends one lets it speak for the
    model that stays at home.
    """
    return [
        replace(upload, parts={**upload.parts, "classifier": upload.parts["knowledge"]})
        if "knowledge" in upload.parts
        else upload
        for upload in uploads
    ]


def rule_needs_counts(rule: RuleName) -> bool:
    return rule == "class-share"
