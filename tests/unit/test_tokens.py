"""Nets with tokens: alone, as teachers (stacked, one by one, swapped), and extras of a pool."""

import pytest
import torch

from attar.blocks.ensemble import Teachers
from attar.blocks.ensemble.averages import weight_bytes
from attar.blocks.ensemble.teachers import TeacherGroup
from attar.blocks.images import Pool
from attar.core import ModelSpec, Needs
from attar.errors import SpecError
from attar.methods import unmet_needs
from attar.nets.registry import NETS, Look, token_net
from attar.nets.vit_stacked import block_stacked
from attar.testing import CLASSES, SHAPE, tiny_upload, tiny_world

FINE = "vit:patch=4,width=12,depth=1,hidden=16"
WITH_TOKENS = sorted(name for name in NETS if NETS[name].tokens)


def test_nets_with_tokens_are_the_transformers():
    assert WITH_TOKENS == [
        "deit-base",
        "deit-small",
        "deit-tiny",
        "vit",
        "vit-base",
        "vit-small",
        "vit-tiny",
    ]
    with pytest.raises(SpecError, match="Net lenet5 has no tokens"):
        token_net("lenet5", ModelSpec("lenet5").build(SHAPE, 3, 0))
    assert ModelSpec("lenet5").patches(SHAPE) is None


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_look_of_every_net_with_tokens(name):
    spec = ModelSpec.of(name, {"depth": 1, "patch": 8})
    net = token_net(name, spec.build((3, 16, 24), 5, 0).eval())
    x, keep = (
        torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0, 5], [2, 3]]),
    )
    assert net.grid == spec.patches((3, 16, 24)) == (2, 3)
    for kept, number in ((None, 6), (keep, 2)):
        look = net.look(x, kept)
        assert isinstance(look, Look)
        assert torch.equal(look.logits, net(x, kept))
        assert look.logits.shape == (2, 5)
        assert look.attention.shape == (2, number)
        assert look.tokens.shape[:2] == (2, number + (1 if "distilled" not in str(spec) else 2))
    assert torch.equal(net(x), net.head(net.features(x)))
    assert not torch.allclose(net(x), net(x, keep))


def test_forward_saves_the_work_of_left_out_patches():
    """All products but the head's are in proportion to the tokens, and attention falls faster."""
    from torch.utils.flop_counter import FlopCounterMode

    net = ModelSpec.parse("vit-tiny:depth=2").build((3, 32, 32), 10, 0).eval()
    counts = []
    for kept in (64, 16):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net(torch.zeros(1, 3, 32, 32), torch.arange(kept).expand(1, kept))
        counts.append(counter.get_total_flops())
    assert counts[1] < counts[0] * 17 / 65


