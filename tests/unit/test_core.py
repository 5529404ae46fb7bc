"""Specs, preprocessing and parts; shapes and numbers by hand."""

import pytest
import torch

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import AttarError, SettingsError, SpecError
from attar.nets import to_shape
from attar.seeds import derive, rng
from attar.testing import SHAPE, tiny_upload


def test_spec_parse_gives_equal_values():
    spec = ModelSpec.parse("mlp:layers=3,hidden=8")
    assert spec == ModelSpec("mlp", (("hidden", 8), ("layers", 3)))
    assert ModelSpec.parse(str(spec)) == spec
    assert len({spec, ModelSpec.parse("mlp:hidden=8,layers=3"), ModelSpec.parse("mlp")}) == 2
    assert ModelSpec.parse("mlp:hidden=256,layers=2") == ModelSpec.parse("mlp"), (
        "a default written out is no other net"
    )
    assert str(ModelSpec.parse("lenet5")) == "lenet5"


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("alexnet", SpecError, "alexnet"),
        ("", SpecError, "no net called"),
        ("mlp:depth=3", SettingsError, "depth"),
        ("mlp:hidden=wide", SettingsError, "hidden = 'wide'"),
        ("mlp:hidden", SettingsError, "key=value"),
        ("mlp:hidden=100000", SpecError, "out of bounds"),
    ],
)
def test_spec_parse_refuses_unknown_nets_and_options(text, kind, word):
    with pytest.raises(kind, match=word):
        ModelSpec.parse(text)


def test_find_unknown_net_lists_trainable_nets():
    with pytest.raises(SpecError) as caught:
        ModelSpec.parse("resnet-18")
    message = str(caught.value)
    assert "Did you mean 'resnet18'?" in message
    assert {"lenet5", "cvae-small"} <= set(message.replace(",", " ").split())
    assert not {"cvae-small-decoder", "feature-statistics", "graph"} & set(
        message.replace(",", " ").split()
    )


def test_spec_build_depends_on_the_seed_alone(monkeypatch):
    spec = ModelSpec.parse("resnet20")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    reseeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reseeded.append)
    one = spec.build((3, 32, 32), 4, seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), before), "the global random state was touched"
    assert reseeded == [], "the user's CUDA generators were reseeded"
    torch.manual_seed(2)
    two = spec.build((3, 32, 32), 4, seed=7).state_dict()
    three = spec.build((3, 32, 32), 4, seed=8).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["head.weight"], three["head.weight"])


def test_spec_skeleton_has_shapes_and_no_memory():
    spec = ModelSpec.parse("resnet20")
    real, shapes = (
        spec.build((3, 32, 32), 4, seed=0).state_dict(),
        spec.skeleton((3, 32, 32), 4).state_dict(),
    )
    assert list(real) == list(shapes)
    assert all(
        shapes[name].shape == real[name].shape and shapes[name].dtype == real[name].dtype
        for name in real
    )
    assert all(tensor.is_meta for tensor in shapes.values())


def test_part_build_is_frozen_and_copies():
    part = tiny_upload("a", "resnet20").parts["classifier"]
    before = {name: tensor.clone() for name, tensor in part.state.items()}
    net = part.build()
    assert not net.training
    assert not any(parameter.requires_grad for parameter in net.parameters())
    with torch.no_grad():
        next(net.parameters()).add_(1)
    net.train()(torch.rand(2, *SHAPE))  # moves the BatchNorm statistics of the copy
    assert all(torch.equal(before[name], tensor) for name, tensor in part.state.items())


# --- preprocessing --------------------------------------------------------------------------------


def test_preprocess_by_hand():
    """(0.5 - 0.25) / 0.5 = 0.5; (0.5 - 0.5) / 0.1 = 0; (0.5 - 1) / 2 = -0.25."""
    pre = Preprocess((3, 1, 1), (0.25, 0.5, 1.0), (0.5, 0.1, 2.0))
    assert pre(torch.full((1, 3, 1, 1), 0.5)).view(-1).tolist() == pytest.approx([0.5, 0.0, -0.25])
    centred = Preprocess.centred((1, 1, 3))
    assert centred(torch.tensor([[[[0.0, 0.5, 1.0]]]])).view(-1).tolist() == [-1.0, 0.0, 1.0]


