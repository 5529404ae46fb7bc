"""The recipe that pre-trains a transformer, in small: a model folder in half precision that
clients and students start from.
"""

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from attar.cli import main
from attar.models import load_description, load_model
from attar.uploads import decode

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pretrain_vit.py"
NET = "vit:depth=1,width=24,heads=2,hidden=48,patch=8"


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("pretrain_vit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Three classes of other images than the clients': their brightest third is on the left, in
    the middle or on the right.
    """
    draws, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "thirds.npz"
    arrays = {}
    for part, number in (("train", 300), ("test", 60)):
        labels = np.arange(number) % 3
        images = draws.integers(0, 100, (number, 24, 24, 1))
        for image, label in zip(images, labels, strict=True):
            image[8 * label : 8 * label + 8] += 150
        arrays |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": labels}
    np.savez(path, **arrays)
    return f"npz:{path}"


@pytest.fixture(scope="module")
def folder(recipe, source, tmp_path_factory):
    out = tmp_path_factory.mktemp("start") / "vit"
    words = [
        "--out",
        out,
        "--data",
        source,
        "--net",
        NET,
        "--device",
        "cpu",
        "--batch",
        64,
        "--steps",
        60,
        "--lr",
        0.01,
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pretrain_vit.py", *map(str, words)])
        recipe.main()
    return out


def test_pretrain_learns(folder):
    record = json.loads((folder / "pretraining.json").read_text())
    assert record["steps"] == 60
    assert record["accuracy"] > 0.6
    weights = sum(value.numel() for value in load_description(folder).state.values())
    assert (folder / "model.safetensors").stat().st_size < 2 * weights + 5000, (
        "two bytes for each weight"
    )
    images = torch.rand(2, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    assert load_model(folder)(images).shape == (2, 3)


def test_pretrain_ends_in_time(recipe, source, tmp_path, monkeypatch):
    words = [
        "pretrain_vit.py",
        "--data",
        source,
        "--device",
        "cpu",
        "--batch",
        "8",
        "--out",
        str(tmp_path / "vit"),
    ]
    monkeypatch.setattr(sys, "argv", [*words, "--net", NET, "--seconds", "0.5"])
    recipe.main()
    assert json.loads((tmp_path / "vit" / "pretraining.json").read_text())["seconds"] < 5
    monkeypatch.setattr(
        sys, "argv", [*words, "--net", "vit-small", "--out", str(tmp_path / "large")]
    )
    with pytest.raises(SystemExit, match="choose fewer blocks"):
        recipe.main()
    assert not (tmp_path / "large").exists()


def in_pieces(recipe, source, out, monkeypatch, *pieces, passes=4):
    """Train for some passes, one command after the other; the weights, or None if not done."""
    words = ["--data", source, "--net", NET, "--device", "cpu", "--batch", "64", "--lr", "0.01"]
    for piece in pieces:
        command = ["pretrain_vit.py", "--out", str(out), *words, "--passes", str(passes), *piece]
        monkeypatch.setattr(sys, "argv", command)
        recipe.main()
    file = out / "model.safetensors"
    return file.read_bytes() if file.exists() else None


def test_pieces_equal_one_run(recipe, source, tmp_path, monkeypatch, capsys):
    train = partial(in_pieces, recipe, source)
    whole = train(tmp_path / "whole", monkeypatch, [])
    record = json.loads((tmp_path / "whole" / "pretraining.json").read_text())
    assert (record["steps"], record["epochs"]) == (16, round(16 * 64 / 300, 2))
    monkeypatch.setattr(recipe, "MOST_BYTES", 3000)
    two = tmp_path / "two"
    assert train(two, monkeypatch, ["--piece", "1"]) is None, "the learning rate is not yet 0"
    state = tmp_path / "two-state"
    assert len(list(state.glob("pass1-*.safetensors"))) > 2
    assert train(two, monkeypatch, ["--resume"]) == whole
    assert not list(state.iterdir())
    capsys.readouterr()
    by_time = train(tmp_path / "timed", monkeypatch, *[["--resume", "--seconds", "0"]] * 4)
    assert by_time == whole, "each piece is a pass at least"
    assert capsys.readouterr().out.count("images a second") == 4
    assert train(tmp_path / "longer", monkeypatch, [], passes=5) != whole


def test_pieces_refuse_other_settings(recipe, source, tmp_path, monkeypatch):
    train = partial(in_pieces, recipe, source, tmp_path / "vit", monkeypatch)
    train(["--piece", "1"])
    with pytest.raises(SystemExit, match="--resume goes on"):
        train(["--piece", "1"])
    with pytest.raises(SystemExit, match=r"begun with lr = 0.01, not 0.02"):
        train(["--resume", "--lr", "0.02"])
    with pytest.raises(SystemExit, match=r"begun with passes = 4, not 5"):
        train(["--resume"], passes=5)


def test_state_is_complete(recipe, source, tmp_path, monkeypatch):
    """Moments are stored in two bytes and lose nothing: they were rounded before."""
    saved = {}

    def keep(trainer, folder):
        moments = trainer.optimiser.state.values()
        saved["moments"] = [value["exp_avg_sq"].clone() for value in moments]
        written(trainer, folder)
        saved["bytes"] = sum(path.stat().st_size for path in folder.glob("*.safetensors"))

    written = recipe.Trainer.save
    monkeypatch.setattr(recipe.Trainer, "save", keep)
    in_pieces(recipe, source, tmp_path / "vit", monkeypatch, ["--piece", "1"])
    assert all(torch.equal(value, value.bfloat16().float()) for value in saved["moments"])
    assert any(value.any() for value in saved["moments"])
    weights = sum(value.numel() for value in saved["moments"])
    assert 8 * weights < saved["bytes"] < 8 * weights + 10_000


def test_learning_rate_rises_and_falls(recipe):
    assert recipe.rate(0.0) == 0.01
    assert recipe.rate(recipe.WARM_UP) == 1.0
    assert recipe.rate(1.0) == recipe.rate(1.1) == pytest.approx(0, abs=1e-12)
    assert recipe.rate((1 + recipe.WARM_UP) / 2) == pytest.approx(0.5)


def test_augmentation_keeps_images_in_place(recipe):
    draws, pixels = (
        torch.Generator().manual_seed(0),
        torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(50, 1, 16, 16),
    )
    images = recipe.augmented(pixels, draws)
    assert images.shape == (50, 1, 16, 16)
    assert 0 <= images.min() < images.max() <= 1
    assert len({tuple(image.flatten().tolist()) for image in images}) == 50, (
        "each image has its own crop"
    )
    down = (images[:, :, 8:].mean((1, 2, 3)) > images[:, :, :8].mean((1, 2, 3))).float().mean()
    assert down == 1, "the ramp still rises downwards"
    rises = (images[..., 8:].mean((1, 2, 3)) > images[..., :8].mean((1, 2, 3))).float().mean()
    assert 0.2 < rises < 0.8, "about half of them are mirrored"


@pytest.mark.parametrize("cut", [False, True])
def test_mix_counts_in_the_target(recipe, cut):
    images, targets = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 32, 32), torch.eye(2)
    for seed in range(5):
        x, y = recipe.mixed(images, targets, torch.Generator().manual_seed(seed), cut)
        torch.testing.assert_close(x.mean((1, 2, 3)), y[:, 1], rtol=1e-4, atol=1e-5)


def test_train_and_fuse_start_from_it(folder, tmp_path, capsys):
    main(
        [
            "partition",
            "fashion-mini?size=24",
            "--clients",
            "2",
            "--out",
            str(tmp_path / "parts.json"),
            "--json",
        ]
    )
    main(["train", "--partition", str(tmp_path / "parts.json"), "--start", str(folder), "--epochs", "0", "--json",
          "--out", str(tmp_path / "up")])  # fmt: skip
    given = load_description(folder)
    files = sorted((tmp_path / "up").glob("*.attar"))
    parts = [decode(file.read_bytes(), file.name).parts["classifier"] for file in files]
    for part in parts:
        assert part.spec == given.spec
        assert len(part.classes) == 10
        assert all(
            torch.equal(part.state[name], given.state[name])
            for name in given.state
            if not name.startswith("head.")
        )
        assert torch.equal(part.state["head.weight"], parts[0].state["head.weight"]), (
            "one fresh head for all"
        )
    main(["fuse", *map(str, files), "--method", "dense", "--set", "epochs=0", "--start", str(folder), "--no-robustness", "--json",
          "--out", str(tmp_path / "fused")])  # fmt: skip
    main(["train", "--partition", str(tmp_path / "parts.json"), "--start", str(folder), "--epochs", "0", "--json",
          "--init", "separate", "--out", str(tmp_path / "own")])  # fmt: skip
    files_own = sorted((tmp_path / "own").glob("*.attar"))
    own = [decode(file.read_bytes(), file.name).parts["classifier"] for file in files_own]
    assert torch.equal(own[0].state["positions"], own[1].state["positions"])
    assert not torch.equal(own[0].state["head.weight"], own[1].state["head.weight"]), (
        "each its own fresh head"
    )
    capsys.readouterr()
    student = load_description(tmp_path / "fused")
    assert torch.equal(student.state["positions"], given.state["positions"])
    assert student.state["head.weight"].shape == (10, 24)
