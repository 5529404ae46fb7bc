"""Averages of weights, and the shares of clients that come from their numbers of images."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attar.core import Part, Upload

# Numbers that are summed at once: float64 copies of whole layers take four times as long, since
# they do not fit into the processor's cache.
PIECE = 1 << 18


def average(states: Sequence[Mapping[str, Tensor]], weights: Tensor) -> dict[str, Tensor]:
    """sum_k w_k theta_k / sum_k w_k, tensor by tensor.

    Sums run in float64: the average of equal models is that model, bit for bit.

    Args:
        states: the state of each model, with the same names and shapes.
        weights: w_k (K,).

    Returns:
        The averaged state on the CPU, in the types of the first one; integers (BatchNorm's counter)
        are rounded.
    """
    shares = (weights.double() / weights.double().sum()).tolist()
    averaged = {}
    for name, first in states[0].items():
        averaged[name] = torch.empty(first.shape, dtype=first.dtype)
        pieces = zip(*(state[name].reshape(-1).split(PIECE) for state in states), strict=True)
        for place, piece in zip(averaged[name].view(-1).split(PIECE), pieces, strict=True):
            total = shares[0] * piece[0].cpu().double()  # not zeros: 0.0 + -0.0 would lose the sign
            for share, other in zip(shares[1:], piece[1:], strict=True):
                total += share * other.cpu().double()
            place.copy_(total if first.is_floating_point() else total.round())
    return averaged


def average_normalised(
    start: Part, parts: Sequence[Part], shares: Tensor, steps: Sequence[float]
) -> dict[str, Tensor]:
    """FedNova: w_t - tau_eff sum_k p_k (w_t - w_k) / tau_k with tau_eff = sum_k p_k tau_k.

    Args:
        start: w_t, the model that the clients started from.
        parts: w_k, the clients' models.
        shares: p_k (K,), normalised here.
        steps: tau_k, each client's number of steps (see ``effective_steps``).

    Returns:
        The state of the new model. BatchNorm's statistics are averaged by p_k, since no gradient
        steps are taken on them.
    """
    learned = start.parameter_names()
    result = average([part.state for part in parts], shares)
    weights = (shares.double() / shares.double().sum()).tolist()
    tau_eff = sum(weight * tau for weight, tau in zip(weights, steps, strict=True))
    for name in learned & result.keys():
        origin = start.state[name].cpu().double()
        direction = torch.zeros_like(origin)
        for weight, tau, part in zip(weights, steps, parts, strict=True):
            direction += weight / tau * (origin - part.state[name].cpu().double())
        result[name] = (origin - tau_eff * direction).to(result[name].dtype)
    return result


def effective_steps(steps: int, momentum: float) -> float:
    """||a||_1 of FedNova: how many plain steps ``steps`` steps with momentum rho amount to.

    Step i moves by v_i = rho v_(i-1) + g_i, so gradient i counts 1 + rho + ... + rho^(tau - i)
    times; over all i that is (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), and tau where
    rho = 0.
    """
    if not momentum:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def data_shares(uploads: Sequence[Upload]) -> Tensor:
    """n_k / sum_j n_j (K,): each client's share of all training images."""
    amounts = torch.tensor([float(upload.num_examples) for upload in uploads])
    return amounts / amounts.sum()


def sent_counts(
    uploads: Sequence[Upload], classes: Sequence[str], part: str = "classifier"
) -> tuple[Tensor, Tensor]:
    """The label counts that clients sent.

    Args:
        uploads: of K clients.
        classes: of the task, in the order of the columns.
        part: whose class list the counts follow.

    Returns:
        n_kc (K, C), zeros for a client that withheld its counts; and (K,) bool, who sent counts.
    """
    counts = torch.zeros(len(uploads), len(classes))
    sent = torch.zeros(len(uploads), dtype=torch.bool)
    for row, upload in enumerate(uploads):
        if upload.label_counts is None:
            continue
        sent[row] = True
        for name, count in zip(upload.parts[part].classes, upload.label_counts, strict=True):
            counts[row, classes.index(name)] = count
    return counts, sent


def label_table(
    uploads: Sequence[Upload], classes: Sequence[str], part: str = "classifier"
) -> Tensor:
    """n_kc (K, C) where all clients sent label counts; arguments as of ``sent_counts``."""
    counts, sent = sent_counts(uploads, classes, part)
    assert bool(sent.all()), "needs.label_counts was checked"
    return counts


def class_shares(uploads: Sequence[Upload], classes: Sequence[str]) -> Tensor:
    """s_kc = n_kc / sum_j n_jc (K, C); 0 for a class without images."""
    counts = label_table(uploads, classes)
    return counts / counts.sum(0).clamp(min=1)


def label_shares(uploads: Sequence[Upload], classes: Sequence[str]) -> Tensor:
    """p(c) = sum_k n_kc / n (C,): the label distribution of all clients together."""
    counts = label_table(uploads, classes).sum(0)
    return counts / counts.sum()


def weight_bytes(part: Part) -> int:
    """What the net's weights and buffers take in memory."""
    skeleton = part.spec.skeleton(part.preprocess.input_shape, len(part.classes))
    return sum(value.numel() * value.element_size() for value in skeleton.state_dict().values())


def stack_states(parts: Sequence[Part]) -> dict[str, Tensor]:
    """Weights and buffers of nets of one kind, each (K, ...), in the types that the net uses.

    Buffers that a file does not hold follow from the architecture.
    """
    net = parts[0].spec.blank(parts[0].preprocess.input_shape, len(parts[0].classes))
    stacks = {}
    for name, default in [*net.named_parameters(), *net.named_buffers()]:
        values = [part.state.get(name, default) for part in parts]
        stacks[name] = torch.stack([value.detach().to("cpu", default.dtype) for value in values])
    return stacks
