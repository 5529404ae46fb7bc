"""Fréchet distances worked out by hand, nearest images, and what the privacy check says about
decoders that tell and do not.
"""

import io
import warnings
from dataclasses import replace

import pytest
import torch
from PIL import Image

from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import DataError, RunError
from attar.privacy import check_decoder, draw_pairs, fid, load_inception
from attar.privacy.fid import Features, find_nearest, frechet_distance
from attar.seeds import rng
from attar.testing import tiny_upload
from attar.training import ClientData

SHAPE, CLASSES = (1, 8, 8), ("a", "b")
PIXELS = torch.randint(0, 256, (30, *SHAPE), dtype=torch.uint8, generator=rng(0, "pixels"))
CLIENT = ClientData("ann", PIXELS, torch.arange(30) % 2, CLASSES)


def decoder_of(state_of=None):
    spec = ModelSpec.parse("cvae-small-decoder:hidden=4")
    net = spec.build(SHAPE, 2, seed=0)
    if state_of is not None:
        state_of(net)
    part = Part(spec, net.state_dict(), CLASSES, Preprocess.plain(SHAPE))
    return Upload("ann", {"decoder": part}, 30, (15, 15))


def remember_by_heart(net):
    """Whatever the code, class a gives training image 4 and class b image 7, to a grey level."""
    net.hidden.weight.data.zero_()
    net.hidden.bias.data.zero_()
    for label, image in enumerate((4, 7)):
        net.hidden.weight.data[label, net.latent + label] = 1.0
        net.widen.weight.data[:, label] = torch.logit(
            (PIXELS[image].flatten() / 255).clamp(1e-4, 1 - 1e-4)
        )
    net.widen.bias.data.zero_()


def test_frechet_distance_by_hand():
    """{0, 2}: mean 1, variance 2; {3, 7}: mean 5, variance 8. 4^2 + 2 + 8 - 2 sqrt(16) = 18."""
    assert frechet_distance(
        torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [7.0]])
    ) == pytest.approx(18)


def test_frechet_distance_of_matrices_that_do_not_commute():
    """tr (S1 S2)^1/2 is the sum of the roots of S1 S2's eigenvalues, which are real and not
    negative.
    """
    draws = rng(0, "features")
    first, second = (
        torch.randn(50, 3, generator=draws).double() @ torch.randn(3, 3, generator=draws).double()
        for _ in range(2)
    )
    one, other = torch.cov(first.T), torch.cov(second.T)
    middle = torch.linalg.eigvals(one @ other).real.sqrt().sum()
    expected = (
        (first.mean(0) - second.mean(0)).square().sum() + one.trace() + other.trace() - 2 * middle
    )
    assert frechet_distance(first, second) == pytest.approx(float(expected))
    assert frechet_distance(first, second) == pytest.approx(frechet_distance(second, first))
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-8)


def test_frechet_distance_needs_two_images():
    with pytest.raises(DataError, match="at least two"):
        frechet_distance(torch.zeros(1, 3), torch.zeros(5, 3))


def test_fid_of_features():
    brightness = Features("brightness", lambda images: images.mean((1, 2, 3))[:, None])
    dark, bright = (
        torch.tensor([0.0, 0.2]).view(2, 1, 1, 1),
        torch.tensor([0.6, 0.8]).view(2, 1, 1, 1),
    )
    assert fid(dark, bright, brightness) == pytest.approx(0.36)


def test_find_nearest_by_hand():
    """From (0, 0) to (0.6, 0.8): l2 norm 1 over two pixels, root mean square 1 / sqrt 2."""
    some = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).view(2, 1, 1, 2)
    others = torch.tensor([[0.6, 0.8], [1.0, 0.9]]).view(2, 1, 1, 2)
    distance, which = find_nearest(some, others)
    assert which.tolist() == [0, 1]
    assert distance.tolist() == pytest.approx([0.5**0.5, 0.1 / 2**0.5])
    distance, which = find_nearest(others, others, but_for=torch.arange(2))
    assert which.tolist() == [1, 0]


