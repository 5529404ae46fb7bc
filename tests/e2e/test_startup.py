"""What needs no torch does not load it: help, version, mistakes in verbs; and completion."""

import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import run, run_json

from attar.cli.app import VERBS
from attar.cli.doctor import EXTRAS
from attar.version import __version__

LIGHT = [
    ("--version", 0, __version__),
    ("--help", 0, "attar VERB --help"),
    ("ls --help", 0, "explain"),
    ("doctor --help", 0, "--no-speed"),
    ("completion --help", 0, "bash"),
    ("trian", 2, "did you mean 'train'?"),
    ("--verison", 2, "did you mean --version?"),
    ("ls nts", 2, "did you mean nets?"),
]


@pytest.mark.parametrize(("typed", "status", "told"), LIGHT, ids=[typed for typed, *_ in LIGHT])
def test_start_without_torch(typed, status, told, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "attar", *typed.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert done.returncode == status
    shown = done.stdout + "\n".join(
        line for line in done.stderr.splitlines() if not line.startswith("import time:")
    )
    assert told in " ".join(shown.replace("│", " ").split())
    assert "import time:" in done.stderr
    assert "torch" not in done.stderr
    assert seconds < 1.0  # of a processor; 0.15 where nothing else runs, 1.7 with torch


def test_help_lists_every_verb(tmp_path):
    shown = " ".join(run("--help", cwd=tmp_path).stdout.split())
    for name, verb in VERBS.items():
        assert f"{name} {verb.summary}" in shown


@pytest.mark.parametrize("name", VERBS)
def test_summary_is_first_sentence(name):
    docstring = " ".join((VERBS[name].load().__doc__ or "").split())
    assert docstring.startswith(VERBS[name].summary)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_and_flags(shell, tmp_path):
    script = run("completion", shell, cwd=tmp_path).stdout
    assert all(name in script for name in VERBS)
    assert "teacher-memory" in script
    if shell == "bash":
        (tmp_path / "attar.bash").write_text(script)
        asked = "source attar.bash; complete -p attar"
        done = subprocess.run(
            ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "attar" in done.stdout


def test_doctor(tmp_path, monkeypatch):
    record = run_json("doctor", cwd=tmp_path)
    assert record["versions"]["attar"] == __version__
    assert record["versions"]["torch"]
    assert record["devices"][0]["name"] == "cpu"
    assert record["free_disk"] > 0
    assert record["speed"][0]["images_per_second"] > 0
    monkeypatch.setattr("attar.cli.doctor._version", lambda package: None)
    monkeypatch.setenv("COLUMNS", "120")
    shown = run("doctor", "--no-speed", cwd=tmp_path).stdout
    for extra in record["extras"]:
        assert extra["install"] in shown
    assert "a second" not in shown


def test_doctor_knows_every_extra():
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    packages = {
        extra: {re.match(r"[\w-]+", line)[0] for line in lines} for extra, lines in extras.items()
    }
    del packages["dev"], packages["docs"]
    assert {extra: set(names) for extra, (names, _) in EXTRAS.items()} == packages
