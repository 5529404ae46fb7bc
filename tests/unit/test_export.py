"""Exported files: the same answers as the model's, for each family of nets, mixtures, gates, packed
nets and frozen backbones; and they run where attar is not installed.
"""

import json
import subprocess
import sys
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from attar.cli import main
from attar.core import Gate, Mixture, ModelSpec, Part, Preprocess
from attar.deploy import LARGEST_DIFFERENCE, Deployed, export_onnx, export_torch
from attar.deploy import files as files_module
from attar.errors import RunError, SettingsError
from attar.models import Classifier, save_model
from attar.nets import (
    NETS,
    describe_net,
    efficientnet,
    efficientnet_lite,
    googlenet,
    mobilenet,
    shufflenet,
)
from attar.packing.pack import pack

CLASSES = tuple("abcdef")
SMALL = {
    "vit": "vit:depth=1,width=24,hidden=48",
    "vit-tiny": "vit-tiny:depth=1",
    "vit-small": "vit-small:depth=1",
    "vit-base": "vit-base:depth=1",
    "deit-tiny": "deit-tiny:depth=1,distilled=true",
    "deit-small": "deit-small:depth=1",
    "deit-base": "deit-base:depth=1",
}
CLASSIFIERS = sorted(
    name for name in NETS if NETS[name].kind == "classifier" and not NETS[name].required
)
# One of each module of attar.nets. The deep ones have every kind of block, but few of each.
OF_EACH_FAMILY = [
    "lenet5", "vgg11", "resnet20", "wrn16-1", "mobilenetv3-small", "shufflenetv2", "googlenet",
    "efficientnetv2-s", "efficientnet-lite0:stem=small", "vit", "deit-tiny",
]  # fmt: skip


@pytest.fixture
def few_blocks(monkeypatch):
    """Deep nets with fewer repetitions: their export takes seconds for each dozen of layers."""
    some = mobilenet.V3_SMALL_BLOCKS
    monkeypatch.setattr(mobilenet, "V3_SMALL_BLOCKS", (*some[:3], *some[3:5], some[8]))
    monkeypatch.setattr(shufflenet, "STAGES", ((2, 116), (2, 232)))
    monkeypatch.setattr(googlenet, "STAGES", (googlenet.STAGES[0][:1], googlenet.STAGES[2][:1]))
    first, fused, _, separable, *_ = efficientnet.S_STAGES
    short = (first, fused._replace(blocks=2), separable._replace(blocks=2))
    monkeypatch.setattr(efficientnet, "S_STAGES", short)
    lite = efficientnet_lite.STAGES
    monkeypatch.setattr(efficientnet_lite, "STAGES", (*lite[:3], lite[-1]))


def trained(spec, shape, classes=CLASSES, seed=0):
    """A part whose weights and BatchNorm statistics are drawn, as training leaves none at 0 or 1."""
    made = ModelSpec.parse(spec)
    net = made.build(shape, len(classes), seed)
    draw = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=draw)
            module.running_var.uniform_(0.8, 1.2, generator=draw)
    with torch.no_grad():
        for weight in net.head.parameters():
            weight.mul_(4)  # answers that differ from image to image
    mean = tuple(0.4 + 0.05 * channel for channel in range(shape[0]))
    std = tuple(0.2 + 0.05 * channel for channel in range(shape[0]))
    return Part(made, net.state_dict(), tuple(classes), Preprocess(shape, mean, std))


def statistics_of(part, features):
    """Feature statistics as a client sends them."""
    spec = ModelSpec.of("feature-statistics", {"features": features, "dimensions": 8})
    state = spec.build(part.preprocess.input_shape, len(part.classes), 0).state_dict()
    draw = torch.Generator().manual_seed(1)
    changed = {
        "means": torch.rand(state["means"].shape, generator=draw),
        "whitening": torch.rand(state["whitening"].shape, generator=draw),
        "own_mean": torch.tensor(3.0),
        "own_spread": torch.tensor(0.1),
    }
    return Part(spec, {**state, **changed}, part.classes, part.preprocess)


