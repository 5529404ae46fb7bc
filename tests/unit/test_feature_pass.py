"""The pass over a client's images: the images of ``load_data``, in any batches, in little memory,
and resumed bit for bit.
"""

import copy
import hashlib
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from attar.backbones import load_backbone
from attar.core import ModelSpec, Part, Preprocess
from attar.data import Split, load_data
from attar.data.folders import list_folder
from attar.data.streams import AHEAD, ImageStream, ReadImage, open_stream, stream_split
from attar.errors import DataError, DivergedError, Stopped
from attar.models import save_model
from attar.nets import project_features
from attar.training import SumsPass, SumsSettings, feature_pass, sum_features

SHAPE = (3, 16, 16)
HOW = SumsSettings(features=12, clip=1.0)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "lenet"
    spec = ModelSpec.parse("lenet5")
    part = Part(spec, spec.build(SHAPE, 4, 0).state_dict(), tuple("abcd"), Preprocess.plain(SHAPE))
    save_model(folder, part, card=None)
    return load_backbone(str(folder))


def write_images(folder, sizes, seed=0):
    """Images of two classes; grey ones among them."""
    rng = np.random.default_rng(seed)
    for number, (height, width) in enumerate(sizes):
        place = folder / ("ring" if number % 2 else "cross")
        place.mkdir(parents=True, exist_ok=True)
        shape = (height, width) if number % 5 == 4 else (height, width, 3)
        pixels = rng.integers(0, 256, shape).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number:04d}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    return write_images(folder, [(16, 16)] * 600)


def job(backbone, source, settings=HOW):
    return SumsPass(open_stream(source), backbone, settings, "berlin")


def state_of(upload):
    return upload.parts["sums"].state


def assert_same(first, second):
    for name, tensor in state_of(first).items():
        assert torch.equal(tensor, state_of(second)[name]), name


def test_open_stream_has_the_images_of_load_data(photos):
    stream = open_stream(f"folder:{photos}")
    split = load_data(f"folder:{photos}").train
    assert stream.labels.tolist() == split.labels.tolist()
    for index in (0, 4, len(stream) - 1):
        pixels, digest = stream.read(index, 16)
        assert np.array_equal(
            np.broadcast_to(pixels, split.images[index].shape), split.images[index]
        )
        assert len(digest) == 32
    small = open_stream(f"folder:{photos}?size=9")
    assert small.read(0, 16).pixels.shape == (9, 9, 3)
    assert small.identity != stream.identity
    assert open_stream("fashion-mini").read(0, 16).pixels.shape == (28, 28, 1)


def test_sum_features_plain_computation(backbone, photos):
    """From the whole set in memory, in one batch, with halves by the bytes of the files."""
    upload = sum_features(job(backbone, f"folder:{photos}"))
    stream = open_stream(f"folder:{photos}")
    split = load_data(f"folder:{photos}").train
    pixels = torch.from_numpy(split.images).permute(0, 3, 1, 2).float() / 255
    phi = project_features(
        backbone.net.features(backbone.preprocess(pixels)), centre=None, dimensions=12, clip=1.0
    )
    halves = torch.tensor([stream.read(i, 16).digest[0] & 1 for i in range(len(stream))])
    labels = torch.from_numpy(split.labels)
    state = state_of(upload)
    assert upload.num_examples == len(split)
    for half in range(2):
        rows = phi[halves == half]
        assert state["counts"][half].tolist() == labels[halves == half].bincount().tolist()
        squares = (rows.T @ rows)[torch.tril_indices(12, 12).unbind()] * 2.0**24
        torch.testing.assert_close(state["squares"][half, 0].double(), squares, rtol=1e-5, atol=400)
        for label in range(2):
            total = phi[(halves == half) & (labels == label)].sum(0) * 2.0**24
            difference = (state["sums"][half, label] - total).abs().max()
            assert difference < 1e-5 * total.abs().max()


def test_sum_features_batch_size_is_rounding(backbone, photos, monkeypatch):
    """Nearest means from sums of other batches give the same predictions."""
    predictions = []
    data = load_data(f"folder:{photos}").test
    pixels = torch.from_numpy(data.images).permute(0, 3, 1, 2).float() / 255
    phi = project_features(
        backbone.net.features(backbone.preprocess(pixels)), centre=None, dimensions=12, clip=1.0
    )
    for batch in (1, 16, 100):
        monkeypatch.setattr(feature_pass, "batch_size", lambda *_, size=batch: size)
        state = state_of(sum_features(job(backbone, f"folder:{photos}")))
        means = state["sums"].sum(0).double() / 2.0**24 / state["counts"].sum(0)[:, None]
        predictions.append(torch.cdist(phi, means).argmin(1))
    for other in predictions[1:]:
        assert float((other == predictions[0]).float().mean()) >= 0.999


