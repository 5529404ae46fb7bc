"""Averages of weights, and the weights of clients."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attar.core import Part, Upload

PIECE = (
    1 << 18
    # numbers summed at once: float64 copies of whole layers would wait for memory, four times as long
)


def average(states: Sequence[Mapping[str, Tensor]], weights: Tensor) -> dict[str, Tensor]:
    """sum_k w_k theta_k with sum_k w_k = 1, entry by entry.

    Sums run in float64: the average of equal models is that model, bit for bit. Whole numbers
    (BatchNorm's counter) are rounded.
    """
    shares = (weights.double() / weights.double().sum()).tolist()
    result = {}
    for name, first in states[0].items():
        result[name] = torch.empty(first.shape, dtype=first.dtype)
        pieces = zip(*(state[name].reshape(-1).split(PIECE) for state in states), strict=True)
        for place, piece in zip(result[name].view(-1).split(PIECE), pieces, strict=True):
            total = shares[0] * piece[0].double().cpu()  # not zeros: 0.0 + -0.0 would lose the sign
            for share, other in zip(shares[1:], piece[1:], strict=True):
                total += share * other.double().cpu()
            place.copy_(total if first.is_floating_point() else total.round())
    return result


def normalised(
    start: Part, parts: Sequence[Part], shares: Tensor, steps: Sequence[float]
) -> dict[str, Tensor]:
    """FedNova: w_t - tau_eff sum_k p_k (w_t - w_k) / tau_k with tau_eff = sum_k p_k tau_k,
    ``steps`` being the tau_k.

    Statistics are averaged by the shares p_k: nobody takes steps on them.
    """
    learned = start.parameter_names()
    result = average([part.state for part in parts], shares)
    weights = (shares.double() / shares.double().sum()).tolist()
    effective = sum(weight * tau for weight, tau in zip(weights, steps, strict=True))
    for name in learned & result.keys():
        origin = start.state[name].double().cpu()
        moved = torch.zeros_like(origin)
        for weight, tau, part in zip(weights, steps, parts, strict=True):
            moved += weight / tau * (origin - part.state[name].double().cpu())
        result[name] = (origin - effective * moved).to(result[name].dtype)
    return result


def steps_added_up(steps: int, momentum: float) -> float:
    """||a||_1 of FedNova: how many plain steps ``steps`` steps with momentum rho add up to.

    Step i moves by v_i = rho v_(i-1) + g_i, so gradient i counts 1 + rho + ... + rho^(tau - i)
    times; over all i that is (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), and tau where
    rho = 0.
    """
    if not momentum:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def data_shares(uploads: Sequence[Upload]) -> Tensor:
    """n_k / sum_j n_j, shape (K,)."""
    amounts = torch.tensor([float(upload.num_examples) for upload in uploads])
    return amounts / amounts.sum()


def label_table(
    uploads: Sequence[Upload], classes: Sequence[str], part: str = "classifier"
) -> Tensor:
    """n_kc from the label counts that were sent, shape (K, C)."""
    counts = torch.zeros(len(uploads), len(classes))
    for row, upload in enumerate(uploads):
        assert upload.label_counts is not None, "needs.label_counts was checked"
        for name, count in zip(upload.parts[part].classes, upload.label_counts, strict=True):
            counts[row, classes.index(name)] = count
    return counts


def class_shares(uploads: Sequence[Upload], classes: Sequence[str]) -> Tensor:
    """s_kc = n_kc / sum_j n_jc, shape (K, C); a class nobody holds has shares 0."""
    counts = label_table(uploads, classes)
    return counts / counts.sum(0).clamp(min=1)


def label_shares(uploads: Sequence[Upload], classes: Sequence[str]) -> Tensor:
    """p(c) = sum_k n_kc / n, shape (C,)."""
    counts = label_table(uploads, classes).sum(0)
    return counts / counts.sum()