def test_find_nearest_against_all_pairs():
    draws = rng(1, "images")
    some, others = (
        torch.rand(300, 1, 3, 3, generator=draws),
        torch.rand(40, 1, 3, 3, generator=draws),
    )
    slow = (some[:, None] - others[None]).square().flatten(2).mean(2).sqrt()
    distance, which = find_nearest(some, others)
    assert torch.allclose(distance, slow.min(1).values, atol=1e-6)
    assert torch.equal(which, slow.argmin(1))


def test_check_decoder_finds_a_memorised_image():
    found = check_decoder(decoder_of(remember_by_heart), CLIENT, samples=20, of_each=0, pairs=3)
    assert found.same == 20
    assert "do not send" in found.verdict
    assert len(found.closest) == 2, "each training image is named once"
    assert {(pair.label, pair.real_label) for pair in found.closest} == {("a", "a"), ("b", "b")}
    for pair in found.closest:
        assert pair.distance < 0.5 / 255
        assert torch.allclose(pair.pictures[0], pair.pictures[1], atol=1 / 255)
    assert found.singled_out[0].relative < 0.01
    assert found.nearer_than_neighbours == 1.0
    assert found.answer == "no"
    assert "send a classifier" in found.advice


def test_check_decoder_answers():
    """Nearness is measured by that of images which were not trained on."""
    found = check_decoder(decoder_of(), CLIENT, samples=20, of_each=0)
    near = replace(found, same=0, least_unseen=0.6)
    assert replace(near, least=0.6).answer == "yes"
    assert replace(near, least=0.55).answer == "yes"
    assert replace(near, least=0.53).answer == "cannot tell"
    assert replace(near, least=0.31).answer == "cannot tell"
    assert replace(near, least=0.29).answer == "no"
    assert replace(near, least=0.6, same=1).answer == "no"
    assert replace(near, least_unseen=None).answer == "cannot tell"
    assert "as near as 0.31 of" in replace(near, least=0.31).verdict
    assert "fewer --epochs" in replace(near, least=0.31).advice
    assert "proves" in replace(near, least=0.6).advice


def test_check_decoder_measures_unseen_images():
    """Half of the images against the other half, worked out for all pairs."""
    found = check_decoder(decoder_of(), CLIENT, samples=20, of_each=0)
    real = (PIXELS.float() / 255).flatten(1)[torch.randperm(30, generator=rng(0, "real"))]
    half, other = real[:15], real[15:]
    apart = torch.cdist(half, other)
    within = torch.cdist(other, other).fill_diagonal_(float("inf")).min(1).values
    expected = (apart.min(1).values / within[apart.argmin(1)]).min()
    assert found.least_unseen == pytest.approx(float(expected), rel=1e-4)
    assert found.least == pytest.approx(min(pair.relative for pair in found.singled_out))


def test_check_decoder_sees_images_repeated_in_noise():
    """Training images with a little noise: not the same, but nearer than any that is new."""
    noisy = CLIENT.pixels.float() + 8 * torch.randn(PIXELS.shape, generator=rng(0, "noisy"))
    client = replace(CLIENT, pixels=noisy.clamp(0, 255).byte())
    found = check_decoder(decoder_of(remember_by_heart), client, samples=20, of_each=0)
    assert found.same == 0
    assert found.answer == "no"
    assert "being repeated" in found.verdict


def test_draw_pairs_has_captions():
    found = check_decoder(decoder_of(), CLIENT, samples=20, of_each=0, pairs=3)
    with Image.open(io.BytesIO(draw_pairs("Closest pairs", found.closest))) as sheet:
        pixels = torch.frombuffer(bytearray(sheet.convert("L").tobytes()), dtype=torch.uint8)
        width, height = sheet.size
    rows = pixels.view(height, width)
    assert width >= 2 * 160, "a picture of 8 pixels is enlarged"
    assert (rows[:28] < 128).any(), "the title"
    assert (rows[-30:-8] < 128).any(), "the last caption"
    assert height > len(found.closest) * 160