def members():
    """Grey and colour, several sizes and class lists, with BatchNorm and without."""
    return (
        trained("lenet5", (1, 28, 28)),
        trained("lenet5", (1, 28, 28), seed=1),
        trained("cnn5", (3, 32, 32), CLASSES[2:]),
        trained("mlp", (3, 8, 8), CLASSES[::-1], seed=2),
    )


def backbone():
    """A linear head on a frozen, projected and clipped backbone."""
    options = {
        "backbone": "own",
        "net": describe_net(ModelSpec.parse("lenet5:batchnorm=true")),
        "features": 84,
        "dimensions": 16,
        "clip": 2.0,
    }
    spec = ModelSpec.of("frozen-backbone", options)
    state = dict(spec.build((1, 28, 28), len(CLASSES), 0).state_dict())
    state["centre"] = torch.linspace(-1, 1, 84)
    return Part(spec, state, CLASSES, Preprocess.centred((1, 28, 28)))


class Own(nn.Module):
    """Not of the registry: batch sizes in a reshape, attention, a group norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU())
        self.attend = nn.Linear(8, 24)
        self.head = nn.Linear(8, len(CLASSES))

    def forward(self, x):
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        query, key, value = self.attend(tokens).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(mixed.reshape(x.shape[0], -1, 8).mean(1))


def packed():
    torch.manual_seed(0)
    upload = pack(Own().eval(), input_shape=(3, 8, 8), classes=list(CLASSES), client="own")
    return upload.parts["classifier"]


def gates():
    of = members()
    return {
        "batchnorm": (of[0], trained("lenet5:batchnorm=true", (1, 28, 28)), of[2]),
        "statistics": of[:2],
        "none": of,
    }


def mixture(name):
    of = members()
    weights = torch.linspace(0.1, 1, 4)
    each = {
        "logits": Mixture(of, "logits", None, CLASSES),
        "weighted": Mixture(of, "logits", weights / weights.sum(), CLASSES),
        "by class": Mixture(of, "probabilities", torch.rand(4, 6) + 0.1, CLASSES),
        "sum": Mixture(of, "sum", weights, CLASSES),
        "max": Mixture(of, "max", None, CLASSES),
        "vote": Mixture(of, "vote", None, CLASSES),
        "accord": Mixture(of, "accord", None, CLASSES),
        "accord, BatchNorm": Mixture(
            gates()["batchnorm"], "accord", None, CLASSES, Gate((), 1.0, 1.5)
        ),
        "accord, statistics": Mixture(
            of, "accord", None, CLASSES,
            Gate((statistics_of(of[0], 84), None, None, statistics_of(of[3], 256)), 0.25, 1.5),
        ),
    }  # fmt: skip
    return each[name]


MIXTURES = [
    "logits", "weighted", "by class", "sum", "max", "vote", "accord", "accord, BatchNorm",
    "accord, statistics",
]  # fmt: skip


def check_onnx(model, path, pixels=None):
    """The file against the model, on batches that the export did not see."""
    done = export_onnx(model, path, pixels=pixels)
    assert done.largest_difference <= LARGEST_DIFFERENCE
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    classifier = Classifier(model)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(model.classes)
    assert session.get_inputs()[0].shape == ["batch", *classifier.input_shape()]
    for batch in (1, 3):
        images = torch.rand(
            batch, *done.image_shape, generator=torch.Generator().manual_seed(batch)
        )
        logits, probabilities = session.run(None, {"images": images.numpy()})
        wanted = classifier(images)
        scale = max(1.0, float(wanted.abs().max()))
        assert np.abs(logits - wanted.numpy()).max() <= 1e-4 * scale
        assert np.abs(probabilities - wanted.softmax(-1).numpy()).max() <= 1e-4
    return session


@pytest.mark.parametrize("spec", OF_EACH_FAMILY)
def test_onnx_of_each_family(spec, few_blocks, tmp_path):
    name = spec.partition(":")[0]
    shape = NETS[name].usual_shape
    if name.startswith(("efficientnet", "googlenet")):
        shape = (3, 20, 24)
    check_onnx(trained(SMALL.get(spec, spec), shape), tmp_path / "model.onnx")


def test_each_family_is_there():
    families = {NETS[name].build.__module__ for name in CLASSIFIERS}
    chosen = {NETS[spec.partition(":")[0]].build.__module__ for spec in OF_EACH_FAMILY}
    assert chosen == families


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_onnx_of_every_net_on_1000_images(name, tmp_path):
    shape = NETS[name].usual_shape
    draw = torch.Generator().manual_seed(7)
    pixels = torch.randint(0, 256, (872, *shape), generator=draw, dtype=torch.uint8)
    check_onnx(trained(SMALL.get(name, name), shape), tmp_path / "model.onnx", pixels)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MIXTURES, "backbone", "packed"])
def test_onnx_of_other_models_on_1000_images(name, tmp_path):
    model = {"backbone": backbone, "packed": packed}.get(name, lambda: mixture(name))()
    shape = Classifier(model).input_shape()
    draw = torch.Generator().manual_seed(7)
    pixels = torch.randint(0, 256, (872, *shape), generator=draw, dtype=torch.uint8)
    check_onnx(model, tmp_path / "model.onnx", pixels)


@pytest.mark.parametrize("name", ["accord, BatchNorm", "accord, statistics", "vote"])
def test_onnx_of_mixture(name, tmp_path):
    check_onnx(mixture(name), tmp_path / "model.onnx")


@pytest.mark.parametrize("make", [packed, backbone])
def test_onnx_of_packed_net_and_backbone(make, tmp_path):
    check_onnx(make(), tmp_path / "model.onnx")


@pytest.mark.parametrize("name", MIXTURES)
def test_deployed_equals_classifier(name):
    """The layers that are exported, in PyTorch: also for images of another shape."""
    model = mixture(name)
    classifier = Classifier(model)
    for shape in (classifier.input_shape(), (3, 40, 21), (1, 16, 60)):
        images = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0))
        logits, probabilities = Deployed(model, shape)(images)
        torch.testing.assert_close(logits, classifier(images), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(probabilities, logits.softmax(-1))


def test_gate_matters():
    """The comparison above would not notice a missing gate if it changed nothing."""
    gated = mixture("accord, statistics")
    open_gate = Mixture(gated.members, "accord", None, CLASSES, Gate((), 0.0, 1.5))
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    difference = Classifier(gated)(images) - Classifier(open_gate)(images)
    assert difference.abs().max() > 0.01


def test_file_names_no_path_of_this_machine(tmp_path):
    """torch notes for each node which line of which file it came from."""
    model = members()[0]
    export_onnx(model, tmp_path / "model.onnx")
    export_torch(model, tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        contents = [archive.read(name) for name in archive.namelist()]
    for content in [(tmp_path / "model.onnx").read_bytes(), *contents]:
        assert b"attar/nets" not in content
        assert b"site-packages" not in content


def test_onnx_is_valid_and_whole(tmp_path):
    export_onnx(members()[2], tmp_path / "model.onnx", image_shape=(3, 50, 40))
    proto = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim] == [
        0,
        3,
        50,
        40,
    ]
    assert {node.domain for node in proto.graph.node} == {""}  # no operator of torch alone
    assert list(tmp_path.iterdir()) == [tmp_path / "model.onnx"]  # no second file with weights


def test_file_that_disagrees_is_not_kept(tmp_path, monkeypatch):
    class Wrong(Deployed):
        def forward(self, images):
            logits, probabilities = super().forward(images)
            return logits + 1e-3, probabilities

    monkeypatch.setattr(files_module, "Deployed", Wrong)
    for write, name in ((export_onnx, "model.onnx"), (export_torch, "model.pt2")):
        with pytest.raises(RunError, match="does not agree with the model"):
            write(members()[0], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_difference_that_is_no_number_is_not_kept():
    logits = torch.ones(2, 3)
    broken = torch.tensor([[1.0, 1, 1], [1, float("nan"), 1]])
    assert not files_module.measure_difference(logits, broken) <= LARGEST_DIFFERENCE
    assert files_module.measure_difference(100 * logits, 100 * logits + 0.5) == pytest.approx(0.005)


def test_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SettingsError, match=r"onnxruntime.*\n.*pip install 'attar\[export\]'"):
        export_onnx(members()[0], tmp_path / "model.onnx")


# Without attar, in a process of its own

LOAD_TORCH = """
import sys, json
sys.modules["attar"] = None
import torch
extra = {"attar.json": ""}
program = torch.export.load("model.pt2", extra_files=extra)
images = torch.load("images.pt", weights_only=True)
logits, probabilities = program.module()(images)
torch.save({"logits": logits, "probabilities": probabilities}, "answer.pt")
print(json.dumps(json.loads(extra["attar.json"])["classes"]))
"""
LOAD_ONNX = """
import sys, json
sys.modules["attar"] = sys.modules["torch"] = None
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
logits, probabilities = session.run(None, {"images": numpy.load("images.npy")})
numpy.save("answer.npy", logits)
print(session.get_modelmeta().custom_metadata_map["classes"])
"""


def run_alone(code, folder):
    """Run in an interpreter that does not see this repository."""
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", code],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_files_run_without_attar(tmp_path):
    model = mixture("accord, BatchNorm")
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    wanted = Classifier(model)(images)
    torch.save(images, tmp_path / "images.pt")
    np.save(tmp_path / "images.npy", images.numpy())
    export_torch(model, tmp_path / "model.pt2")
    export_onnx(model, tmp_path / "model.onnx")
    assert run_alone(LOAD_TORCH, tmp_path) == list(CLASSES)
    assert run_alone(LOAD_ONNX, tmp_path) == list(CLASSES)
    answer = torch.load(tmp_path / "answer.pt", weights_only=True)
    torch.testing.assert_close(answer["logits"], wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(answer["probabilities"], wanted.softmax(-1), rtol=1e-4, atol=1e-4)
    by_onnx = torch.from_numpy(np.load(tmp_path / "answer.npy"))
    torch.testing.assert_close(by_onnx, wanted, rtol=1e-4, atol=1e-4)


def test_torch_file_is_bound_to_no_device(tmp_path):
    export_torch(mixture("accord, BatchNorm"), tmp_path / "model.pt2")
    nodes = torch.export.load(tmp_path / "model.pt2").graph.nodes
    assert [node for node in nodes if node.kwargs.get("device") is not None] == []


# The command


def test_export_command(tmp_path, capsys):
    save_model(tmp_path / "fused", trained("lenet5", (1, 28, 28), tuple("0123456789")), card=None)
    out = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "fused"), "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == "onnx"
    assert said["bytes"] == out.stat().st_size
    assert said["image_shape"] == [1, 28, 28]
    assert said["images_compared"] == 128
    words = ["export", str(tmp_path / "fused"), "-o", str(tmp_path / "model.pt2")]
    assert main([*words, "--image-shape", "3,40,40", "--data", "fashion-mini"]) == 0
    assert "Compared with the model on 1,128 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("out", "more", "says"),
    [
        ("model.bin", [], "must end in .onnx or .pt2"),
        ("model.onnx", ["--format", "torch"], "must end in .pt2"),
        ("model", ["--format", "onnx"], "must end in .onnx"),
        ("model.onnx", ["--image-shape", "3,40"], "for example --image-shape 3,480,640"),
        ("model.onnx", ["--image-shape", "3,0,9"], "for example --image-shape 3,480,640"),
    ],
)
def test_export_command_refuses_words(out, more, says, tmp_path, capsys):
    save_model(tmp_path / "fused", members()[0], card=None)
    assert main(["export", str(tmp_path / "fused"), "-o", str(tmp_path / out), *more]) == 2
    assert says in " ".join(capsys.readouterr().err.replace("│", " ").split())
