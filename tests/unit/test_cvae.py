"""Autoencoders and their decoders: published sizes and costs, any image shape, the decoder
alone, stacked calls.
"""

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from attar.core import ModelSpec
from attar.errors import SpecError
from attar.nets.cost import example_inputs, multiply_accumulates
from attar.nets.cvae import CVAE, Decoder
from attar.nets.registry import NETS
from attar.training.cvae import decoder_spec

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
AUTOENCODERS = [
    "cvae-small",
    "cvae-small:form=emnist",
    "cvae-small:form=svhn,latent=5,hidden=16",
    "cvae-large:hidden=16",
]
SHAPES = [GREY, COLOUR, (1, 16, 16), (3, 29, 43), (2, 9, 8)]


def draw(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def labels(*numbers, classes=10):
    return F.one_hot(torch.tensor(numbers), classes).float()


@pytest.mark.parametrize("spec", AUTOENCODERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_is_encoded_and_decoded(spec, shape):
    net = ModelSpec.parse(spec).build(shape, 10, seed=0)
    assert isinstance(net, CVAE)
    logits, mean, log_variance = net(draw(2, *shape), labels(3, 7), torch.zeros(2, net.latent))
    assert logits.shape == (2, *shape)
    assert mean.shape == log_variance.shape == (2, net.latent)
    logits.sum().backward()
    assert all(
        param.grad is not None and param.grad.isfinite().all()
        for param in net.encoder.mean.parameters()
    )


@pytest.mark.parametrize("spec", AUTOENCODERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_decoder_alone_is_the_decoder_inside(spec, shape):
    whole = ModelSpec.parse(spec).build(shape, 10, seed=0)
    alone = decoder_spec(ModelSpec.parse(spec)).build(shape, 10, seed=1)
    assert isinstance(alone, Decoder)
    alone.load_state_dict(whole.decoder.state_dict())
    noise = torch.randn(3, whole.latent, generator=torch.Generator().manual_seed(0))
    images = alone(noise, labels(0, 1, 2))
    assert torch.equal(images, whole.decoder.logits(noise, labels(0, 1, 2)).sigmoid())
    assert images.shape == (3, *shape)
    assert images.min() >= 0
    assert images.max() <= 1


@pytest.mark.parametrize("spec", AUTOENCODERS)
def test_label_and_code_both_matter(spec):
    net = decoder_spec(ModelSpec.parse(spec)).build(GREY, 10, seed=0)
    noise = torch.randn(1, net.latent, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(net(noise, labels(0)), net(noise, labels(1)))
    assert not torch.allclose(net(noise, labels(0)), net(noise + 1, labels(0)))


def test_the_encoder_sees_the_label():
    net = ModelSpec("cvae-small").build(GREY, 10, seed=0)
    image = draw(1, *GREY)
    assert not torch.allclose(net.encoder(image, labels(0))[0], net.encoder(image, labels(1))[0])


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "published"),
    [
        ("cvae-small", GREY, 10, 409_364),
        ("cvae-small:latent=20", GREY, 10, 423_224),
        ("cvae-small", GREY, 47, 436_401),
        ("cvae-small", COLOUR, 10, 302_859),
        ("cvae-large", GREY, 10, 7_193_017),
        ("cvae-large", GREY, 47, 7_203_969),
        ("cvae-large", COLOUR, 10, 9_165_243),
    ],
)
def test_published_parameters(spec, shape, classes, published):
    net = ModelSpec.parse(spec).skeleton(shape, classes)
    assert sum(param.numel() for param in net.parameters()) == published


MNIST, SVHN, EMNIST = (GREY, 10), (COLOUR, 10), (GREY, 47)
TABLE_2 = {
    "vgg9": {MNIST: 126.47e6, SVHN: 145.48e6, EMNIST: 126.47e6},
    "cnn-mho": {MNIST: 467.23e3, SVHN: 4.00e6, EMNIST: 3.96e6},
    "cvae-large": {MNIST: 152.67e6, SVHN: 201.76e6, EMNIST: 152.67e6},
    "cvae-small": {MNIST: 408.06e3, SVHN: 2.08e6, EMNIST: 1.06e6},
}


@pytest.mark.parametrize(
    ("spec", "task", "published"),
    [(spec, task, value) for spec, row in TABLE_2.items() for task, value in row.items()],
)
def test_table_2_of_fedmho(spec, task, published):
    """Its "FLOPs" are multiply-accumulates, and transposed convolutions are counted by their output.

    All twelve agree within 0.6 % (asked for: 5 %); cvae-large lacks the half per cent of its
    bilinear upsampling.
    """
    shape, classes = task
    found = multiply_accumulates(
        ModelSpec(spec).skeleton(shape, classes), shape, inserted_zeros=True
    )
    assert found == pytest.approx(published, rel=0.006)


def test_operations_by_hand():
    """mlp 4-3-2: 4 x 3 + 3 x 2 = 18. A transposed 4 x 4 convolution 8-1 from 14 x 14 to 28 x 28
    makes 14 x 14 x 16 x 8 products and would make four times as many if the zeros between its
    inputs were there.
    """
    assert (
        multiply_accumulates(
            ModelSpec.parse("mlp:hidden=3,layers=1").skeleton((1, 2, 2), 2), (1, 2, 2)
        )
        == 18
    )
    net = torch.nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)
    assert multiply_accumulates(net, (8, 14, 14)) == 14 * 14 * 16 * 8
    assert multiply_accumulates(net, (8, 14, 14), inserted_zeros=True) == 28 * 28 * 16 * 8


def test_attention_is_counted():
    """vit of one block, 16 tokens and a class token of width 192: the two products of attention
    are 2 x 17 x 17 x 192.
    """
    shape = (1, 16, 16)
    net = ModelSpec.parse("vit-tiny:patch=4,depth=1").skeleton(shape, 2)
    layers = sum(module.weight.numel() for name, module in net.named_modules() if isinstance(module, torch.nn.Linear)
                 and "head" not in name)  # fmt: skip
    embedding, head = 16 * 16 * 192, 192 * 2
    assert multiply_accumulates(net, shape) == 17 * layers + embedding + head + 2 * 17 * 17 * 192


def test_counting_leaves_the_net_as_it_was():
    net = ModelSpec("resnet20").build((3, 8, 8), 3, seed=0).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    multiply_accumulates(net, (3, 8, 8))
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(("spec", "smallest"), [("form=emnist", 4), ("form=svhn", 8)])
def test_too_small_images_are_refused(spec, smallest):
    ModelSpec.parse(f"cvae-small:{spec}").skeleton((1, smallest, smallest), 3)
    with pytest.raises(SpecError, match=f"at least {smallest} x {smallest}"):
        ModelSpec.parse(f"cvae-small:{spec}").skeleton((1, smallest, smallest - 1), 3)


@pytest.mark.parametrize("spec", ["cvae-small:hidden=0", "cvae-large-decoder:hidden=0"])
def test_a_net_without_hidden_units_is_refused(spec):
    with pytest.raises(SpecError, match="hidden = 0"):
        ModelSpec.parse(spec).skeleton(GREY, 10)


@pytest.mark.parametrize(
    "name", sorted(name for name in NETS if NETS[name].kind in ("cvae", "decoder"))
)
def test_skeleton_seed_and_state(name):
    first, second = (ModelSpec(name).build(GREY, 10, seed=3).state_dict() for _ in range(2))
    skeleton = ModelSpec(name).skeleton(GREY, 10).state_dict()
    assert {key: value.shape for key, value in skeleton.items()} == {
        key: value.shape for key, value in first.items()
    }
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("spec", AUTOENCODERS)
def test_stacked_equals_loop(spec):
    shape = (1, 16, 16)
    nets = [ModelSpec.parse(spec).build(shape, 10, seed) for seed in (0, 1)]
    inputs = [
        torch.stack([draw(*value.shape, seed=s) for s in (5, 6)])
        for value in example_inputs(nets[0], shape, 3)
    ]
    state, _ = stack_module_state(nets)
    stacked = vmap(lambda s, *x: functional_call(nets[0], s, x))(state, *inputs)
    for number, net in enumerate(nets):
        for one, other in zip(stacked, net(*(value[number] for value in inputs)), strict=True):
            assert torch.allclose(one[number], other, atol=1e-5)
