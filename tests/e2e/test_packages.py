"""What is installed where: the demo's environment, the steps of the Containerfile, the whole path
from what is installed.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import page_folders as prepared
import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text()
# Where packages come from on this machine; a build would be given it as an argument.
INDEX = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


def make(*words, **variables):
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", *words, *(f"{name}={value}" for name, value in variables.items())],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_demo_target(tmp_path):
    """It says size and time before it installs, and installs nothing for developers."""
    lines = make("demo", DEMO=tmp_path / "fresh")
    told = next(place for place, line in enumerate(lines) if "echo" in line and "GB" in line)
    installs = next(place for place, line in enumerate(lines) if "pip install" in line)
    assert told < installs
    assert "minutes" in lines[told]
    assert not any("[dev]" in line for line in lines)
    assert lines[-1].endswith("attar demo --out demo")


def test_test_wheel_target():
    """From an empty environment, without the source tree on the path."""
    lines = make("test-wheel")
    whole = next(line for line in lines if "whole_path.py" in line)
    assert "PYTHONPATH= venv/bin/python" in whole
    assert any("attar demo --short" in line for line in lines)


def steps():
    """The instructions of the Containerfile, as (name, words)."""
    joined = CONTAINERFILE.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def test_containerfile():
    names = [name for name, _ in steps()]
    assert names[0] == "FROM"
    assert dict(steps())["FROM"] == "python:3.11-slim"
    assert names.count("USER") == 1
    last_run = len(names) - 1 - names[::-1].index("RUN")
    assert names.index("USER") > last_run
    assert dict(steps())["USER"].split(":")[0] not in ("0", "root")
    assert "https://" not in CONTAINERFILE
    assert "dev" not in re.findall(r"ARG EXTRAS=(\S+)", CONTAINERFILE)[0].split(",")


def test_containerfile_copies_what_the_build_needs():
    copied = {word for name, words in steps() if name == "COPY" for word in words.split()[:-1]}
    assert all((ROOT / path).exists() for path in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= copied
    kept = (ROOT / ".containerignore").read_text().replace("!", "").split()
    assert copied <= set(kept)


def as_script(root):
    """The steps as a shell script in which ``root`` stands for the root of the image."""

    def placed(words):
        return re.sub(r"(?<![\w.])/(opt|data)\b", rf"{root}/\1", words)

    lines = ["set -eu"]
    for name, words in steps():
        if name == "ENV" or (name == "ARG" and "=" in words):
            lines.append(f"export {placed(words)}")
        elif name == "WORKDIR":
            lines.append(f"mkdir -p {placed(words)} && cd {placed(words)}")
        elif name == "COPY":
            *sources, target = words.split()
            lines += [f"cp -r {shlex.quote(str(ROOT / source))} {target}" for source in sources]
        elif name == "RUN":
            lines.append(placed(words))
    return "\n".join(lines)


@pytest.mark.slow
def test_containerfile_steps(tmp_path):
    """In an empty environment with an empty home; then a partner trains and looks at its file."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys._base_executable)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    given = [f"{name}={value}" for name, value in INDEX.items()]
    script = as_script(tmp_path)
    built = subprocess.run(
        ["env", "-i", f"PATH={path}", *given, "bash", "-c", script],
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith("attar ")
    assert list((tmp_path / "data").iterdir()) == []
    assert not (tmp_path / "opt/attar/bin/pytest").exists()
    prepared.write_photos(tmp_path / "data" / "xrays", 12)
    entry = tmp_path / "opt" / "attar" / "bin" / "attar"
    home = f"HOME={tmp_path / 'data'}"
    train = "train --data folder:xrays?size=28 --client berlin --epochs 1 --out berlin.attar"
    for words in (train, "inspect berlin.attar", "keygen berlin.key"):
        done = subprocess.run(
            ["env", "-i", home, str(entry), *words.split()],
            cwd=tmp_path / "data", capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_whole_path(tmp_path):
    """What make test-wheel runs from the wheel, here from the source tree."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "whole_path.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all went well" in done.stdout
