"""Procedural images: what a program draws in place of data, called sketches on the command line."""

import pytest
import torch

from attar.blocks.images import procedural_images
from attar.blocks.images.procedural import EMPTY_GROUNDS, SYMMETRIC, draw_texture
from attar.cli.arguments import load_public_images
from attar.errors import DataError


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 5, 8), (4, 1, 1), (1, 7, 3)])
def test_procedural_images_have_any_shape(shape):
    images = procedural_images(20, shape, drawn())
    assert images.shape == (20, *shape)
    assert images.isfinite().all()
    assert images.min() >= 0
    assert images.max() <= 1


def test_procedural_images_are_determined_by_the_draws():
    assert torch.equal(
        procedural_images(9, (3, 8, 8), drawn()), procedural_images(9, (3, 8, 8), drawn())
    )
    assert not torch.equal(
        procedural_images(9, (3, 8, 8), drawn()), procedural_images(9, (3, 8, 8), drawn(1))
    )


def test_procedural_images_leave_the_global_random_state():
    before = torch.get_rng_state()
    procedural_images(3, (1, 8, 8), drawn())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("width", [16, 17])
def test_procedural_images_mirror_their_left_half_half_of_the_time(width):
    images = procedural_images(2000, (1, 16, width), drawn())
    alike = (images == images.flip(-1)).flatten(1).all(1).float().mean()
    assert SYMMETRIC - 0.05 < alike < SYMMETRIC + 0.1  # black ones are alike, too


def test_procedural_images_have_leaves_on_black_grounds():
    images = procedural_images(2000, (3, 16, 16), drawn())
    black = (images == 0).all(1).flatten(1).float().mean(1)
    assert (black > 0.05).float().mean() == pytest.approx(EMPTY_GROUNDS, abs=0.1)
    assert (black == 1).float().mean() < 0.03


def test_texture_has_a_mean_square_of_1_and_a_falling_spectrum():
    made = draw_texture(300, (1, 32, 32), drawn(), "cpu")
    assert torch.allclose(made.square().flatten(1).mean(1), torch.ones(300), atol=1e-4)
    power = torch.fft.rfft2(made).abs().square().mean((0, 1))
    assert power[0, 1] > 3 * power[0, 4] > 9 * power[0, 16]


def test_load_public_images_draws_sketches():
    images = load_public_images("sketches?number=503&size=12&channels=1", quiet=True)
    assert images.pixels.shape == (503, 1, 12, 12)
    assert images.pixels.dtype == torch.uint8
    assert images.labels is None
    assert images.source == "503 sketches, drawn by a program"
    assert torch.equal(
        images.pixels,
        load_public_images("sketches?channels=1&size=12&number=503", quiet=True).pixels,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sketches?number=0", "number=0 is not a whole number from 1"),
        ("sketches?size=many", "size=many"),
        ("sketches?colour=3", "colour"),
        ("sketches?size", "not key=value"),
    ],
)
def test_load_public_images_refuses_wrong_options_of_sketches(text, said):
    with pytest.raises(DataError, match=said):
        load_public_images(text, quiet=True)


def test_load_public_images_has_no_labels_of_sketches():
    with pytest.raises(DataError, match="no labels"):
        load_public_images("sketches?number=3", quiet=True, labelled=True)
