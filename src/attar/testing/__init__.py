"""For people who add a method: tiny worlds, and the contract that every method keeps.

from attar.testing import check_method
check_method(MyMethod(epochs=2, batch_size=8))        # in your test; raises AssertionError with what is broken
"""

from attar.testing.contract import check_method
from attar.testing.worlds import (
    CLASSES,
    COLOUR,
    GREY,
    SHAPE,
    SMALL_DECODERS,
    SMALL_NETS,
    SMALL_VITS,
    World,
    bare,
    equipped,
    tiny_decoder,
    tiny_statistics,
    tiny_upload,
    tiny_world,
)

__all__ = [
    "CLASSES",
    "COLOUR",
    "GREY",
    "SHAPE",
    "SMALL_DECODERS",
    "SMALL_NETS",
    "SMALL_VITS",
    "World",
    "bare",
    "check_method",
    "equipped",
    "tiny_decoder",
    "tiny_statistics",
    "tiny_upload",
    "tiny_world",
]
