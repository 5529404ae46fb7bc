"""FedDF, FedMHO and FEDCVAE in a tiny world on the CPU: their loss curves, pinned. A change here
changes every result: say so in CHANGELOG.

The numbers are what this repository gave when the file was written; print ``[row["loss"] for row
in record["history"]]``.
"""

import pytest

from attar.fusion import fuse
from attar.methods import METHODS
from attar.methods.feddf import FedDF
from attar.testing import SMALL_DECODERS, SMALL_NETS, tiny_world

FEDDF = {
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


STRONG, MIXED = SMALL_NETS[:1] * 2, SMALL_NETS[:2]
SMALL = {"samples": 60, "batch_size": 16, "epochs": 4}
WEAK_CLIENTS = {
    "fedmho": (
        (*STRONG, *SMALL_DECODERS),
        "fedmho",
        {"remember": "nothing", "lr": 1e-2, "allocation": "labels"},
        [1.12628, 1.01136, 0.993192, 0.880231],
    ),
    "fedmho-md": (
        (*STRONG, *SMALL_DECODERS),
        "fedmho",
        {"remember": "md", "lr": 1e-2, "allocation": "labels"},
        [0.564727, 0.518372, 0.508238, 0.486673],
    ),
    "fedmho-sd, distilled first": (
        (*MIXED, *SMALL_DECODERS),
        "fedmho",
        {"initial_epochs": 2, "lr": 1e-2, "allocation": "labels"},
        [0.00198704, 0.000712564, 0.539602, 0.51265, 0.53521, 0.49225],
    ),
    "fedcvae-ens": (SMALL_DECODERS, "fedcvae", {}, [1.14531, 0.719794, 0.533363, 0.408095]),
    "fedcvae-kd": (
        SMALL_DECODERS,
        "fedcvae",
        {"mode": "kd", "decoder_epochs": 2},
        [179.323, 179.198, 0.948023, 0.354017, 0.174423, 0.0831057],
    ),
}


@pytest.mark.parametrize("name", FEDDF)
def test_curve_of_feddf_is_pinned(name):
    nets, settings, expected = FEDDF[name]
    world = tiny_world(nets)
    record = fuse(
        world.uploads, FedDF(steps=len(expected), batch_size=8, lr=1e-2, **settings), world.server
    ).record
    found = [row["loss"] for row in record["history"] if row["phase"] == "distil"]
    assert found == pytest.approx(expected, abs=1e-4)


def curve(name):
    nets, method, settings, _ = WEAK_CLIENTS[name]
    world = tiny_world(nets)
    history = fuse(world.uploads, METHODS[method](**SMALL, **settings), world.server).record[
        "history"
    ]
    return [row["loss"] for row in history]


@pytest.mark.parametrize("name", WEAK_CLIENTS)
def test_curve_of_weak_clients_is_pinned(name):
    assert curve(name) == pytest.approx(WEAK_CLIENTS[name][3], rel=1e-3, abs=1e-4)
