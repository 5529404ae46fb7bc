"""FedDF in a tiny world on the CPU: its loss curve, pinned. A change here changes every result:
say so in CHANGELOG.

The numbers are what this repository gave when the file was written; print ``[row["loss"] for row
in record["history"]]``.
"""

import pytest

from attar.fusion import fuse
from attar.methods.feddf import FedDF
from attar.testing import SMALL_NETS, tiny_world

CURVES = {
    "one architecture": (
        SMALL_NETS[:1] * 3,
        {},
        [0.001212, 0.001709, 0.002327, 0.019752, 0.009938, 0.001506, 0.001249, 0.002811],
    ),
    "three architectures": (
        SMALL_NETS,
        {},
        [0.045573, 0.052230, 0.043818, 0.040809, 0.045354, 0.024347, 0.027310, 0.018593],
    ),
    "fresh, at temperature 4, from probabilities": (
        SMALL_NETS[:1] * 3,
        {"temperature": 4.0, "teacher": "mean-probabilities", "start_from": "fresh"},
        [0.026982, 0.032941, 0.026325, 0.021511, 0.016224, 0.022531, 0.023352, 0.008418],
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_curve_of_feddf_is_pinned(name):
    nets, settings, expected = CURVES[name]
    world = tiny_world(nets)
    record = fuse(
        world.uploads, FedDF(steps=len(expected), batch_size=8, lr=1e-2, **settings), world.server
    ).record
    found = [row["loss"] for row in record["history"] if row["phase"] == "distil"]
    assert found == pytest.approx(expected, abs=1e-4)
