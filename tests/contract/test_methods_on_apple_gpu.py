"""Every method on an Apple GPU, which has no double precision: the stand-in of mps_stand_in.py."""

from dataclasses import replace

import pytest
import torch
from test_methods import QUICK

from attar.fusion import fuse
from attar.methods import METHODS
from attar.testing import (
    SMALL_DECODERS,
    SMALL_NETS,
    SMALL_SUMS,
    SMALL_VITS,
    tiny_world,
    with_needs,
)
from mps_stand_in import apple_gpu

# Settings beside the first of QUICK whose steps are others.
ALSO = {
    "accord": [2, 4],
    "co-boosting": [1],
    "ensemble": [4, 6],
    "fedavg": [2],
    "fedcvae": [1],
    "fedkem": [3],
    "fedmho": [0, 3],
}


def world_for(method):
    parts = method.needs.parts
    if "sums" in parts:
        return tiny_world(SMALL_SUMS[1:2] * 2)
    known = SMALL_VITS if method.needs.same_patches else SMALL_NETS
    nets = [*known[:1] * 2] if "classifier" in parts else []
    return with_needs(tiny_world([*nets, *(SMALL_DECODERS[:1] * ("decoder" in parts))]), method)


FAST = {"dense", "ensemble", "feddf", "fedavg", "gaussian-head"}
# vmap makes weights for its BatchNorms itself, of which the stand-in cannot say where they are.
BEYOND = {"fedhydra"}
CASES = [
    pytest.param(name, number, marks=() if name in FAST and number == 0 else pytest.mark.slow)
    for name in QUICK
    if name not in BEYOND
    for number in (0, *ALSO.get(name, ()))
]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_fuse_on_apple_gpu(name, number):
    method = METHODS[name](**QUICK[name][number])
    world = world_for(method)
    expected = fuse(world.uploads, method, world.server).model
    with apple_gpu() as gpu:
        fused = fuse(world.uploads, method, replace(world.server, device="mps")).model
    if "sums" not in method.needs.parts and any(phase.steps for phase in phases(method, world)):
        assert len(gpu.used) > 10
    images = torch.rand(6, *world.server.task.input_shape)
    with torch.no_grad():
        logits = [model(images) for model in (fused, expected)]
    torch.testing.assert_close(*logits, rtol=0.05, atol=0.05)  # float32 in place of float64


def phases(method, world):
    return method.phases(method.prepare(world.uploads, world.server))