def test_check_decoder_of_an_untrained_decoder():
    found = check_decoder(decoder_of(), CLIENT, samples=20, of_each=0, pairs=3)
    assert found.same == 0
    assert found.samples == 20
    assert found.drawn == {"a": 10, "b": 10}
    assert found.images == 30
    assert found.fid > found.fid_real
    assert found.fid_noise > 0
    assert "lenet5 trained on the spot" in found.features
    assert [pair.distance for pair in found.closest] == sorted(
        pair.distance for pair in found.closest
    )


def test_allot_images_follows_the_data():
    upload = replace(decoder_of(remember_by_heart), label_counts=None)
    only_b = replace(CLIENT, labels=torch.zeros(30, dtype=torch.int64), classes=("b", "c"))
    found = check_decoder(upload, only_b, samples=10, of_each=0, pairs=3)
    assert [pair.label for pair in found.closest] == ["b"]
    assert found.drawn == {"a": 0, "b": 10}


def test_check_decoder_of_a_class_of_one_image():
    """Its share of 20 images is none, but anybody can ask the decoder for it; distances between
    sets keep the shares.
    """
    labels = torch.ones(30, dtype=torch.int64)
    labels[4] = 0  # the image that the decoder has by heart
    rare, upload = (
        replace(CLIENT, labels=labels),
        replace(decoder_of(remember_by_heart), label_counts=(1, 29)),
    )
    assert "a" not in {
        pair.label for pair in check_decoder(upload, rare, samples=10, of_each=0).closest
    }
    found = check_decoder(upload, rare, samples=10)
    assert found.drawn == {"a": 50, "b": 50}
    assert found.same == found.samples == 100
    assert {(pair.label, pair.real_label) for pair in found.closest} == {("a", "a"), ("b", "b")}
    assert found.fid == check_decoder(upload, rare, samples=10, of_each=10).fid


def test_check_decoder_with_repeated_images():
    """Relative to the nearest other picture; if all images are one picture, to no image at all."""
    twice = replace(CLIENT, pixels=PIXELS.clone().index_copy(0, torch.tensor([9]), PIXELS[4:5]))
    once, again = (
        check_decoder(decoder_of(remember_by_heart), client, samples=10, of_each=0).singled_out
        for client in (CLIENT, twice)
    )
    assert {pair.label for pair in again} == {"a", "b"}
    assert [pair.relative for pair in again] == pytest.approx(
        [pair.relative for pair in once], rel=0.2
    )
    alike = replace(CLIENT, pixels=PIXELS[:1].repeat(30, 1, 1, 1))
    one = check_decoder(decoder_of(), alike, samples=10)
    assert one.nearer_than_neighbours == 1.0
    assert (one.least_unseen, one.answer) == (None, "cannot tell")


def test_check_decoder_quality_of_one_picture_a_class():
    def greys(net):
        net.hidden.weight.data.zero_()
        net.widen.weight.data.zero_()
        net.widen.bias.data.zero_()

    found = check_decoder(decoder_of(greys), CLIENT, samples=40)
    assert (found.answered, len(found.drawn)) == (1, 2)
    assert "look alike" in replace(found, fid=0.0, fid_noise=1.0).quality
    assert "than noise is" in replace(found, fid=2.0, fid_noise=1.0).quality
    assert not replace(found, fid=0.0, fid_noise=1.0, answered=3).quality
    assert not replace(found, fid=0.0, fid_noise=1.0, images=20).quality, (
        "of so few images two may well be the nearest"
    )


