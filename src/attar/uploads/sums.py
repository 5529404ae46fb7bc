"""Whether sums of features (``nets/feature_sums.py``) can be those of some images.

The checks read every number once or twice: a server adds the files of a thousand clients.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attar.core import Part
from attar.settings import Scalar
from attar.uploads.statistics import privacy_problems

# Of a rounded number: a file with smaller ones can be added to a thousand others in 64 bits, and
# every whole number up to it is exact in double precision.
LARGEST_SUM = 2**53
_SLACK = 1 + 1e-9  # for sums that were added up in double precision


def sums_problems(
    parts: Mapping[str, Part], num_examples: int, label_counts: tuple[int, ...] | None
) -> list[str]:
    """Check the sums in an upload.

    Args:
        parts: of the upload; no part ``sums`` is no problem.
        num_examples: of the upload.
        label_counts: of the same.

    Returns:
        One sentence for each problem; empty if they are those of some images, or noise is declared
        and the numbers are in range.
    """
    part = parts.get("sums")
    if part is None:
        return []
    options = dict(part.spec.options)
    tables = [part.state["counts"], part.state["sums"], *part.state["squares"].flatten(0, 1)]
    sizes = [_largest(table) for table in tables]
    largest = max(sizes)
    if largest > LARGEST_SUM:
        return [f"a number of {largest:.1e} is too large: the sums of many clients would overflow"]
    if options.get("epsilon"):
        return _noise_problems(options, [name for name in parts if name != "sums"])
    if problems := privacy_problems(options):
        return problems
    counts = part.state["counts"]
    if bool((counts < 0).any()):
        return ["negative counts, and no noise is declared"]
    total = int(counts.sum())
    problems = []
    if total != num_examples:
        problems.append(f"its counts add up to {total}, num_examples is {num_examples}")
    if label_counts is not None and counts.sum(0).tolist() != list(label_counts):
        problems.append("its counts are not the label counts")
    return problems or _moment_problems(part, options, sizes[2:])


def _largest(tensor: Tensor) -> int:
    least, most = tensor.aminmax()
    return max(-int(least), int(most))


def _noise_problems(options: Mapping[str, Scalar], others: list[str]) -> list[str]:
    problems = privacy_problems(options)
    if others:
        names = ", ".join(others)
        problems.append(f"an epsilon of the sums beside {names}, which it does not cover")
    return problems


def _moment_problems(part: Part, options: Mapping[str, object], sizes: Sequence[int]) -> list[str]:
    """Why counts n, sums s and squares q are not those of any vectors phi.

    All in units of 2^-bits, but n; ``sizes`` are the largest |q_ij| of each matrix.
    """
    counts = part.state["counts"].double()
    sums = part.state["sums"].double()
    squares = part.state["squares"]
    bits = options.get("bits", 24)
    clip = options.get("clip", 0.0)
    assert isinstance(bits, int)
    assert isinstance(clip, int | float)
    unit = 2.0**bits
    width = sums.shape[-1]
    places = torch.arange(width)
    diagonals = squares[..., places * (places + 3) // 2].double()
    if bool((diagonals < 0).any()):
        return ["a negative sum of squares, and no noise is declared"]
    if bool((sums[counts == 0] != 0).any()):
        return ["sums of a class without images, and no noise is declared"]
    if clip:
        longest = counts * clip * unit * _SLACK + width
        if bool((sums.norm(dim=-1) > longest).any()):
            return [f"a sum of features is longer than its count and the clip of {clip:g} allow"]
        most = counts.sum(1) * clip**2 * unit * _SLACK + width * diagonals.shape[1]
        if bool((diagonals.sum((1, 2)) > most).any()):
            return [f"squares are larger than the counts and the clip of {clip:g} allow"]
    # The variances: the sum over classes of s^2 / n is at most q, in every dimension. Rounding
    # moved s by up to 1/2 for each client in the file, of which there are at most n.
    held = counts.clamp(min=1)[..., None]
    least = (sums.abs() - held).clamp(min=0).square() / held / unit
    slack = held
    if diagonals.shape[1] == 1:
        least = least.sum(1, keepdim=True)
        slack = held.sum(1, keepdim=True)
    if bool((least > (diagonals + slack) * _SLACK).any()):
        return ["squares are smaller than the sums allow: a variance would be negative"]
    # No |q_ij| is above both q_ii and q_jj. That the matrix has no negative eigenvalue is checked
    # where sums are added, and by `attar inspect`: it takes longer than reading the file.
    limits = (diagonals + slack).flatten(0, 1).amax(1).tolist()
    if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
        return ["squares that are no sum of products: some |q_ij| is above every q_ii"]
    return []
