"""Sketches: what a program draws in place of data."""

import pytest
import torch

from attar.blocks.images import sketches
from attar.blocks.images.procedural import ALIKE, EMPTY, _texture
from attar.cli.arguments import load_public_images
from attar.errors import DataError


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 5, 8), (4, 1, 1), (1, 7, 3)])
def test_sketches_of_any_shape_are_images(shape):
    images = sketches(20, shape, drawn())
    assert images.shape == (20, *shape)
    assert images.isfinite().all()
    assert images.min() >= 0
    assert images.max() <= 1


def test_the_same_draws_give_the_same_sketches_and_others_give_others():
    assert torch.equal(sketches(9, (3, 8, 8), drawn()), sketches(9, (3, 8, 8), drawn()))
    assert not torch.equal(sketches(9, (3, 8, 8), drawn()), sketches(9, (3, 8, 8), drawn(1)))


def test_chance_outside_is_left_alone():
    before = torch.get_rng_state()
    sketches(3, (1, 8, 8), drawn())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("width", [16, 17])
def test_about_half_of_them_mirror_their_left_half(width):
    images = sketches(2000, (1, 16, width), drawn())
    alike = (images == images.flip(-1)).flatten(1).all(1).float().mean()
    assert ALIKE - 0.05 < alike < ALIKE + 0.1  # black ones are alike, too


def test_black_grounds_and_leaves_on_them():
    images = sketches(2000, (3, 16, 16), drawn())
    black = (images == 0).all(1).flatten(1).float().mean(1)
    assert (black > 0.05).float().mean() == pytest.approx(EMPTY, abs=0.1)
    assert (black == 1).float().mean() < 0.03


def test_a_texture_has_a_mean_square_of_1_and_a_spectrum_that_falls():
    made = _texture(300, (1, 32, 32), drawn(), "cpu")
    assert torch.allclose(made.square().flatten(1).mean(1), torch.ones(300), atol=1e-4)
    power = torch.fft.rfft2(made).abs().square().mean((0, 1))
    assert power[0, 1] > 3 * power[0, 4] > 9 * power[0, 16]


def test_sketches_as_the_servers_images():
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
def test_sketches_that_cannot_be_drawn_are_refused(text, said):
    with pytest.raises(DataError, match=said):
        load_public_images(text, quiet=True)


def test_sketches_have_no_labels():
    with pytest.raises(DataError, match="no labels"):
        load_public_images("sketches?number=3", quiet=True, labelled=True)
