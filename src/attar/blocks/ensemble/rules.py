"""Rules that combine the logits of K clients.

Every rule is a masked reduction over clients, from logits (K, B, C) with the mask ``known`` (K, C)
to logits (B, C). Weights are given as (K,), (K, C) or (B, K, C).
"""

from collections.abc import Callable

import torch
from torch import Tensor

NEVER = -1e4  # a logit that no softmax chooses, and that stays finite
_TINY = 1e-12  # probabilities never become log(0)
_TIE = 1e-4  # weight of the probabilities beside whole votes
TRIMMED = 0.3  # of the weight at either end, in a trimmed mean


def combine(rule: str, logits: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """The ensemble's logits under one of ``RULES``.

    Args:
        rule: a key of ``RULES``.
        logits: of each client (K, B, C); what stands where ``known`` is False does not matter.
        known: (K, C) bool, whether client k has class c.
        weights: of clients (K,), for each class (K, C), or for each image and class (B, K, C);
            None: all clients count the same.

    Returns:
        Logits (B, C); for rules of probabilities their logarithms.
    """
    if weights is None:
        weights = logits.new_ones(len(logits))
    if weights.dim() == 1:
        weights = weights[:, None].expand(known.shape)
    if weights.dim() == 2:
        weights = weights[:, None, :]
    else:
        weights = weights.transpose(0, 1)  # (B, K, C) -> (K, B, C)
    weights = weights.to(logits)
    mask = known[:, None, :]
    masked = weights * mask
    if rule == "sum":  # the weight of clients without a class goes to the clients that have it
        masked = masked * (weights.sum(0) / masked.sum(0).clamp(min=_TINY))
    return RULES[rule](logits, mask, masked)


# Each rule takes logits (K, B, C), the mask ``known`` (K, 1, C), and weights (K, B or 1, C) that
# are 0 where a client does not know a class.


def mean_of_logits(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """sum_k w_kc f_k(x)_c / sum_k w_kc (FedENS; weighted by data: DW-FedENS).

    A class whose weights are all 0 gets the logit ``NEVER``.
    """
    total = weights.sum(0)
    return ((weights * logits).sum(0) / total.clamp(min=_TINY)).masked_fill(total <= 0, NEVER)


def sum_of_logits(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """sum_k w_kc f_k(x)_c, not divided by the weights (Co-Boosting Eq. 2, FedHydra Eq. 11).

    ``combine`` gives the weight of clients without class c to the clients that have it, so that
    the logits of all classes keep their scale.
    """
    return (weights * logits).sum(0)


def mean_of_probabilities(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of p(c|x) proportional to sum_k w_kc softmax(f_k(x))_c / sum_k w_kc."""
    probabilities = logits.masked_fill(~known, float("-inf")).softmax(-1)
    return _normalise((weights * probabilities).sum(0) / weights.sum(0).clamp(min=_TINY))


def sum_of_probabilities(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of p(c|x) proportional to sum_k w_kc softmax(f_k(x))_c, not divided by the weights."""
    return _normalise((weights * logits.masked_fill(~known, float("-inf")).softmax(-1)).sum(0))


def mean_of_log_odds(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of p(c|x) proportional to exp(sum_k w_kc log softmax(f_k(x))_c / sum_k w_kc).

    The members' logits are calibrated: each has been divided by its own temperature.
    """
    odds = logits.masked_fill(~known, float("-inf")).log_softmax(-1).masked_fill(~known, 0.0)
    total = weights.sum(0)
    mean = (weights * odds).sum(0) / total.clamp(min=_TINY)
    return mean.masked_fill(total <= 0, NEVER).log_softmax(-1)


def max_of_logits(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """max_k f_k(x)_c over the clients that know c (FedKEM, Eq. 5); it has no weights."""
    return logits.masked_fill(~known, float("-inf")).amax(0)


def vote(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of the share of the clients with class c that rank c first.

    Ties go to the higher mean probability.
    """
    masked = logits.masked_fill(~known, float("-inf"))
    votes = torch.zeros_like(logits).scatter(-1, masked.argmax(-1, keepdim=True), 1.0)
    votes = votes + _TIE * masked.softmax(-1)
    return _normalise((weights * votes).sum(0) / weights.sum(0).clamp(min=_TINY))


def trimmed_mean_of_probabilities(logits: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """log of p(c|x) proportional to the mean of softmax(f_k(x))_c without its largest and smallest.

    For each image and class the clients with the largest and with the smallest probabilities are
    left out, up to ``TRIMMED`` of the weight at either end (Yin et al., ICML 2018, for gradients).
    """
    probabilities = logits.masked_fill(~known, float("-inf")).softmax(-1)
    rising, order = probabilities.sort(0)
    shares = (weights / weights.sum(0).clamp(min=_TINY)).expand(probabilities.shape)
    shares = shares.gather(0, order)
    below = shares.cumsum(0)
    kept = (below.clamp(max=1 - TRIMMED) - (below - shares).clamp(min=TRIMMED)).clamp(min=0)
    return _normalise((kept * rising).sum(0))


def _normalise(scores: Tensor) -> Tensor:
    """log of ``scores`` (B, C) divided by their sum over classes."""
    scores = scores.clamp(min=_TINY)
    return (scores / scores.sum(-1, keepdim=True)).log()


RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "logits": mean_of_logits,
    "sum": sum_of_logits,
    "probabilities": mean_of_probabilities,
    "accord": sum_of_probabilities,
    "log-odds": mean_of_log_odds,
    "max": max_of_logits,
    "vote": vote,
    "trimmed": trimmed_mean_of_probabilities,
}
GATED_RULES = frozenset({"accord"})  # rules whose mixtures have a gate
