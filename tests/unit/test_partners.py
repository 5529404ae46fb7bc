"""Partners that differ in classes, image size, channels and normalisation: trained for real,
fused, measured.
"""

from dataclasses import replace

import pytest
import torch

import attar
from attar.core import Preprocess
from attar.methods import METHODS
from attar.nets import to_shape
from attar.training import ClassifierTraining

CHOSEN = (1, 5, 8)  # trouser, sandal, bag
TRAINING = attar.LocalTraining(epochs=4, batch_size=32, optimiser="adam", lr=2e-3)
GREY = Preprocess((1, 28, 28), (0.29,), (0.35,))
COLOUR = Preprocess((3, 32, 32), (0.5, 0.3, 0.2), (0.25, 0.3, 0.5))


@pytest.fixture(scope="module")
def data():
    return attar.load_data("fashion-mini")


def images_of(split, labels, names, limit):
    """Pixels and labels of some classes, numbered in the order of ``labels``."""
    pixels = torch.from_numpy(split.images).permute(0, 3, 1, 2).contiguous()
    truth = torch.from_numpy(split.labels)
    rows = torch.cat([(truth == label).nonzero().squeeze(1)[:limit] for label in labels])
    order = {label: place for place, label in enumerate(labels)}
    return (
        pixels[rows],
        torch.tensor([order[int(label)] for label in truth[rows]]),
        tuple(names[label] for label in labels),
    )


def tinted(pixels):
    """Grey 28 x 28 images in colour at 32 x 32."""
    large = (
        to_shape(pixels.float() / 255, (3, 32, 32)) * torch.tensor([1.0, 0.7, 0.4])[:, None, None]
    )
    return (large * 255).round().to(torch.uint8)


def trained(name, net, preprocess, pixels, labels, classes, seed=0):
    client = attar.ClientData(name, pixels, labels, classes)
    stack = ClassifierTraining([client], attar.ModelSpec.parse(net), preprocess, TRAINING, seed)
    state = stack.start()
    (phase,) = stack.phases()
    for _ in range(phase.steps):
        phase.step(state)
        state.step += 1
    return stack.uploads(state)[0]


@pytest.fixture(scope="module")
def pair(data):
    """{trouser, sandal}: a grey LeNet at 28 x 28; {sandal, bag}: a colour net at 32 x 32."""
    grey, grey_labels, grey_names = images_of(data.train, CHOSEN[:2], data.classes, 300)
    rest, colour_labels, colour_names = images_of(data.train, CHOSEN[1:], data.classes, 300)
    return (
        trained("grey", "lenet5", GREY, grey, grey_labels, grey_names),
        trained("colour", "cnn-mho", COLOUR, tinted(rest), colour_labels, colour_names),
    )


def accuracy(model, data):
    pixels, labels, names = images_of(data.test, CHOSEN, data.classes, 100)
    assert model.classes == names
    with torch.no_grad():
        return float(
            (model(to_shape(pixels.float() / 255, (3, 32, 32))).argmax(1) == labels).float().mean()
        )


QUICK = {"epochs": 6, "generator_steps": 4, "batch_size": 32, "noise": 32, "generator_width": 16}
FUSED = {
    "ensemble": ({"rule": "mean-probabilities"}, 0.75),
    "feddf": ({"steps": 60, "batch_size": 64, "teacher": "mean-probabilities"}, 0.75),
    "dense": (QUICK, None),
    "co-boosting": (QUICK, None),
    "fedhydra": (QUICK, None),
    "f-adi": ({"epochs": 3, "inversion_steps": 4, "batch_size": 32}, None),
}


@pytest.mark.parametrize("name", FUSED)
def test_fuse_grey_and_colour_partners(pair, data, name):
    """The two that need no long training must also be right; chance is a third, knowing two of
    the three classes two thirds.
    """
    settings, least = FUSED[name]
    pixels, _, _ = images_of(data.train, CHOSEN, data.classes, 100)
    server = attar.server_for(
        pair, student="lenet5", public=attar.Images(pixels, None, "grey, of the server")
    )
    assert server.task == attar.Task((3, 32, 32), tuple(data.classes[label] for label in CHOSEN))
    fused = attar.fuse(pair, METHODS[name](**settings), server, robustness=True)
    found = accuracy(fused.model, data)
    assert found >= (least or 0)
    assert [one["client"] for one in fused.record["robustness"]["clients"]] == ["grey", "colour"]


def test_fedavg_refuses_two_normalisations(pair):
    other = replace(pair[0], client="other")
    part = other.parts["classifier"]
    other = replace(
        other,
        parts={"classifier": replace(part, preprocess=Preprocess((1, 28, 28), (0.5,), (0.5,)))},
    )
    with pytest.raises(attar.AttarError, match=r"with mean \(0.29,\) and std \(0.35,\)"):
        attar.fuse([pair[0], other], METHODS["fedavg"](), attar.server_for([pair[0], other]))


def test_decode_restores_preprocessing(pair, tmp_path):
    for upload in pair:
        attar.write_bundle(tmp_path / "x.attar", upload)
        assert (
            attar.read_bundle(tmp_path / "x.attar").parts["classifier"].preprocess
            == upload.parts["classifier"].preprocess
        )


# --- the way from a canonical image to a net's input ----------------------------------------------

SMALL_GREY = Preprocess((1, 5, 4), (0.3,), (0.4,))
SMALL_COLOUR = Preprocess((3, 6, 7), (0.5, 0.3, 0.2), (0.25, 0.3, 0.5))
WAYS = {
    "colour to grey, smaller": (SMALL_GREY, (3, 8, 9)),
    "grey to colour, larger": (SMALL_COLOUR, (1, 4, 4)),
    "colour, larger one way and smaller the other": (SMALL_COLOUR, (3, 4, 11)),
    "normalised only": (SMALL_COLOUR, (3, 6, 7)),
}


@pytest.mark.parametrize("way", WAYS)
def test_preprocess_gradient_reaches_every_pixel(way):
    preprocess, shape = WAYS[way]
    images = torch.rand(
        2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert preprocess(images).shape == (2, *preprocess.input_shape)
    assert torch.autograd.gradcheck(preprocess, (images,))
    (slope,) = torch.autograd.grad(preprocess(images).sum(), images)
    assert (slope > 0).all(), "no pixel is left out"


def test_preprocess_normalises_each_channel():
    images = torch.full((1, 3, 6, 7), 0.5)
    seen = SMALL_COLOUR(images)[0, :, 0, 0]
    torch.testing.assert_close(seen, torch.tensor([0.0, 0.2 / 0.3, 0.3 / 0.5]))


def test_to_shape_keeps_even_images():
    for shape in ((1, 28, 28), (3, 32, 32), (1, 7, 50)):
        torch.testing.assert_close(
            to_shape(torch.full((1, 3, 30, 30), 0.25), shape), torch.full((1, *shape), 0.25)
        )


def test_to_shape_keeps_the_mean():
    images = torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        to_shape(images, (1, 16, 16)).mean(), images.mean(), atol=2e-3, rtol=0
    )
    torch.testing.assert_close(to_shape(to_shape(images, (3, 32, 32)), (1, 32, 32)), images)
