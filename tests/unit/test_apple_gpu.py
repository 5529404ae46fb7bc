"""Training, sums of features and evaluation on an Apple GPU: the stand-in of mps_stand_in.py."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from attar.backbones import load_backbone
from attar.blocks.execution import has_float64, widest_float
from attar.cli.arguments import parse_device
from attar.core import ModelSpec, Part, Preprocess
from attar.data.streams import open_stream
from attar.errors import SettingsError
from attar.models import Classifier, evaluate, save_model
from attar.training import (
    LocalTraining,
    SumsPass,
    SumsSettings,
    sum_features,
    train_classifiers,
    train_cvaes,
)
from mps_stand_in import apple_gpu
from tiny_clients import random_client

SHAPE = (1, 16, 16)
CLASSES = ("a", "b", "c")
CLIENTS = [random_client(name, 24, SHAPE, CLASSES) for name in ("ann", "bob")]


def test_stand_in_refuses_what_an_apple_gpu_refuses():
    with apple_gpu():
        here = torch.ones(3, device="mps")
        assert here.device.type == "mps"
        assert (here + 1).sum().item() == 6
        with pytest.raises(TypeError, match="float64"):
            here.double()
        with pytest.raises(RuntimeError, match="same device"):
            here + torch.ones(3)
        with pytest.raises(NotImplementedError, match="eigh"):
            torch.linalg.eigh(torch.eye(2, device="mps"))


def test_parse_device():
    with apple_gpu():
        assert parse_device("mps") == "mps"
        assert parse_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(SettingsError, match="no device 'metal'"):
        parse_device("metal")
    with pytest.raises(SettingsError, match="no device 'meta'"):
        parse_device("meta")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has an Apple GPU")
def test_parse_device_without_apple_gpu():
    with pytest.raises(SettingsError, match="finds no Apple GPU"):
        parse_device("mps")
    assert parse_device("mps", here=False) == "mps"


def test_widest_float():
    assert widest_float("mps") == torch.float32
    assert widest_float("cpu") == widest_float(torch.device("cuda", 1)) == torch.float64
    assert not has_float64("mps")


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(epochs=2, batch_size=8, lr=0.05),
        LocalTraining(epochs=2, batch_size=8, optimiser="adam", lr=1e-3, warmup=0.2, schedule="cosine"),
        LocalTraining(epochs=3, batch_size=8, optimiser="adam", lr=1e-3, patience=1, validation=0.25),
    ],
    ids=["sgd", "adam", "early stopping"],
)  # fmt: skip
def test_train_on_apple_gpu(training):
    nets = [ModelSpec.parse("lenet5"), ModelSpec.parse("lenet5")]
    expected = train_classifiers(CLIENTS, nets, training)
    with apple_gpu() as gpu:
        uploads = train_classifiers(CLIENTS, nets, training, device="mps")
    assert any("convolution_backward" in name for name in gpu.used)
    for upload, other in zip(uploads, expected, strict=True):
        state = other.parts["classifier"].state
        for name, value in upload.parts["classifier"].state.items():
            assert value.device.type == "cpu"
            torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-4)


def test_train_decoder_on_apple_gpu():
    net = [ModelSpec.parse("cvae-small")] * 2
    with apple_gpu() as gpu:
        uploads = train_cvaes(CLIENTS, net, {"epochs": 1, "batch_size": 8}, device="mps")
    assert gpu.used
    assert all(value.isfinite().all() for value in uploads[0].parts["decoder"].state.values())


def test_evaluate_on_apple_gpu():
    (upload,) = train_classifiers(CLIENTS[:1], [ModelSpec.parse("lenet5")], LocalTraining(epochs=1))
    model = Classifier(upload.parts["classifier"])
    client = CLIENTS[0]
    expected = evaluate(model, client.pixels, client.labels, CLASSES)
    with apple_gpu() as gpu:
        measured = evaluate(model.to("mps"), client.pixels, client.labels, CLASSES, device="mps")
    assert gpu.used
    assert measured.accuracy == expected.accuracy
    assert measured.calibration_error == pytest.approx(expected.calibration_error, abs=1e-5)


def test_sums_on_apple_gpu(tmp_path):
    """The backbone runs there; what is added in double precision is added on the CPU."""
    spec = ModelSpec.parse("lenet5")
    state = spec.build(SHAPE, 3, 0).state_dict()
    save_model(tmp_path / "net", Part(spec, state, CLASSES, Preprocess.plain(SHAPE)), card=None)
    draws = np.random.default_rng(0)
    for name in ("ring", "cross"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            pixels = draws.integers(0, 256, SHAPE[1:], np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    stream = open_stream(f"folder:{tmp_path / 'photos'}")
    settings = SumsSettings(features=5)
    job = SumsPass(stream, load_backbone(str(tmp_path / "net")), settings, "berlin")
    expected = sum_features(job).parts["sums"].state
    with apple_gpu() as gpu:
        sums = sum_features(job, device="mps").parts["sums"].state
    assert any("conv" in name for name in gpu.used)
    assert torch.equal(sums["counts"], expected["counts"])
    scale = expected["squares"].abs().max().item()
    assert (sums["squares"] - expected["squares"]).abs().max().item() <= 1e-5 * scale


def test_main_turns_the_fallback_on():
    """Operators that torch lacks on an Apple GPU run on the CPU: torch reads it when it is loaded."""
    program = (
        "import os, sys; sys.platform = 'darwin'; sys.argv = ['attar', '--version']\n"
        "from attar.__main__ import main; main()\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ['PYTORCH_ENABLE_MPS_FALLBACK'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "1", done.stderr