def parts(*names):
    return [
        tiny_upload(f"client{number}", name).parts["classifier"]
        for number, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    "names", [(FINE,) * 3, (FINE, "vit-tiny:depth=1,patch=4", FINE)], ids=["alike", "mixed"]
)
@pytest.mark.parametrize("kept", [None, 5])
def test_look_of_teachers_on_their_own_images(names, kept):
    some, draws = parts(*names), torch.Generator().manual_seed(0)
    images = torch.rand(3, 2, *SHAPE, generator=draws)
    keep = None if kept is None else torch.rand(3, 2, 16, generator=draws).argsort(-1)[..., :kept]
    found = []
    for ways in ({"stack": True}, {"stack": False}, {"memory": weight_bytes(some[0])}):
        source = images.clone().requires_grad_()
        logits, attention = Teachers(some, CLASSES, **ways).look(source, keep)
        (gradient,) = torch.autograd.grad(logits.square().sum(), source)
        assert not attention.requires_grad
        found.append((logits.detach(), attention, gradient))
    alone = []
    for number, part in enumerate(some):
        x = part.preprocess(images[number])
        look = part.build().look(x, None if keep is None else keep[number])
        alone.append((look.logits, look.attention))
    for logits, attention, gradient in found:
        torch.testing.assert_close(
            logits, torch.stack([one for one, _ in alone]), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            attention, torch.stack([one for _, one in alone]), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(gradient, found[0][2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "depth"), [(FINE, 1), ("deit-tiny:depth=2,distilled=true,patch=4", 2)]
)
@pytest.mark.parametrize("kept", [None, 5])
def test_look_with_stacked_blocks_equals_nets_alone(name, depth, kept, monkeypatch):
    """What compiled transformers do on CUDA, here as it is without the compiler."""
    monkeypatch.setattr(TeacherGroup, "stacks", lambda group, images: False)
    some, draws = parts(name, name, name), torch.Generator().manual_seed(0)
    images = torch.rand(3, 2, *SHAPE, generator=draws)
    keep = None if kept is None else torch.rand(3, 2, 16, generator=draws).argsort(-1)[..., :kept]
    teachers, calls, found = Teachers(some, CLASSES), [], []

    def noted(function):
        return lambda *inputs: calls.append(function) or function(*inputs)

    monkeypatch.setattr("attar.blocks.ensemble.teachers.compiled", noted)
    for stacked in (True, False):
        monkeypatch.setattr(TeacherGroup, "stacks_blocks", lambda group, images, on=stacked: on)
        source = images.clone().requires_grad_()
        logits, attention = teachers.look(source, keep)
        (gradient,) = torch.autograd.grad(logits.square().sum(), source)
        found.append((logits.detach(), attention, gradient))
        assert calls == [block_stacked] * depth
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it compiles
def test_compiled_transformers_run_stacked_on_cuda():
    """For any number of patches, forward and backward, as the nets that are not compiled."""
    some = parts(*("vit-tiny:depth=2,patch=4",) * 3)
    plain, fast = (Teachers(some, CLASSES, compile=on).cuda() for on in (False, True))
    for kept in (16, 7, 3):
        images = torch.rand(3, 4, *SHAPE, device="cuda")
        keep = torch.rand(3, 4, 16, device="cuda").argsort(-1)[..., :kept].contiguous()
        assert fast.groups[0].stacks_blocks(images)
        found = []
        for teachers in (plain, fast):
            source = images.clone().requires_grad_()
            logits, attention = teachers.look(source, keep)
            (gradient,) = torch.autograd.grad(logits.square().sum(), source)
            found.append((logits.detach(), attention, gradient))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_teachers_on_some_patches():
    some, keep = parts(FINE, FINE), torch.tensor([[0, 3], [15, 8]])
    images = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    alone = torch.stack([part.build()(part.preprocess(images), keep) for part in some])
    for ways in ({"stack": True}, {"stack": False}, {"memory": 1}):
        torch.testing.assert_close(
            Teachers(some, CLASSES, **ways)(images, keep), alone, rtol=1e-4, atol=1e-5
        )


def test_unmet_names_missing_tokens():
    world = tiny_world()
    needs = Needs(capabilities=("tokens",))
    assert unmet_needs(needs, world.uploads, world.server) == [
        "at least one client must have a net with tokens"
    ]
    assert unmet_needs(needs, tiny_world([FINE]).uploads, world.server) == []


def test_pool_keeps_extras_of_each_image():
    extras = {"mask": torch.zeros(4, dtype=torch.bool), "answers": torch.zeros(3)}
    pool = Pool((1, 2, 2), 5, "cpu", extras=extras, as_bytes=True)
    draws = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.rand(2, 1, 2, 2, generator=draws),
            torch.tensor([n, n]),
            torch.rand(2, 4, generator=draws) > 0.5,
        )
        for n in range(3)
    ]
    for images, labels, mask in batches:
        pool.add(images, labels, mask=mask, answers=labels[:, None].float().expand(-1, 3))
        torch.testing.assert_close(pool.newest(2), pool.as_stored(images))
    assert pool.labels(pool.latest(5)).tolist() == [0, 1, 1, 2, 2], (
        "a ring: the first image gave way"
    )
    assert torch.equal(pool.extras("mask", pool.latest(2)), batches[2][2])
    assert pool.extras("answers", pool.latest(5))[:, 0].tolist() == [0, 1, 1, 2, 2]
    again = Pool((1, 2, 2), 5, "cpu", extras=extras, as_bytes=True)
    again.put_back(pool.since(0), 6)
    for name in extras:
        assert torch.equal(again.extras(name, again.latest(5)), pool.extras(name, pool.latest(5)))
    with pytest.raises(ValueError, match="extras"):
        pool.add(*batches[0][:2])
