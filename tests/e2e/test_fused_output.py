"""What `attar fuse` and `attar eval` say to two partners with a few images each; whether
documented commands can be pasted.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import run, run_json
from PIL import Image

ROOT = Path(__file__).parents[2]
BOXES = {"small": (12, 12, 20, 20), "tall": (10, 4, 22, 28), "wide": (4, 10, 28, 22)}
SMALL = ("--set", "samples=60", "--set", "epochs=1", "--student", "lenet5")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two classifiers, two decoders, and ten images of each class in a folder without train/ and
    test/.
    """
    home = tmp_path_factory.mktemp("partners")
    draws = np.random.default_rng(0)
    for folder, number in (("theirs", 30), ("own", 10)):
        for name, (left, top, right, bottom) in BOXES.items():
            (home / folder / name).mkdir(parents=True)
            for place in range(number):
                pixels = draws.integers(0, 90, (32, 32), dtype=np.uint8)
                pixels[top:bottom, left:right] = 220
                Image.fromarray(pixels).save(home / folder / name / f"{place}.png")
    strong = ("--net", "lenet5", "--epochs", 8, "--optimiser", "adam", "--lr", 0.001)
    for client, how in (
        ("berlin", strong),
        ("paris", strong),
        ("oslo", ("--kind", "cvae")),
        ("rome", ("--kind", "cvae")),
    ):
        given = ("--epochs", 2) if "--kind" in how else ()
        run("train", "--data", "folder:theirs", "--client", client, *how, *given, "--batch-size", 8,
            "--out", f"{client}.attar", cwd=home)  # fmt: skip
    return home


def test_fuse_output_is_short(home, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    files = sorted(home.glob("*.attar"))
    shown = run(
        "fuse",
        *files,
        "--method",
        "fedmho",
        *SMALL,
        "--data",
        "folder:own",
        "--out",
        tmp_path / "fused",
        cwd=home,
    ).stdout
    assert (
        "Robustness: cannot tell; it takes 3 classifiers that share 3 classes, or 4 that share 2."
        in " ".join(shown.split())
    )
    assert "agreement" not in shown
    assert re.search(r"accuracy +[\d.]+ % of 6 images, the test part of folder:own", shown)
    assert re.search(r"pictures +synthetic-after-filter\.png \(look at it first\)", shown)
    card = (tmp_path / "fused" / "README.md").read_text()
    assert "% of 6 images, the test part of folder:own." in card
    assert "`synthetic-after-filter.png`" in card
    assert "--split all takes all 30 images." in " ".join(shown.split())
    record = run_json("fuse", *files, "--method", "accord", "--set", "epochs=1", "--set",
                      "sketches=40", "--set", "drawn=20", "--data", "folder:own", "--split", "all",
                      "--out", tmp_path / "whole", cwd=home)  # fmt: skip
    assert record["evaluated_on"] == "30 images, all of folder:own"
    decoders = [home / "oslo.attar", home / "rome.attar"]
    shown = run(
        "fuse", *decoders, "--method", "fedcvae", *SMALL, "--out", tmp_path / "decoders", cwd=home
    ).stdout
    assert "Robustness: cannot tell; nobody sent a classifier." in shown


def test_eval_names_split_and_image_count(home, tmp_path):
    hint = "--split all takes all 30 images."
    shown = run("eval", home / "berlin.attar", "--data", "folder:own", cwd=home).stdout
    assert "% of 6 images, the test part of folder:own" in shown
    assert hint in " ".join(shown.split())
    shown = run(
        "eval", home / "berlin.attar", "--data", "folder:own", "--split", "all", cwd=home
    ).stdout
    assert "% of 30 images, all of folder:own" in shown
    assert hint not in " ".join(shown.split())
    assert (
        run_json("eval", home / "berlin.attar", "--data", "folder:own", cwd=home)["num_images"] == 6
    )
    for part in ("train", "test"):
        (tmp_path / "parts" / part).parent.mkdir(exist_ok=True)
        (tmp_path / "parts" / part).symlink_to(home / "own")
    shown = run("eval", home / "berlin.attar", "--data", "folder:parts", cwd=tmp_path).stdout
    assert "% of 30 images, the test part of folder:parts" in shown
    assert "--split all" not in shown, "its owner has cut it"


def test_documented_commands_quote_patterns():
    """A question mark outside quotes is a pattern there, and a pattern that matches no file
    stops the line.
    """
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.splitlines():
                command = line.partition(" #")[0]
                if command.startswith("attar "):
                    assert not re.search(r"[?\[]", re.sub(r"'[^']*'|\"[^\"]*\"", "", command)), (
                        f"{page}: {line}"
                    )


def test_documented_train_flag_quotes_data():
    (command,) = re.findall(r'--train "(.*)"', (ROOT / "docs" / "consortium.md").read_text())
    assert "--data 'folder:scans?size=64'" in command
