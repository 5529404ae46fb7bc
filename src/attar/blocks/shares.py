"""Class shares s_kc, (K, C): how much client k's word counts where class c is concerned."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attar.core import Upload

_TINY = 1e-12
DOUBT = 1.0  # images lent to every client and class


def even_shares(known: Tensor) -> Tensor:
    """1 / (number of clients that know c) for each of these: nothing is known about who holds what."""
    return known.float() / known.sum(0).clamp(min=1)


def evidence(counts: Tensor) -> Tensor:
    """e_kc = n_kc (1 - n_kc / n_k): images of the class, times the share of the client's images that are of another.

    To tell a class from the rest a client needs both. One that holds a single class answers it to everything: e = 0.
    """
    total = counts.sum(1, keepdim=True).clamp(min=_TINY)
    return counts * (1 - counts / total)


def shares_of(evidence: Tensor, known: Tensor, doubt: float) -> Tensor:
    """s_kc = (e_kc + a) / sum_j (e_jc + a) over the clients that know c, with a = ``doubt`` images lent to everybody.

    A class of which there is much evidence hardly notices; where all have next to none, nobody's few images decide alone.
    """
    lent = torch.where(known, evidence + doubt, 0.0)
    total = lent.sum(0)
    return torch.where(total > 0, lent / total.clamp(min=_TINY), even_shares(known))


def told_counts(uploads: Sequence[Upload], classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """n_kc from the label counts that were sent, (K, C), and who sent them, (K,) bool; the rows of the others are 0."""
    counts, told = torch.zeros(len(uploads), len(classes)), torch.zeros(len(uploads), dtype=torch.bool)
    for row, upload in enumerate(uploads):
        if upload.label_counts is not None:
            told[row] = True
            for name, count in zip(upload.parts["classifier"].classes, upload.label_counts, strict=True):
                counts[row, classes.index(name)] = count
    return counts, told


def guessed_counts(guidance: Tensor, amounts: Tensor) -> Tensor:
    """n_kc of clients that withheld them: n_k u_kc / sum_c u_kc, u how well k guides towards c (``stratify.guidance``).

    ``amounts`` (K, 1) are n_k, which everybody sends.
    """
    return amounts * guidance / guidance.sum(1, keepdim=True).clamp(min=_TINY)