def test_to_shape_channels():
    colour = torch.tensor([0.1, 0.2, 0.6]).view(1, 3, 1, 1)
    assert to_shape(colour, (1, 1, 1)).item() == pytest.approx(0.3)
    assert to_shape(torch.full((1, 1, 1, 1), 0.7), (3, 1, 1)).view(-1).tolist() == pytest.approx(
        [0.7] * 3
    )


def test_to_shape_sizes_by_hand():
    """Bilinear between pixel centres. Twice as wide: 0, 1 -> 0, 1/4, 3/4, 1. Half as wide,
    antialiased by a triangle: the left of two outputs is centred at 1.0 and reaches 2 to each
    side; the pixels 0, 1, 2 lie at 0.5, 1.5, 2.5 and weigh 3/4, 3/4, 1/4, so it is (0 * 3 + 1 *
    3 + 2 * 1) / 7 = 5/7, and the right one mirrors it.
    """
    row = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    assert to_shape(row, (1, 1, 4)).view(-1).tolist() == pytest.approx([0, 0.25, 0.75, 1])
    row = torch.tensor([0.0, 1.0, 2.0, 3.0]).view(1, 1, 1, 4)
    assert to_shape(row, (1, 1, 2)).view(-1).tolist() == pytest.approx([5 / 7, 3 - 5 / 7])


def test_to_shape_of_the_same_shape():
    image = torch.rand(2, 3, 5, 7)
    assert to_shape(image, (3, 5, 7)) is image


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 20, 20), (1, 9, 31), (3, 16, 40)])
def test_to_shape_keeps_flat_images_and_range(shape):
    out = to_shape(torch.full((2, 3, 17, 23), 0.3), shape)
    assert out.shape == (2, *shape)
    torch.testing.assert_close(out, torch.full_like(out, 0.3))
    noise = to_shape(torch.rand(2, 3, 17, 23, generator=rng(0)), shape)
    assert 0 <= noise.min() <= noise.max() <= 1


def test_preprocess_is_differentiable():
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=rng(1)).requires_grad_()
    pre = Preprocess((1, 5, 6), (0.3,), (0.7,))
    assert torch.autograd.gradcheck(pre, (images,))


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.5,), (0.5, 0.5, 0.5)),
        ((0.5,) * 3, (0.5,)),
        ((0.5,) * 3, (0.5, 0.0, 0.5)),
        ((0.0,) * 3, (-1.0,) * 3),
        ((0.0,) * 3, (float("inf"),) * 3),
        ((0.0,) * 3, (float("nan"),) * 3),
    ],
)
def test_preprocess_refuses_bad_values(mean, std):
    with pytest.raises(SpecError):
        Preprocess((3, 8, 8), mean, std)


# --- seeds and errors -----------------------------------------------------------------------------


def test_derive_differs_by_purpose_and_never_changes():
    seeds = [
        derive(0),
        derive(1),
        derive(0, "a"),
        derive(0, "b"),
        derive(0, "a", 1),
        derive(0, "a", 2),
        derive(1, "a"),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(0, "student") == 409236633090529362, (
        "a changed derivation changes every published result"
    )


def test_attar_error_text():
    error = SpecError("Something is wrong:", problems=["here", "and there"], fix="do this")
    assert isinstance(error, AttarError)
    assert str(error) == "Something is wrong:\n  - here\n  - and there\nTo fix it: do this"
    assert error.exit_status == 2
    assert str(AttarError("Alone.")) == "Alone."


def test_part_build_refuses_other_shapes():
    part = tiny_upload("a").parts["classifier"]
    with pytest.raises(RuntimeError):
        Part(part.spec, part.state, (*part.classes, "more"), part.preprocess).build()


def test_part_in_order_and_for_classes():
    part = tiny_upload("ann", "lenet5").parts["classifier"]
    turned = part.in_order(part.classes[::-1])
    images = torch.rand(3, *part.preprocess.input_shape)
    assert torch.equal(turned.build().eval()(images), part.build().eval()(images).flip(1))
    assert turned.in_order(part.classes).fingerprint() == part.fingerprint()
    assert part.in_order(part.classes) is part
    assert part.in_order(("other", *part.classes[1:])) is None
    assert torch.equal(
        part.for_classes(part.classes[::-1], seed=0).state["head.bias"],
        part.state["head.bias"].flip(0),
    )
    fresh = part.for_classes(("x", "y"), seed=0)
    assert fresh.state["head.bias"].shape == (2,)
