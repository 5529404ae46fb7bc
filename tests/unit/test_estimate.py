"""What a run will cost is told from a short trial of it."""

import torch

from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.fusion import estimate, fuse
from attar.fusion.estimate import affordable_images, shorten, shrink_batches
from attar.methods import METHODS
from attar.running import RunOptions
from attar.testing import SMALL_DECODERS, SMALL_NETS, tiny_world


def test_shorten_scales_with_work():
    """Six thousand images are 23 times the work of 256, in epochs and in questions alike."""
    world = tiny_world((*SMALL_NETS, *SMALL_DECODERS))
    method = METHODS["fedmho"](remember="both")
    trial = shorten(method)
    assert trial.samples == 256
    short, whole = (
        some.phases(some.prepare(world.uploads, world.server)) for some in (trial, method)
    )
    assert [phase.name for phase in short] == [phase.name for phase in whole]
    for one, other in zip(short, whole, strict=True):
        share = sum(map(one.work, range(one.steps))) / sum(map(other.work, range(other.steps)))
        assert 0.95 < share * 6000 / 256 < 1.05, one.name


def test_shorten_keeps_few_images():
    assert shorten(METHODS["fedmho"](samples=9)).samples == 9
    assert shorten(METHODS["fedmho"](), images=2).samples == 32
    assert shorten(METHODS["dense"]()).generator.steps == 1


def test_estimate_with_decoders():
    world = tiny_world((*SMALL_NETS[:1], *SMALL_DECODERS))
    assert (
        estimate(METHODS["fedmho"](samples=300, epochs=2), world.uploads, world.server).seconds > 0
    )


def test_shrink_batches_counts_work():
    small, larger = shrink_batches(METHODS["dense"](batch_size=128), 16)
    assert (small.batch_size, larger) == (16, 8.0)
    assert shrink_batches(METHODS["dense"](batch_size=4), 16) == (
        METHODS["dense"](batch_size=4),
        1.0,
    )
    epochs = METHODS["fedmho"]()  # passes over its samples: the same work in batches of any size
    assert shrink_batches(epochs, 16) == (epochs, 1.0)
    for name in ("f-dafl", "f-adi", "fedftg", "co-boosting", "fedhydra", "accord", "fedmitr"):
        assert shrink_batches(METHODS[name](), 2)[0].batch_size == 2, name


def test_affordable_images_of_large_nets():
    assert affordable_images(tiny_world().uploads) == 16
    spec, shape, classes = ModelSpec("resnet18"), (3, 64, 64), ("a", "b")
    part = Part(spec, spec.skeleton(shape, 2).state_dict(), classes, Preprocess.centred(shape))
    assert affordable_images([Upload(name, {"classifier": part}, 1) for name in "abc"]) == 2


def test_foresee_tells_the_time_before_the_first_step_and_changes_no_bit():
    world = tiny_world((*SMALL_NETS, *SMALL_DECODERS))
    method = METHODS["fedmho"](samples=60, epochs=2, initial_epochs=1)
    told = []
    options = RunOptions(watch=told.append, watch_seconds=0.0, foresee=True)
    foreseen = fuse(world.uploads, method, world.server, options=options)
    assert told[0].step == 0
    assert told[0].phase == "generate"
    assert told[0].seconds_left > 0
    assert told[0].metrics == {}
    plain = fuse(world.uploads, method, world.server)
    assert fuse(world.uploads[:3], METHODS["ensemble"](), options=options).finished  # without steps
    weights, same = (run.result.models["student"].state for run in (foreseen, plain))
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_estimate_has_a_rate_for_each_phase():
    world = tiny_world()
    found = estimate(METHODS["dense"](epochs=2, generator_steps=2), world.uploads, world.server)
    assert len(found.rates) == 1
    assert found.rates[0] > 0
