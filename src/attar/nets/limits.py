"""What an architecture cannot take, said at build time and with the repair."""

from collections.abc import Sequence
from typing import Literal

from attar.errors import SpecError
from attar.nets.registry import Shape

# "small": the stem keeps the resolution and 32 x 32 pixels end in a 4 x 4 map; "imagenet": the
# strides published.
Stem = Literal["small", "imagenet"]


def require_side(arch: str, input_shape: Shape, smallest: int) -> None:
    """Refuse images with a side below ``smallest``."""
    _, height, width = input_shape
    if min(height, width) < smallest:
        raise SpecError(
            f"Net {arch} cannot take images of {height} x {width} pixels.",
            fix=f"use images of at least {smallest} x {smallest} pixels, or another net",
        )


def require_halvings(arch: str, input_shape: Shape, times: int) -> None:
    """Refuse images so small that one of ``times`` padded halvings (n -> ceil(n / 2)) would find
    a single pixel.
    """
    require_side(arch, input_shape, 2 ** (times - 1) + 1)


def require_options(arch: str, problems: Sequence[str]) -> None:
    """Refuse option values, all of them in one error."""
    if problems:
        raise SpecError(f"Options of net {arch} that it cannot take.", problems=problems)


def dropout_problems(dropout: float) -> list[str]:
    """A rate of 1 would drop everything."""
    return [] if 0 <= dropout < 1 else [f"dropout = {dropout}: at least 0 and below 1"]
