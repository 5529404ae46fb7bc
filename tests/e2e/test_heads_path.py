"""Sums of features on files alone: trained, fused, evaluated, updated, refused."""

import json
import shutil
import time

import pytest
import torch
from commands import run, run_json
from safetensors.torch import load_file

from attar.core import ModelSpec, Part, Preprocess
from attar.models import load_model, save_model

SHAPE = (1, 28, 28)
CLIENTS = 4


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A backbone that nobody trained, and four clients with skewed shares of fashion-mini."""
    home = tmp_path_factory.mktemp("heads")
    spec = ModelSpec.parse("lenet5")
    state = spec.build(SHAPE, 10, 0).state_dict()
    part = Part(spec, state, tuple("abcdefghij"), Preprocess.plain(SHAPE))
    save_model(home / "lenet", part, card=None)
    split = ("--clients", CLIENTS, "--rule", "dirichlet:0.1", "--out", "parts.json")
    run("partition", "fashion-mini", *split, cwd=home)
    words = ("train", "--backbone", "lenet", "--partition", "parts.json", "--features", 32)
    run(*words, "--out", "sent", cwd=home)
    run(*words, "--per-class", "--out", "by-class", cwd=home)
    return home


def files(home, folder="sent"):
    return sorted((home / folder).glob("*.attar"))


def test_fuse_takes_a_head_in_closed_form_unless_told_otherwise(home):
    told = run_json("fuse", *files(home), "--out", "head", "--data", "fashion-mini", cwd=home)
    assert told["method"] == "gaussian-head"
    assert told["accuracy"] > 0.6  # of random features: it is the sums that count
    (details,) = told["details"]["heads"].values()
    assert details["clients"] == CLIENTS
    assert set(details["contributions"]) == {client["client"] for client in told["clients"]}
    assert details["choice"]["criterion"] == "squared error"
    checked = run_json("eval", "head", "--data", "fashion-mini", cwd=home)
    assert checked["accuracy"] == pytest.approx(told["accuracy"])
    config = json.loads((home / "head" / "config.json").read_text())
    assert config["sums"][0]["file"] == "sums.attar"
    # the sums may be deleted: the model works without
    shutil.copytree(home / "head", home / "light")
    (home / "light" / "sums.attar").unlink()
    assert load_model(home / "light").classes == load_model(home / "head").classes


def test_heads_of_the_sum_beat_local_ones_and_do_not_depend_on_the_split(home):
    accuracies = {}
    for name, words in {
        "ridge": ("--method", "analytic"),
        "ensemble": ("--method", "local-heads"),
        "average": ("--method", "local-heads", "--set", "combine=average"),
    }.items():
        words = (*words, "--out", name, "--data", "fashion-mini")
        accuracies[name] = run_json("fuse", *files(home), *words, cwd=home)["accuracy"]
    assert accuracies["ridge"] > max(accuracies["ensemble"], accuracies["average"]) + 0.02
    split = ("--clients", 1, "--rule", "iid", "--out", "whole.json")
    run("partition", "fashion-mini", *split, cwd=home)
    words = ("train", "--backbone", "lenet", "--partition", "whole.json", "--features", 32)
    run(*words, "--out", "whole", cwd=home)
    words = ("fuse", *files(home, "whole"), "--method", "analytic", "--out", "central")
    central = run_json(*words, "--data", "fashion-mini", cwd=home)["accuracy"]
    assert central == pytest.approx(accuracies["ridge"], abs=0.001)


def test_mixtures_beside_the_sums(home):
    """Sent, described, sampled from; kept if they are the same, and refused with noise."""
    words = ("train", "--backbone", "lenet", "--partition", "parts.json", "--features", 32)
    mixed = (*words, "--mixture", 3, "--mixture-covariance", "full", "--out", "mixtures")
    run(*mixed, cwd=home)
    sent = files(home, "mixtures")
    assert not [path for path in (home / "mixtures").iterdir() if path.suffix == ".features"]
    (told,) = run_json("inspect", sent[0], cwd=home)
    assert told["parts"]["mixtures"]["mixtures"]["components"] == 3
    assert any("up to 3 Gaussians" in line for line in told["reveals"])
    kept = sent[0].read_bytes()
    run(*mixed, cwd=home)
    assert sent[0].read_bytes() == kept
    assert "other mixtures" in run(*mixed[:-3], "diagonal", *mixed[-2:], cwd=home, status=2).stderr
    assert (
        "does not cover"
        in run(*mixed[:-1], "noisy", "--epsilon", 1, "--clip", 1, cwd=home, status=2).stderr
    )
    options = ("--method", "fedpft", "--set", "gaussians=mixtures", "--set", "epochs=10")
    told = run_json("fuse", *sent, *options, "--out", "pft", "--data", "fashion-mini", cwd=home)
    assert told["accuracy"] > 0.5
    said = run("fuse", *files(home), *options, "--out", "none", cwd=home, status=2).stderr
    assert "No mixtures were sent by" in " ".join(said.replace("│", " ").split())


def test_quadratic_head_of_squares_by_class(home):
    sums = files(home, "by-class")
    words = ("--set", "kind=qda", "--out", "qda", "--data", "fashion-mini")
    told = run_json("fuse", *sums, "--method", "gaussian-head", *words, cwd=home)
    assert told["accuracy"] > 0.6
    assert load_model(home / "qda")(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    said = run(
        "fuse", *files(home), "--method", "gaussian-head", *words[:2], "--out", "no",
        cwd=home, status=2,
    ).stderr  # fmt: skip
    assert "must send squares for each class" in " ".join(said.replace("│", " ").split())


def test_update(home):
    first, *rest = files(home)
    run("fuse", *rest, "--out", "three", "--classes", classes(home), cwd=home)
    begun = time.monotonic()
    told = run_json("update", "three", "--add", first, "--out", "four", cwd=home)
    assert time.monotonic() - begun < 30
    run("fuse", *rest, first, "--out", "again", "--classes", classes(home), cwd=home)
    assert same_model(home / "four", home / "again")
    assert told["updates"][0]["added"][0]["client"] == told["clients"][-1]["client"]
    name = told["updates"][0]["added"][0]["client"]
    words = ("update", "four", "--remove", name, "--files", "sent", "--out", "back")
    run(*words, cwd=home)
    assert same_model(home / "back", home / "three")
    said = run(*words[:4], "--out", "lost", cwd=home, status=2).stderr
    assert "holds the sum of all clients" in " ".join(said.split())
    assert (
        "Nobody joins or leaves" in run("update", "four", "--out", "x", cwd=home, status=2).stderr
    )


def classes(home):
    path = home / "classes.txt"
    path.write_text("\n".join(load_model(home / "head").classes))
    return path


def same_model(one, other):
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    return all(torch.equal(first[name], second[name]) for name in first)


def test_dry_run_lists_what_fits(home):
    rows = run_json("fuse", *files(home), "--dry-run", cwd=home)
    fits = [row["method"] for row in rows if row["fits"]]
    assert fits == ["gaussian-head", "analytic", "fisher-mix", "fedpft", "local-heads"]


def test_missing_backbone(home, tmp_path):
    said = run("fuse", *files(home), "--out", "head", cwd=tmp_path, status=2).stderr
    assert "backbone lenet of these sums is not at the server" in " ".join(said.split())
    words = ("fuse", *files(home), "--backbone", home / "lenet", "--out", "head")
    run(*words, cwd=tmp_path)
    assert load_model(tmp_path / "head").classes
