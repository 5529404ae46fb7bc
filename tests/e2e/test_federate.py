"""`attar federate`, `attar plan` and `attar train --knowledge` as people type them, and a
federation that is killed for good.
"""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attar.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    words = [
        "partition",
        "fashion-mini",
        "--rule",
        "dirichlet:0.5",
        "--clients",
        "4",
        "--hold-out",
        "0.2",
        "--min-size",
        "20",
    ]
    assert main([*words, "--out", "parts.json", "--json"]) == 0
    return tmp_path


QUICK = (
    "--epochs",
    "1",
    "--batch-size",
    "64",
    "--net",
    "mlp:hidden=16",
    "--rounds",
    "3",
    "--fraction",
    "0.5",
    "--device",
    "cpu",
)


def told(capsys, *words):
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_federate_prints_a_table_and_a_record(home, capsys):
    record = told(
        capsys,
        "federate",
        "parts.json",
        "--method",
        "fedavg",
        *QUICK,
        "--target",
        "0.1",
        "--out",
        "fed",
    )
    assert [one["round"] for one in record["rounds"]] == [1, 2, 3]
    assert record["to_target"]["rounds"] >= 1
    assert re.fullmatch(r"[\d,]+ images, the test part of .+", record["evaluated_on"])
    assert record["bytes"] == record["bytes_up"] + record["bytes_down"] > 0
    assert (home / "fed" / "model.safetensors").exists()
    again = told(capsys, "eval", "fed", "--data", "fashion-mini", "--device", "cpu")
    assert again["accuracy"] == record["accuracy"]
    words = ("--set", "knowledge=mlp:hidden=8", "--set", "steps=5", "--home-every", "1")
    assert (
        main(
            [
                "federate",
                "parts.json",
                "--method",
                "fedkem",
                *QUICK,
                *words,
                "--drop",
                "0.3",
                "--out",
                "kem",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    for piece in (
        "MB in all",
        "by Eq. (6)",
        "at home",
        "unlabelled from fashion-mini, held out",
        "fedkem, 4 clients",
    ):
        assert piece in shown
    (deployed,) = list((home / "kem" / "home").glob("client-*.attar"))[:1]
    assert main(["eval", str(deployed), "--data", "fashion-mini", "--device", "cpu", "--json"]) == 0


def test_a_knowledge_network_is_sent_and_the_classifier_stays(home, capsys):
    words = (
        "--net",
        "lenet5",
        "--knowledge",
        "mlp:hidden=8",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--client",
        "0-1",
    )
    sent = told(capsys, "train", "--partition", "parts.json", *words)
    assert [list(one["parts"]) for one in sent] == [["knowledge"], ["knowledge"]]
    assert {path.name for path in (home / "deployed").iterdir()} == {
        "client-0.attar",
        "client-1.attar",
    }
    files = [one["file"] for one in sent]
    fused = told(
        capsys,
        "fuse",
        *files,
        "--method",
        "fedkem",
        "--set",
        "steps=5",
        "--public",
        "parts.json",
        "--out",
        "m",
        "--device",
        "cpu",
    )
    assert fused["student"] == "mlp:hidden=8"
    assert fused["remarks"] == [
        "Server images: 1,200 unlabelled from fashion-mini, held out before the split."
    ]


def test_plan(capsys, tmp_path):
    rows = told(capsys, "plan", str(ROOT / "examples" / "devices.toml"))
    assert len(rows) == 5
    assert main(["plan", str(ROOT / "examples" / "devices.toml")]) == 0
    assert "vgg11" in capsys.readouterr().out
    poor = tmp_path / "poor.toml"
    poor.write_text('[task]\nnets = ["lenet5"]\n[devices.clock]\nmemory = "1 MB"\nmacs = "1 k"\n')
    assert main(["plan", str(poor)]) == 2
    assert "the smallest budget that would do" in " ".join(
        capsys.readouterr().err.replace("│", " ").split()
    )


def test_killed_inside_a_client_and_resumed(home):
    """SIGKILL in the middle of a round; the resumed federation ends in the same bytes as one
    that was left alone.
    """
    words = [
        "federate",
        "parts.json",
        "--method",
        "scaffold",
        "--net",
        "mlp:hidden=16",
        "--rounds",
        "2",
        "--epochs",
        "15",
    ]
    words += ["--device", "cpu", "--checkpoint-seconds", "0", "--json", "--out"]
    command = [sys.executable, "-m", "attar", *words, "killed"]
    victim = subprocess.Popen(
        command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    inside = home / "killed" / "rounds" / "inside.safetensors"
    while not inside.exists() and victim.poll() is None:
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert inside.exists()
    assert not (home / "killed" / "record.json").exists()
    (inside.parent / ".upload-00001-0.attar.k3yq0x_z.part").write_bytes(
        b"half an upl"
    )  # it may have been killed while it wrote
    assert main([*words, "killed", "--resume"]) == 0
    assert not inside.parent.exists()
    assert main([*words, "straight"]) == 0
    one, other = (
        (home / name / "model.safetensors").read_bytes() for name in ("straight", "killed")
    )
    assert one == other
