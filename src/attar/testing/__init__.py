"""For people who add a method: tiny federations, and the contract that every method keeps.

The test of a method is two lines::

    from attar.testing import check_method
    check_method(MyMethod(epochs=2, batch_size=8))  # AssertionError: what is broken
"""

from attar.testing.contract import check_method, check_repeats, check_resumes, model_bits
from attar.testing.toy_federations import (
    CLASSES,
    COLOUR,
    GREY,
    SHAPE,
    SMALL_DECODERS,
    SMALL_NETS,
    SMALL_SUMS,
    SMALL_VITS,
    World,
    tiny_backbone,
    tiny_decoder,
    tiny_statistics,
    tiny_sums,
    tiny_upload,
    tiny_world,
    with_needs,
    without_extras,
)

__all__ = [
    "CLASSES",
    "COLOUR",
    "GREY",
    "SHAPE",
    "SMALL_DECODERS",
    "SMALL_NETS",
    "SMALL_SUMS",
    "SMALL_VITS",
    "World",
    "check_method",
    "check_repeats",
    "check_resumes",
    "model_bits",
    "tiny_backbone",
    "tiny_decoder",
    "tiny_statistics",
    "tiny_sums",
    "tiny_upload",
    "tiny_world",
    "with_needs",
    "without_extras",
]
