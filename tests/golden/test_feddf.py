"""FedDF in a tiny world on the CPU: its loss curve, pinned. A change here changes every result: say so in CHANGELOG.

The numbers are what this repository gave when the file was written; print ``[row["loss"] for row in record["history"]]``.
"""

import pytest

from attar.fusion import fuse
from attar.methods.feddf import FedDF
from attar.testing import tiny_world

CURVES = {}


@pytest.mark.parametrize("name", CURVES)
def test_the_loss_curve_is_the_recorded_one(name):
    nets, settings, expected = CURVES[name]
    world = tiny_world(nets)
    record = fuse(world.uploads, FedDF(steps=len(expected), batch_size=8, lr=1e-2, **settings), world.server).record
    found = [row["loss"] for row in record["history"] if row["phase"] == "distil"]
    assert found == pytest.approx(expected, abs=1e-4)
