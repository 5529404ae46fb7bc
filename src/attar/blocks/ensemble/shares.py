"""Class shares s_kc, (K, C): how much client k's word counts where class c is concerned."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attar.core import Upload

# evidence of a class, from everybody, that makes its holders believed: about 100 images of anything
# else
LEARNED = 10.0
_TINY = 1e-12


def even_shares(known: Tensor) -> Tensor:
    """1 / (number of clients that know c) for each of these: nothing is known about who holds what."""
    return known.float() / known.sum(0).clamp(min=1)


def evidence(counts: Tensor) -> Tensor:
    """e_kc = sqrt(n_kc (1 - n_kc / n_k)): the images of a class, times the share of the client's
    images that are of another.

    To tell a class from the rest a client needs both: one that holds a single class answers it
    to everything, and has e = 0. What is learned of n images is precise to 1 / sqrt(n),
    therefore the root; with it a client of few images is heard, but softly.
    """
    total = counts.sum(1, keepdim=True).clamp(min=_TINY)
    return (counts * (1 - counts / total)).clamp(min=0).sqrt()


def guessed_counts(guidance: Tensor, amounts: Tensor) -> Tensor:
    """n_kc = n_k u_kc / sum_c u_kc of a client that withheld its counts, from how well it guides
    towards each class.

    u (K, C) as ``stratify.guidance`` gives it, with the highest loss of the client; ``amounts``
    (K, 1) are n_k, which everybody sends.
    """
    return amounts * guidance / guidance.sum(1, keepdim=True).clamp(min=_TINY)


def shares_of(counts: Tensor, known: Tensor, *, doubt: bool = False) -> Tensor:
    """s_kc = e_kc / sum_j e_jc over the clients that know c; with ``doubt`` times ``belief``, b_c.

    A class of which nobody has evidence (each of its holders holds nothing else) goes to its
    holders, by sqrt(n_kc); one that nobody holds to everybody that knows it.
    """
    heard = torch.where(known, evidence(counts), 0.0)
    heard = torch.where(heard.sum(0) > 0, heard, torch.where(known, counts.sqrt(), 0.0))
    total = heard.sum(0)
    shares = torch.where(total > 0, heard / total.clamp(min=_TINY), even_shares(known))
    return shares * belief(counts) if doubt else shares


def belief(counts: Tensor) -> Tensor:
    """b_c = P(c) + (1 - P(c)) min(1, sum_k e_kc / 10), (C,): how far the holders of a class are
    believed about any image.

    Whoever saw hardly anything but one class answers it to everything, with certainty. Where
    nothing tells to whom an image looks familiar, that answer says no more than how often the
    class comes, P(c), and must not outvote those that look at the image. Of a class that nobody
    holds there is nothing to doubt: b_c = 1.
    """
    held = counts.sum(0)
    prior = held / held.sum().clamp(min=_TINY)
    return torch.where(
        held > 0, prior + (1 - prior) * (evidence(counts).sum(0) / LEARNED).clamp(max=1), 1.0
    )


def told_counts(uploads: Sequence[Upload], classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """n_kc from the label counts that were sent, (K, C), and who sent them, (K,) bool; the rows
    of the others are 0.
    """
    counts, told = (
        torch.zeros(len(uploads), len(classes)),
        torch.zeros(len(uploads), dtype=torch.bool),
    )
    for row, upload in enumerate(uploads):
        if upload.label_counts is not None:
            told[row] = True
            for name, count in zip(
                upload.parts["classifier"].classes, upload.label_counts, strict=True
            ):
                counts[row, classes.index(name)] = count
    return counts, told
