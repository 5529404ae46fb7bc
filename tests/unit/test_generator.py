"""The image generator: published sizes, any image shape, the same bits from the same seed; what
is fed into it.
"""

import pytest
import torch
from torch import nn

from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.images.generator import ImageGenerator
from attar.seeds import rng


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((1, 28, 28), 1_834_305),
        ((1, 32, 32), 2_327_745),
        ((3, 32, 32), 2_328_899),
        ((3, 64, 64), 8_644_931),
    ],
    ids=str,
)
def test_image_generator_has_the_papers_number_of_parameters(shape, count):
    with torch.device("meta"):
        generator = ImageGenerator(shape, 256, 64)
    assert sum(weight.numel() for weight in generator.parameters()) == count


@pytest.mark.parametrize("shape", [(3, 30, 27), (1, 28, 28), (1, 1, 2), (2, 5, 64)], ids=str)
def test_image_generator_makes_any_shape_between_zero_and_one(shape):
    generator = new_generator(shape, 6, 4, 0)
    with torch.no_grad():
        images = generator(100 * draw_noise(5, 6, rng(0), "cpu"))
    assert images.shape == (5, *shape)
    assert ((images >= 0) & (images <= 1)).all()
    assert images.std() > 0


def test_image_generator_shrinks_to_a_size_that_is_no_multiple_of_four():
    noise = draw_noise(3, 6, rng(0), "cpu")
    odd, even = new_generator((1, 30, 27), 6, 4, 0), new_generator((1, 32, 28), 6, 4, 0)
    with torch.no_grad():
        larger = even(noise)
        expected = nn.functional.interpolate(larger, (30, 27), mode="bilinear", align_corners=False)
        assert torch.equal(odd(noise), expected)


def test_new_generator_is_determined_by_the_seed_and_leaves_the_global_state():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, same = new_generator((1, 8, 8), 6, 4, 5), new_generator((1, 8, 8), 6, 4, 5)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    for other in (
        new_generator((1, 8, 8), 6, 4, 6),
        new_generator((1, 8, 8), 6, 4, 5, "other"),
        new_generator((1, 8, 8), 6, 4, 5, 1),
    ):
        assert not torch.equal(one.linear.weight, other.linear.weight)


def test_new_generator_starts_as_dcgan():
    generator = new_generator((3, 32, 32), 256, 64, 0)
    for module in generator.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert module.weight.mean().abs() < 0.002
            assert module.bias is None or module.bias.abs().max() == 0
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.mean().item() == pytest.approx(1, abs=0.01)
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.35)
            assert module.bias.abs().max() == 0


def test_image_generator_uses_batch_statistics_in_every_mode():
    """No running statistics: training and evaluation are the same function, and nothing but
    weights is kept.
    """
    generator, noise = new_generator((1, 8, 8), 6, 4, 0), draw_noise(5, 6, rng(0), "cpu")
    with torch.no_grad():
        assert torch.equal(generator.train()(noise), generator.eval()(noise))
    assert set(generator.state_dict()) == {name for name, _ in generator.named_parameters()}


def test_image_generator_upsamples_by_repeating_neighbours():
    generator = new_generator((1, 8, 8), 6, 4, 0)
    assert [layer.mode for layer in generator.body if isinstance(layer, nn.Upsample)] == [
        "nearest",
        "nearest",
    ]
    assert [
        layer.negative_slope for layer in generator.body if isinstance(layer, nn.LeakyReLU)
    ] == [0.2, 0.2]


def test_draw_noise_is_standard_normal():
    noise = draw_noise(400, 50, rng(1), "cpu")
    assert noise.shape == (400, 50)
    assert noise.mean().abs() < 0.03
    assert noise.std().item() == pytest.approx(1, abs=0.03)


def test_draw_labels_covers_all_classes_and_repeats_with_the_seed():
    labels = draw_labels(300, 7, rng(1), "cpu")
    assert labels.dtype == torch.int64
    assert set(labels.tolist()) == set(range(7))
    assert torch.equal(labels, draw_labels(300, 7, rng(1), "cpu"))
