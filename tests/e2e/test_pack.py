"""A stranger's net from its own module to a fused model, on files alone."""

import json
import sys

import pytest
import torch
from commands import run, run_apart

import attar
from attar.cli import main
from attar.testing import tiny_upload
from attar.uploads import write_bundle

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.SiLU(), nn.MaxPool2d(2)
        )
        self.deep = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.GELU())
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.deep(x)).mean((2, 3)))

def make():
    return Net()
"""


@pytest.fixture(scope="module")
def partners(tmp_path_factory):
    """Two packed nets of one architecture, one lenet5 of ours."""
    home = tmp_path_factory.mktemp("partners")
    (home / "our_model.py").write_text(MODULE)
    space = {}
    exec(MODULE, space)
    names = "ring,cross,bar"
    for seed, client in ((0, "berlin"), (1, "oslo")):
        torch.manual_seed(seed)
        torch.save(space["make"]().state_dict(), home / f"{client}.pt")
        shape = ("--sample-shape", "1,16,16") if client == "berlin" else ("--size", "16")
        counts = ("--label-counts", "3,4,5") if client == "berlin" else ("--examples", "9")
        flags = (
            *shape,
            "--mean",
            "0.5",
            "--std",
            "0.5",
            "--classes",
            names,
            *counts,
            "--json",
            "-o",
            f"{client}.attar",
        )
        done = run_apart(
            "pack", "--module", "our_model:make", "--weights", f"{client}.pt", *flags, cwd=home
        )
        told = json.loads(done.stdout)
        assert told["client"] == client
        assert told["num_examples"] == (12 if client == "berlin" else 9)
    attar.write_bundle(home / "rome.attar", tiny_upload("rome", "lenet5", ("ring", "cross", "bar")))
    return home


def test_inspect_shows_the_packed_net(partners):
    shown = run("inspect", "berlin.attar", "oslo.attar", "rome.attar", cwd=partners)
    text = " ".join(shown.stdout.split())
    assert "a packed net, 9 nodes" in text
    assert "conv2d x2" in text
    assert "how a packed net is built" in text
    assert '"op"' not in shown.stdout
    told = json.loads(run("inspect", "berlin.attar", "--json", cwd=partners).stdout)[0]["parts"][
        "classifier"
    ]
    assert told["net"].startswith("graph:")
    assert told["graph"]["batchnorm_layers"] == 1
    assert told["graph"]["features"]


def test_pack_twice_gives_one_architecture(partners):
    one, other = (
        attar.read_bundle(partners / f"{name}.attar").parts["classifier"]
        for name in ("berlin", "oslo")
    )
    assert one.spec == other.spec
    assert not torch.equal(one.state["head.weight"], other.state["head.weight"])


@pytest.mark.parametrize("method", ["dense", "f-dafl"])
def test_fuse_packed_nets_and_others(partners, tmp_path, method):
    files = [partners / f"{name}.attar" for name in ("berlin", "oslo", "rome")]
    quick = (
        "--set",
        "epochs=2",
        "--set",
        "batch_size=4",
        *(("--set", "generator_steps=2") if method == "dense" else ()),
    )
    done = run(
        "fuse",
        *files,
        "--method",
        method,
        *quick,
        "--out",
        tmp_path / "fused",
        "--json",
        cwd=partners,
    )
    record = json.loads(done.stdout)
    assert record["student"] == "lenet5"
    assert [client["parts"]["classifier"][:6] for client in record["clients"]] == [
        "graph:",
        "graph:",
        "lenet5",
    ]
    model = attar.load_model(tmp_path / "fused")
    assert model(torch.rand(2, 1, 16, 16)).shape == (2, 3)


def test_fuse_to_a_mixture_with_packed_members(partners, tmp_path):
    files = [partners / f"{name}.attar" for name in ("berlin", "rome")]
    run("fuse", *files, "--method", "ensemble", "--out", tmp_path / "fused", cwd=partners)
    model = attar.load_model(tmp_path / "fused")
    x = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    each = [attar.Classifier(attar.read_bundle(file).parts["classifier"])(x) for file in files]
    assert torch.allclose(model(x), (each[0] + each[1]) / 2, atol=1e-5)


@pytest.mark.parametrize("verb", ["inspect", "fuse"])
def test_inspect_refuses_a_pickle(partners, verb, monkeypatch, capsys):
    monkeypatch.chdir(partners)
    assert main([verb, "berlin.pt", *(("--out", "x") if verb == "fuse" else ())]) == 2
    assert "attar pack --module" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ("--module", "our_model:make", "--weights", "berlin.pt"),
            "The shape of the net's images must be given once.",
        ),
        (
            ("--module", "our_model:other", "--weights", "berlin.pt", "--size", "16"),
            "The module our_model has no other.",
        ),
        (
            ("--module", "our_model:make", "--weights", "gone.pt", "--size", "16"),
            "There is no file gone.pt",
        ),
        (
            ("--module", "our_model:make", "--weights", "berlin.pt", "--sample-shape", "1,x,16"),
            "numbers separated by commas",
        ),
        (
            (
                "--module",
                "our_model:make",
                "--weights",
                "berlin.pt",
                "--sample-shape",
                "1,16,16",
                "--classes",
                "a,b",
            ),
            "2 classes",
        ),
        (
            (
                "--module",
                "our_model:make",
                "--weights",
                "berlin.pt",
                "--size",
                "16",
                "--mean",
                "128",
            ),
            "images are in [0, 1]",
        ),
        (
            (
                "--module",
                "our_model:make",
                "--weights",
                "berlin.pt",
                "--size",
                "16",
                "--label-counts",
                "1.7,2",
            ),
            "whole numbers",
        ),
        (
            (
                "--module",
                "our_model:make",
                "--weights",
                "berlin.pt",
                "--size",
                "16",
                "--examples",
                "0",
            ),
            "--examples must be at least 1",
        ),
    ],
)
def test_pack_mistakes_leave_no_file(partners, flags, reason, monkeypatch, capsys):
    monkeypatch.chdir(partners)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["pack", *flags, "-o", "wrong.attar"]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not (partners / "wrong.attar").exists()


@pytest.mark.parametrize(
    ("place", "reason"),
    [("berlin.pt", "end it in .attar"), ("another.attar", "is an upload of somebody")],
)
def test_pack_overwrites_nothing(partners, place, reason, monkeypatch, capsys):
    monkeypatch.chdir(partners)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_bundle("another.attar", tiny_upload("somebody"))
    before = (partners / place).read_bytes()
    assert (
        main(
            [
                "pack",
                "--module",
                "our_model:make",
                "--weights",
                "berlin.pt",
                "--size",
                "16",
                "-o",
                place,
            ]
        )
        == 2
    )
    assert reason in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (partners / place).read_bytes() == before
