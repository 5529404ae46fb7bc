"""``attar train --backbone`` on files alone: what it writes, keeps, refuses, and that it goes on
after SIGKILL.
"""

import os
import signal
import time

import numpy as np
import pytest
import torch
from commands import READY, run, run_json
from PIL import Image
from safetensors.torch import load_file

from attar.cli import main
from attar.core import ModelSpec, Part, Preprocess
from attar.models import save_model
from attar.training import feature_pass
from attar.uploads import read_bundle

SHAPE = (1, 28, 28)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A backbone, and a folder of photographs of two classes."""
    home = tmp_path_factory.mktemp("backbone")
    spec = ModelSpec.parse("lenet5")
    state = spec.build(SHAPE, 10, 0).state_dict()
    part = Part(spec, state, tuple("abcdefghij"), Preprocess.plain(SHAPE))
    save_model(home / "lenet", part, card=None)
    rng = np.random.default_rng(0)
    for number in range(60):
        folder = home / "photos" / ("ring" if number % 2 else "cross")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (30, 40, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg")
    return home


def test_one_client(home):
    words = ("train", "--backbone", "lenet", "--data", "folder:photos", "--features", 16)
    words = (*words, "--client", "berlin", "--out", "sent/berlin.attar")
    (told,) = run_json(*words, cwd=home)
    assert told["summed"]
    assert told["num_examples"] == 48
    assert told["parts"]["sums"]["sums"]["backbone"] == "lenet"
    assert set(told["parts"]) == {"sums"}
    assert [path.name for path in (home / "sent").iterdir() if path.suffix == ".sums"] == []
    before = (home / "sent/berlin.attar").read_bytes()
    assert "Existing uploads are kept (berlin)" in run(*words, cwd=home).stdout
    assert (home / "sent/berlin.attar").read_bytes() == before
    refused = run(*words, "--per-class", cwd=home, status=2).stderr
    assert "of another backbone or other settings" in refused
    inspected = run("inspect", "sent/berlin.attar", cwd=home).stdout
    assert "sums of 16 features of lenet" in " ".join(inspected.split())


def test_clients_of_a_partition_with_noise(home):
    run("partition", "fashion-mini", "--clients", 2, "--out", "parts.json", cwd=home)
    words = ("train", "--backbone", "lenet", "--partition", "parts.json", "--features", 8)
    told = run_json(*words, "--epsilon", 1, "--clip", 2, "--out", "noisy", cwd=home)
    assert [one["client"] for one in told] == ["client-0", "client-1"]
    for one in told:
        described = one["parts"]["sums"]["sums"]
        assert (described["epsilon"], described["clip"]) == (1.0, 2.0)
        assert one["num_examples"] == sum(one["label_counts"])
    exact = run_json(*words, "--out", "exact", cwd=home)
    assert sum(one["num_examples"] for one in exact) == 6000


def test_refused(home):
    data = ("--data", "folder:photos")
    said = run("train", *data, "--features", 8, cwd=home, status=2).stderr
    assert "--features: needs --backbone" in said
    beside = ("--backbone", "lenet", "--epochs", 3, "--net", "lenet5", "--withhold-counts")
    said = " ".join(run("train", *data, *beside, cwd=home, status=2).stderr.split())
    assert "--epochs, --net, --withhold-counts: has no meaning beside --backbone" in said
    said = run("train", *data, "--backbone", "lenet", "--epsilon", 1, cwd=home, status=2).stderr
    assert "epsilon without clip" in " ".join(said.split())
    said = run("train", "--backbone", "lenet", cwd=home, status=2).stderr
    assert "No training images are named" in said


def save_at_once(words, cwd):
    """The command line in a process of its own, which saves its sums as often as it can."""
    feature_pass.SAVE_SECONDS = 0.0
    os.chdir(cwd)
    main(words)


def test_sigkill(home, tmp_path):
    """Killed while it sums, the same command goes on and ends with the bits of one that was not."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (60_000, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    arrays = {"x_train": images, "y_train": labels, "x_test": images[:2], "y_test": labels[:2]}
    np.savez(tmp_path / "many.npz", **arrays)
    words = ["train", "--backbone", str(home / "lenet"), "--data", "npz:many.npz"]
    words += ["--client", "a", "--out"]
    process = READY.Process(target=save_at_once, args=([*words, "killed.attar"], str(tmp_path)))
    process.start()
    partial = tmp_path / ".killed.sums"
    deadline = time.monotonic() + 120
    while not partial.exists() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert 0 < load_file(partial)["counts"].sum() < len(images)
    assert not (tmp_path / "killed.attar").exists()
    run(*words, "killed.attar", cwd=tmp_path)
    run(*words, "whole.attar", cwd=tmp_path)
    assert not partial.exists()
    killed, whole = (read_bundle(tmp_path / f"{name}.attar") for name in ("killed", "whole"))
    for name, tensor in whole.parts["sums"].state.items():
        assert torch.equal(tensor, killed.parts["sums"].state[name])
