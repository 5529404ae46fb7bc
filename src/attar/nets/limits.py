"""What an architecture does not take, found when it is built, with the repair."""

from collections.abc import Sequence
from typing import Literal

from attar.errors import SpecError
from attar.nets.registry import Shape

Stem = Literal["small", "imagenet"]
"""``"small"`` keeps the resolution in the stem, so that 32 x 32 pixels end in a 4 x 4 map;
``"imagenet"`` has the published strides.
"""


def require_side(arch: str, input_shape: Shape, smallest: int) -> None:
    """Refuse images with a side below ``smallest`` pixels.

    Args:
        arch: the net, for the message.
        input_shape: (C, H, W).
        smallest: of height and width.

    Raises:
        SpecError: if a side is shorter.
    """
    _, height, width = input_shape
    if min(height, width) < smallest:
        raise SpecError(
            f"Net {arch} cannot take images of {height} x {width} pixels.",
            fix=f"use images of at least {smallest} x {smallest} pixels, or another net",
        )


def require_halvings(arch: str, input_shape: Shape, times: int) -> None:
    """Refuse images that are too small for padded halvings (n -> ceil(n / 2)).

    Args:
        arch: the net, for the message.
        input_shape: (C, H, W).
        times: how often the net halves; each halving needs at least two pixels.

    Raises:
        SpecError: if the images are smaller.
    """
    require_side(arch, input_shape, 2 ** (times - 1) + 1)


def require_options(arch: str, problems: Sequence[str]) -> None:
    """Refuse option values.

    Args:
        arch: the net, for the message.
        problems: one for each refused value; nothing happens if there are none.

    Raises:
        SpecError: with all problems.
    """
    if problems:
        raise SpecError(f"Options of net {arch} that it cannot take.", problems=problems)


def dropout_problems(dropout: float) -> list[str]:
    """Problems with a dropout rate, which must be at least 0 and below 1."""
    return [] if 0 <= dropout < 1 else [f"dropout = {dropout}: at least 0 and below 1"]