def test_sum_features_any_sizes(backbone, tmp_path):
    """Images of many sizes, large and small, grey and in colour."""
    sizes = [(16, 16), (7, 30), (90, 60), (16, 16), (40, 40), (200, 170), (16, 33), (5, 5)] * 4
    folder = write_images(tmp_path, sizes)
    upload = sum_features(job(backbone, f"folder:{folder}"))
    stream = open_stream(f"folder:{folder}")
    assert upload.num_examples == len(stream)
    total = torch.zeros(12, dtype=torch.float64)
    for index in range(len(stream)):
        pixels = torch.from_numpy(stream.read(index, 16).pixels.copy()).permute(2, 0, 1)[None]
        total += project_features(
            backbone.net.features(backbone.preprocess(pixels.float() / 255)),
            centre=None,
            dimensions=12,
            clip=1.0,
        )[0]
    made = state_of(upload)["sums"].sum((0, 1)).double() / 2.0**24
    torch.testing.assert_close(made, total, rtol=1e-4, atol=1e-4)


def test_large_photographs_are_decoded_smaller(tmp_path):
    (tmp_path / "a").mkdir()
    for name in "bc":
        Image.new("RGB", (1600, 1200)).save(tmp_path / "a" / f"{name}.jpg")
    stream = open_stream(f"folder:{tmp_path}")
    assert stream.read(0, 100).pixels.shape[:2] == (300, 400)


def test_centre_is_subtracted(backbone, photos):
    centre = torch.linspace(-1, 1, backbone.features)
    moved = replace(backbone, centre=centre)
    settings = SumsSettings(features=12)
    plain = state_of(sum_features(job(backbone, f"folder:{photos}", settings)))
    centred = state_of(sum_features(job(moved, f"folder:{photos}", settings)))
    shift = project_features(centre[None], centre=None, dimensions=12, clip=0.0)[0]
    expected = plain["sums"].double() / 2.0**24 - plain["counts"][..., None] * shift
    torch.testing.assert_close(centred["sums"].double() / 2.0**24, expected, atol=1e-4, rtol=1e-4)


# Memory, progress, resumption


class Counting:
    """A source that counts images which were read and are not in the sums yet."""

    def __init__(self, number):
        self.number = number
        self.read_so_far = 0
        self.most = 0
        self.lock = threading.Lock()
        self.done = 0

    def read(self, index, _):
        with self.lock:
            self.read_so_far += 1
            self.most = max(self.most, self.read_so_far - self.done)
        pixels = np.full((16, 16, 3), index % 251, np.uint8)
        return ReadImage(pixels, hashlib.sha256(str(index).encode()).digest())

    def watch(self, report):
        self.done = report.step


def test_memory_is_flat(backbone, monkeypatch):
    """However many images there are, a few batches of them are held at a time."""
    monkeypatch.setattr(feature_pass, "WATCH_SECONDS", 0.0)
    counting = Counting(3000)
    labels = np.zeros(3000, np.int64)
    stream = ImageStream("made", ("a",), labels, counting.read, "made")
    upload = sum_features(SumsPass(stream, backbone, HOW, "berlin"), watch=counting.watch)
    assert upload.num_examples == counting.read_so_far == 3000
    assert counting.most <= (AHEAD + 2) * feature_pass.batch_size("cpu", backbone)


def test_batch_size_follows_the_pixels(backbone):
    sides = {16: 64, 224: 16, 448: 4, 1024: 1}
    for side, size in sides.items():
        shown = replace(backbone, preprocess=Preprocess.plain((3, side, side)))
        assert feature_pass.batch_size("cpu", shown) == size


def test_progress_from_the_start(backbone, photos):
    reports = []
    sum_features(job(backbone, f"folder:{photos}"), watch=reports.append)
    assert (reports[0].step, reports[0].seconds_left) == (0, None)
    assert reports[-1].step == reports[-1].steps
    assert reports[-1].done == 1.0
    assert reports[-1].metrics["images a second"] > 0


class Killed(BaseException):
    pass


def kill_after(images):
    def watch(report):
        if report.step >= images:
            raise Killed

    return watch


