"""Sums that cannot be those of images, and sums that do not belong together.

What one file must be is checked when it is read (``uploads``). Here are the checks that need
several files, and those of the sum: a covariance of images has no negative eigenvalue, so a total
that has one names the clients whose own sums have.
"""

from collections import Counter
from collections.abc import Sequence

import torch

from attar.blocks.heads.moments import Moments, moments_of
from attar.blocks.heads.totals import Totals, add_clients, options_of
from attar.core import Part

AGREED = ("features", "dimensions", "clip", "bits")  # what a fingerprint stands for
MOST_CLIENTS = 1000  # whose rounding is allowed for in one file
RELATIVE = 1e-9  # of the mean eigenvalue, which rounding of double precision may take off


def fingerprint_of(part: Part) -> str:
    """What the sums of a client were made with; sums of others are never added."""
    return str(options_of(part)["fingerprint"])


def group_problems(named: Sequence[tuple[str, Part]]) -> list[str]:
    """Clients with one fingerprint whose sums contradict it.

    Args:
        named: client and ``sums`` part, all of one fingerprint.

    Returns:
        A sentence for each client that differs from most of the others.
    """
    described = [(client, _agreed(part)) for client, part in named]
    usual = Counter(text for _, text in described).most_common(1)[0][0]
    return [
        f"{client} sent {text}; the others with this backbone sent {usual}"
        for client, text in described
        if text != usual
    ]


def _agreed(part: Part) -> str:
    options = options_of(part)
    shape = "x".join(map(str, part.preprocess.input_shape))
    values = ", ".join(f"{name} {options[name]}" for name in AGREED)
    return f"sums with {values} of {shape} images"


def is_positive(moments: Moments, clients: int, bits: int) -> bool:
    """Whether the covariance within classes has no negative eigenvalue, up to rounding.

    Args:
        moments: without noise.
        clients: how many rounded their sums.
        bits: of the grid that they rounded to.
    """
    means = moments.means
    scatter = moments.gram - (moments.counts[:, None] * means).T @ means
    size = float(scatter.diagonal().mean())
    # Each entry of each client is off by half a unit, and the products of means by as much.
    slack = (clients + 1) * moments.width * 2.0**-bits * (1 + float(means.abs().max()))
    slack += RELATIVE * max(size, 0.0)
    identity = torch.eye(moments.width, dtype=scatter.dtype)
    return int(torch.linalg.cholesky_ex(scatter + slack * identity)[1]) == 0


def totals_problems(totals: Totals, clients: int) -> list[str]:
    """Why sums without declared noise cannot be those of images; empty if they can.

    Args:
        totals: of one client or of several.
        clients: how many.
    """
    if totals.noisy:
        return []
    if bool((totals.counts < 0).any()):
        return ["a count is negative, and no noise was declared"]
    if not all(is_positive(moments_of(totals, half), clients, totals.bits) for half in (0, 1)):
        return ["the covariance is not positive, and no noise was declared"]
    return []


def part_problems(part: Part) -> list[str]:
    """Why the sums of one file without declared noise cannot be those of images.

    Takes two factorisations, so a server asks it of a file only where there are few.

    Args:
        part: ``sums`` of a client, or of several that were added before.
    """
    totals = add_clients({"": part}, part.classes)
    # How many clients rounded is not in the file; each has an image at least.
    clients = min(int(totals.counts.clamp(min=0).sum()), MOST_CLIENTS)
    return totals_problems(totals, max(1, clients))
