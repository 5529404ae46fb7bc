"""Variants of a backbone: mirror images, roots, earlier stages; their names and fingerprints."""

from dataclasses import replace

import pytest
import torch

from attar import fuse
from attar.backbones import Variant, backbone_of, fast_copy, load_backbone, read_variant
from attar.core import ModelSpec, Part, Preprocess, Server, Task, Upload
from attar.errors import NeedsError, SpecError
from attar.models import load_model, save_model
from attar.nets import project_features
from attar.nets.efficientnet_lite import PooledStages
from attar.training.feature_sums import SumsSettings, SumTables, make_sums

SHAPE = (3, 24, 24)
CLASSES = ("ring", "cross")
BOTH = Variant(mirror=True, root=True)


@pytest.fixture
def images():
    return torch.rand(12, *SHAPE, generator=torch.Generator().manual_seed(1))


def net_of(arch, seed=0):
    spec = ModelSpec.parse(arch)
    net = spec.build(SHAPE, 2, seed)
    return Part(spec, net.state_dict(), CLASSES, Preprocess.centred(SHAPE))


@pytest.mark.parametrize(
    ("text", "name", "variant"),
    [
        ("lite", "lite", Variant()),
        ("lite?mirror=true", "lite", Variant(mirror=True)),
        ("lite?stages=2&root=true&mirror=false", "lite", Variant(root=True, stages=2)),
        (
            "timm:a?weights=x.safetensors&root=true",
            "timm:a?weights=x.safetensors",
            Variant(root=True),
        ),
        ("timm:a?weights=x.safetensors", "timm:a?weights=x.safetensors", Variant()),
    ],
)
def test_read_variant(text, name, variant):
    assert read_variant(text) == (name, variant)
    assert read_variant(name.partition("?")[0] + variant.suffix)[1] == variant


def test_read_variant_names_every_mistake():
    with pytest.raises(SpecError) as caught:
        read_variant("lite?mirror=yes&root=1&stages=9&stages=8")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "mirror = yes",
        "root = 1",
        "stages = 8",
        "an option is named twice",
    ]


def test_extractor_by_hand(images):
    """The mean over both images, then the root with its sign; the plain net where nothing is on."""
    plain = backbone_of("x", net_of("cnn5"))
    assert plain.extractor is plain.net
    inputs = plain.preprocess(images)
    there, back = (plain.net.features(x) for x in (inputs, inputs.flip(-1)))
    mirrored = backbone_of("x", net_of("cnn5"), Variant(mirror=True))
    torch.testing.assert_close(mirrored.extractor.features(inputs), (there + back) / 2)
    both = backbone_of("x", net_of("cnn5"), BOTH)
    mean = (there + back) / 2
    expected = mean.sign() * mean.abs().sqrt()
    torch.testing.assert_close(both.extractor.features(inputs), expected, atol=1e-3, rtol=1e-3)
    assert both.extractor.features(inputs.flip(-1)).allclose(both.extractor.features(inputs))


def test_root_has_a_finite_gradient():
    """Also at 0, where the root itself has none: ReLU6 and a mean give exact zeros."""
    backbone = backbone_of("x", net_of("efficientnet-lite0:stem=small"), BOTH)
    x = torch.zeros(1, *SHAPE, requires_grad=True)
    backbone.extractor.features(x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


def test_stages_by_hand(images):
    """The means of the maps of the last stages, the last first, behind the usual features."""
    part = net_of("efficientnet-lite0:stem=small")
    plain = backbone_of("x", part)
    staged = backbone_of("x", part, Variant(stages=2))
    assert isinstance(staged.net, PooledStages)
    inputs = plain.preprocess(images)
    maps = []
    for layer in plain.net.trunk:
        maps.append(layer(maps[-1] if maps else inputs))
    ends = [m for m in maps[:-3] if m.shape[1] in (192, 320)]
    pooled = [plain.net.features(inputs), ends[-1].mean((2, 3)), ends[-2].mean((2, 3))]
    torch.testing.assert_close(staged.extractor.features(inputs), torch.cat(pooled, 1))
    assert staged.features == 1280 + 320 + 192
    fast = fast_copy(staged.extractor, "cpu").features(inputs)
    torch.testing.assert_close(fast, staged.extractor.features(inputs), atol=1e-4, rtol=1e-4)


def test_stages_refused():
    with pytest.raises(SpecError, match="no option stages: only efficientnet-lite0"):
        backbone_of("x", net_of("cnn5"), Variant(stages=1))
    with pytest.raises(SpecError, match="stages = 8"):
        ModelSpec.parse("efficientnet-lite0:stages=8").skeleton((3, 64, 64), 2)


def test_fingerprint_of_a_variant():
    """Each variant has its own; without one it is what it always was."""
    part = net_of("efficientnet-lite0:stem=small")
    variants = [Variant(), Variant(mirror=True), Variant(root=True), BOTH, Variant(stages=1)]
    found = [backbone_of("x", part, variant).fingerprint(0, 0.0, 24) for variant in variants]
    assert len(set(found)) == len(found)
    assert backbone_of("y", part, None).fingerprint(0, 0.0, 24) == found[0]


def test_load_backbone_variant(tmp_path):
    save_model(tmp_path / "teacher", net_of("cnn5"), card=None)
    backbone = load_backbone(f"{tmp_path}/teacher?root=true&mirror=true")
    assert (backbone.name, backbone.mirror, backbone.root) == (
        "teacher?mirror=true&root=true",
        True,
        True,
    )
    again = load_backbone(f"{tmp_path}/teacher", BOTH)
    assert again.fingerprint(0, 0.0, 24) == backbone.fingerprint(0, 0.0, 24)


@pytest.mark.parametrize("variant", [BOTH, Variant(mirror=True, stages=1)])
def test_fuse_sums_of_a_variant(tmp_path, images, variant):
    """The server finds the variant by the name in the sums, and the model computes with it."""
    part = net_of("efficientnet-lite0:stem=small" if variant.stages else "cnn5")
    backbone = backbone_of("teacher", part, variant)
    phi = project_features(
        backbone.extractor.features(backbone.preprocess(images)),
        centre=None,
        dimensions=0,
        clip=0.0,
    )
    labels = torch.arange(12) % 2
    tables = SumTables(2, backbone.features, per_class=False)
    tables.add(phi, labels, torch.arange(12) // 2 % 2)
    sums = make_sums(tables, backbone, CLASSES, SumsSettings())
    upload = Upload("berlin", {"sums": sums}, 12, (6, 6))
    task = Task(SHAPE, CLASSES)
    server = Server(task, part.spec, part.preprocess, backbones={"mine": part})
    fused = fuse([upload], "analytic", server, out=tmp_path / "fused")
    made = next(iter(fused.result.models.values()))
    head = made.state["head.weight"].double(), made.state["head.bias"].double()
    model = load_model(tmp_path / "fused")
    torch.testing.assert_close(
        model(images).double(), phi @ head[0].T + head[1], atol=1e-4, rtol=1e-4
    )
    other = backbone_of("teacher", part, replace(variant, mirror=False))
    wrong = make_sums(tables, other, CLASSES, SumsSettings())
    renamed = replace(
        wrong,
        spec=ModelSpec.of(wrong.spec.arch, {**dict(wrong.spec.options), "backbone": backbone.name}),
    )
    with pytest.raises(NeedsError, match="not at the server"):
        fuse([Upload("oslo", {"sums": renamed}, 12, (6, 6))], "analytic", server)