@pytest.mark.parametrize("per_class", [False, True])
def test_resumed_bit_for_bit(backbone, photos, tmp_path, monkeypatch, per_class):
    monkeypatch.setattr(feature_pass, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(feature_pass, "CHUNK", 64)
    settings = replace(HOW, per_class=per_class)
    whole = sum_features(job(backbone, f"folder:{photos}", settings))
    partial = tmp_path / "sums"
    work = job(backbone, f"folder:{photos}", settings)
    for images in (100, 250):
        with pytest.raises(Killed):
            sum_features(work, partial=partial, watch=kill_after(images), save_seconds=0.0)
    saved = int(load_file(partial)["counts"].sum())
    assert saved >= 64
    reports = []
    resumed = sum_features(work, partial=partial, watch=reports.append, save_seconds=0.0)
    assert reports[0].step == saved
    assert_same(resumed, whole)


def test_partial_sums_of_others_are_not_taken(backbone, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_pass, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(feature_pass, "CHUNK", 64)
    partial = tmp_path / "sums"
    with pytest.raises(Killed):
        sum_features(
            job(backbone, f"folder:{photos}"),
            partial=partial,
            watch=kill_after(200),
            save_seconds=0.0,
        )
    other = replace(HOW, clip=2.0)
    reports = []
    made = sum_features(
        job(backbone, f"folder:{photos}", other), partial=partial, watch=reports.append
    )
    assert reports[0].step == 0
    assert_same(made, sum_features(job(backbone, f"folder:{photos}", other)))
    partial.write_bytes(b"damaged")
    with pytest.raises(DataError, match="damaged"):
        sum_features(job(backbone, f"folder:{photos}"), partial=partial)


def test_interrupt_says_how_to_go_on(backbone, photos):
    def interrupt(report):
        raise KeyboardInterrupt

    with pytest.raises(Stopped, match="Ctrl-C at image 0 of"):
        sum_features(job(backbone, f"folder:{photos}"), watch=interrupt)


# What is refused


def test_all_broken_images_are_named(backbone, tmp_path):
    write_images(tmp_path, [(16, 16)] * 40)
    (tmp_path / "ring" / "0003.png").write_bytes(b"no image")
    broken = tmp_path / "cross" / "0038.png"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be read") as caught:
        sum_features(job(backbone, f"folder:{tmp_path}"))
    named = [name for name in ("0003", "0038") if name in " ".join(caught.value.problems)]
    chosen = [
        name
        for name, label in (("0003", "ring"), ("0038", "cross"))
        if (tmp_path / label / f"{name}.png") in training_files(tmp_path)
    ]
    assert named == chosen
    assert named


def training_files(folder):
    listing = list_folder(folder, "x")
    return [file for file, test in zip(listing.files, listing.is_test, strict=True) if not test]


def test_names_that_cannot_be_sent(backbone):
    split = Split(np.zeros((2, 16, 16, 3), np.uint8), np.zeros(2, np.int64))
    stream = stream_split(split, ("a\tb",), "x")
    with pytest.raises(DataError, match=r"class name(.|\n)*client's name"):
        sum_features(SumsPass(stream, backbone, HOW, "no/name"))


def test_features_that_are_not_finite(backbone, photos):
    net = copy.deepcopy(backbone.net)
    next(iter(net.parameters())).data.fill_(float("nan"))
    with pytest.raises(DivergedError, match="NaN or infinite"):
        sum_features(job(replace(backbone, net=net), f"folder:{photos}"))


def test_noise_needs_a_fixed_training_part(backbone, photos):
    """One image more in a class may move another one into the test part, and back."""
    with pytest.raises(DataError, match=r"no test part of its own(.|\n)*train/ and test/"):
        sum_features(job(backbone, f"folder:{photos}", replace(HOW, epsilon=1.0)))
    before = set(training_files(photos))
    moved = []
    for number in range(40):
        extra = photos / "ring" / f"extra{number}.png"
        extra.write_bytes(b"")
        after = set(training_files(photos)) - {extra}
        moved.append(len(before ^ after))
        extra.unlink()
    assert max(moved) == 1


def test_noise_hides_the_number_of_images(backbone, tmp_path):
    """The manifest says what the noisy counts say."""
    for part in ("train", "test"):
        write_images(tmp_path / part, [(16, 16)] * 60)
    settings = SumsSettings(features=12, clip=1.0, epsilon=5.0)
    upload = sum_features(job(backbone, f"folder:{tmp_path}", settings))
    counts = state_of(upload)["counts"].sum(0).clamp(min=0)
    assert upload.label_counts == tuple(counts.tolist())
    assert upload.num_examples == int(counts.sum())
    exact = sum_features(job(backbone, f"folder:{tmp_path}"))
    assert exact.num_examples == 60
    assert not torch.equal(state_of(upload)["sums"], state_of(exact)["sums"])


def test_noise_may_leave_no_image(backbone):
    """A manifest needs a number of images: it is 1 where the noisy counts are all negative."""
    split = Split(np.zeros((1, 16, 16, 3), np.uint8), np.zeros(1, np.int64))
    work = SumsPass(
        stream_split(split, ("a",), "x"), backbone, replace(HOW, epsilon=0.01), "berlin"
    )
    draws = [torch.Generator().manual_seed(seed) for seed in range(30)]
    uploads = [sum_features(work, draws=one) for one in draws]
    for upload in uploads:
        number = max(0, int(state_of(upload)["counts"].sum()))
        assert upload.num_examples == max(1, number)
        assert upload.label_counts == ((number,) if number else None)
    assert any(upload.label_counts is None for upload in uploads)