def test_load_inception_is_used(tmp_path):
    class Means(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1:] == (3, 299, 299)
            return x.mean((2, 3))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Means()).save(str(tmp_path / "inception.pt"))
    found = check_decoder(
        decoder_of(), CLIENT, samples=10, pairs=2, inception=tmp_path / "inception.pt"
    )
    assert found.features == "TorchScript inception.pt"
    grey = torch.full((2, 1, 4, 4), 0.5)
    assert load_inception(tmp_path / "inception.pt")(grey).tolist()[0] == pytest.approx(
        [-0.5 / 128] * 3, abs=1e-5
    )


def test_check_decoder_refuses_other_data(tmp_path):
    (tmp_path / "no.pt").write_text("this is not a program")
    with pytest.raises(RunError, match="no TorchScript"):
        load_inception(tmp_path / "no.pt")
    with pytest.raises(RunError, match="no decoder but: classifier"):
        check_decoder(tiny_upload("ann"), CLIENT)
    with pytest.raises(DataError, match="no image of the decoder's classes"):
        check_decoder(decoder_of(), replace(CLIENT, classes=("x", "y")))
    with pytest.raises(DataError, match="no image of the decoder's classes"):
        check_decoder(
            decoder_of(),
            replace(CLIENT, labels=torch.ones(30, dtype=torch.int64), classes=("a", "c")),
        )
    with pytest.raises(DataError, match="too few"):
        check_decoder(
            decoder_of(),
            replace(CLIENT, pixels=PIXELS[:3], labels=torch.zeros(3, dtype=torch.int64)),
        )


def test_check_decoder_refuses_other_images():
    """Against them every decoder looks harmless."""
    fewer = replace(CLIENT, pixels=PIXELS[:20], labels=CLIENT.labels[:20])
    with pytest.raises(
        DataError, match=r"trained on 30 images, these are 20(.|\n)*class a: 15 then, 10 here"
    ):
        check_decoder(decoder_of(), fewer)
    with pytest.raises(DataError, match="class b: 15 then, 29 here"):
        check_decoder(
            decoder_of(),
            replace(
                CLIENT, labels=torch.ones(30, dtype=torch.int64).index_fill(0, torch.tensor(0), 0)
            ),
        )
    with pytest.raises(DataError, match="trained on 30 images, these are 20"):
        check_decoder(replace(decoder_of(), label_counts=None), fewer)


class Pair(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mean((2, 3)), x


class OneNumber(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


class Infinite(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) / 0


class Small(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 3 * 32 * 32)[:, :7].view(len(x), 7)


@pytest.mark.parametrize(
    "net", [Pair(), OneNumber(), Infinite(), Small()], ids=lambda net: type(net).__name__
)
def test_load_inception_refuses_other_programs(tmp_path, net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(net).save(str(tmp_path / "other.pt"))
    with pytest.raises(
        RunError, match=r"other.pt gives no features \((.|\n)*to one finite tensor \(N, F\)"
    ):
        load_inception(tmp_path / "other.pt")


def test_check_decoder_compares_large_images_small():
    shape = (3, 96, 80)
    pixels = torch.randint(0, 256, (6, *shape), dtype=torch.uint8, generator=rng(0, "large"))
    spec = ModelSpec.parse("cvae-small-decoder:hidden=4")
    part = Part(spec, spec.build(shape, 2, seed=0).state_dict(), CLASSES, Preprocess.plain(shape))
    large = ClientData("ann", pixels, torch.arange(6) % 2, CLASSES)
    found = check_decoder(Upload("ann", {"decoder": part}, 6, (3, 3)), large, samples=4, pairs=1)
    assert found.closest[0].pictures.shape == (2, *shape)
    blurred = torch.nn.functional.interpolate(
        pixels.float() / 255, (64, 64), mode="bilinear", antialias=True
    )
    grey = torch.nn.functional.interpolate(
        found.closest[0].pictures[:1], (64, 64), mode="bilinear", antialias=True
    )
    expected = (blurred - grey).square().flatten(1).mean(1).sqrt().min()
    assert found.closest[0].distance == pytest.approx(float(expected), rel=1e-4)
