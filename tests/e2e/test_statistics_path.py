"""Clients that agree to send statistics, from their training to a fused model, on files alone."""

import pytest
import torch
from commands import run, run_json

MODULE = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    home = tmp_path_factory.mktemp("accord")
    run(
        "partition",
        "fashion-mini",
        "--rule",
        "classes:4",
        "--clients",
        3,
        "--out",
        "parts.json",
        cwd=home,
    )
    quick = ("--epochs", "2", "--batch-size", "64", "--optimiser", "adam", "--lr", "0.002")
    trained = run_json(
        "train", "--partition", "parts.json", "--net", "lenet5", *quick, "--statistics", cwd=home
    )
    assert [set(one["parts"]) for one in trained] == [{"classifier", "statistics"}] * 3
    return home


def uploads(home):
    return sorted((home / "uploads").glob("*.attar"))


def test_inspect_says_what_statistics_reveal(federation):
    shown = " ".join(run("inspect", uploads(federation)[0], cwd=federation).stdout.split())
    assert "statistics: 64 features" in shown
    assert "which classes are held" in shown
    assert "no noise was added" in shown
    (described,) = run_json("inspect", uploads(federation)[0], cwd=federation)
    told = described["parts"]["statistics"]["statistics"]
    held = [
        name
        for name, count in zip(
            described["parts"]["classifier"]["classes"], described["label_counts"], strict=True
        )
        if count
    ]
    assert told["held"] == held


def test_train_fuse_eval(federation, tmp_path):
    small = [
        f"--set={word}"
        for word in (
            "epochs=2",
            "generator_steps=2",
            "batch_size=16",
            "noise=8",
            "generator_width=4",
        )
    ]
    out = tmp_path / "fused"
    record = run_json(
        "fuse",
        *uploads(federation),
        "--method",
        "accord",
        *small,
        "--out",
        out,
        "--data",
        "fashion-mini",
        cwd=federation,
    )
    assert set(record["accuracies"]) == {"student", "teacher"}
    assert "Class shares: from the label counts of 3 of 3 clients." in record["remarks"]
    assert "Familiarity gate: from the statistics of 3 of 3 clients." in record["remarks"]
    measured = run_json("eval", out / "teacher", "--data", "fashion-mini", cwd=federation)
    assert measured["accuracy"] == pytest.approx(record["accuracies"]["teacher"])
    ensemble = (
        "--method",
        "ensemble",
        "--set",
        "rule=accord",
        "--data",
        "fashion-mini",
        "--out",
        tmp_path / "ensemble",
    )
    alone = run_json("fuse", *uploads(federation), *ensemble, cwd=federation)
    assert alone["accuracy"] == pytest.approx(
        record["accuracies"]["teacher"]
    )  # the same teacher, without a student
    plain = (
        "--method",
        "ensemble",
        "--set",
        "rule=mean-logits",
        "--data",
        "fashion-mini",
        "--out",
        tmp_path / "plain",
    )
    assert (
        alone["accuracy"]
        > run_json("fuse", *uploads(federation), *plain, cwd=federation)["accuracy"]
    )


def test_noise_is_stated_and_flags_without_statistics_are_refused(federation, tmp_path):
    noise = ("--statistics-epsilon", "4", "--statistics-clip", "5")
    common = (
        "train",
        "--partition",
        "parts.json",
        "--client",
        "0",
        "--net",
        "lenet5",
        "--epochs",
        "1",
        "--out",
        tmp_path / "a.attar",
    )
    (told,) = run_json(*common, "--statistics", *noise, cwd=federation)
    assert any("(4, 1e-05)-differential privacy" in line for line in told["reveals"])
    refused = run(*common, *noise, cwd=federation, status=2)
    words = " ".join(refused.stderr.replace("│", " ").split())
    assert "--statistics-epsilon, --statistics-clip: needs --statistics" in words
    assert "leave this out" in words


def test_a_packed_net_is_measured_on_its_owners_images(federation):
    (federation / "own_net.py").write_text(MODULE)
    space = {}
    exec(MODULE, space)
    torch.manual_seed(0)
    torch.save(space["make"]().state_dict(), federation / "own.pt")
    classes = ",".join(
        run_json("inspect", uploads(federation)[0], cwd=federation)[0]["parts"]["classifier"][
            "classes"
        ]
    )
    common = (
        "pack",
        "--module",
        "own_net:make",
        "--weights",
        "own.pt",
        "--sample-shape",
        "1,28,28",
        "--classes",
        classes,
    )
    told = run_json(
        *common, "-o", "own.attar", "--statistics", "--data", "fashion-mini", cwd=federation
    )
    assert told["parts"]["statistics"]["statistics"]["features"] == 256
    refused = run(*common, "-o", "other.attar", "--statistics", cwd=federation, status=2)
    assert "give both --statistics and --data" in " ".join(refused.stderr.split())


def test_who_has_too_few_images_is_told_so(tmp_path):
    """Clients of about thirty images: nobody sends statistics of them, and the training says so."""
    run(
        "partition",
        "fashion-mini",
        "--rule",
        "iid",
        "--clients",
        200,
        "--out",
        "parts.json",
        cwd=tmp_path,
    )
    asked = ("--client", "0-1", "--net", "mlp:hidden=8,layers=1", "--epochs", "1", "--statistics")
    shown = run("train", "--partition", "parts.json", *asked, cwd=tmp_path).stdout
    told = " ".join(shown.split())
    assert (
        "Too few images to send statistics without revealing single ones: client-000, client-001"
        in told
    )
