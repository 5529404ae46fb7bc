"""What README, documents and examples promise, run as written."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import attar
from attar.bench.records import FINISHED, read_records
from attar.cli import main
from attar.cli.app import VERBS
from attar.report.facts import facts_of

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    pytest.param(
        path, marks=pytest.mark.network if path.stem == "network_round" else (), id=path.stem
    )
    for path in sorted((ROOT / "examples").glob("*.py"))
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference"


def run(code, cwd):
    return subprocess.run(
        [sys.executable, *code], cwd=cwd, capture_output=True, text=True, timeout=900
    )


def test_readme_python_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len([line for line in block.splitlines() if line.strip()]) <= 12
    done = run(["-c", block], tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_five_minutes_python_runs(tmp_path):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "five-minutes.md").read_text(), re.S
    )
    done = run(["-c", "\n".join(blocks)], tmp_path)
    assert done.returncode == 0, done.stderr
    measured = dict(re.findall(r"^(ensemble|FedDF): (0\.\d+)$", done.stdout, re.M))
    assert {"ensemble", "FedDF"} == set(measured)
    assert all(float(accuracy) > 0.5 for accuracy in measured.values())
    assert (tmp_path / "distilled" / "config.json").exists()


def test_five_minutes_commands_run(tmp_path):
    (block,) = re.findall(
        r"```bash\n(.*?)```", (ROOT / "docs" / "five-minutes.md").read_text(), re.S
    )
    script = re.sub(r"^attar ", f"{shlex.quote(sys.executable)} -m attar ", block, flags=re.M)
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "% of 1,000 images, the test part of fashion-mini" in done.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example, tmp_path):
    if example.stem == "network_round":
        pytest.importorskip("flwr", reason="the example sends files over Flower")
    done = run([str(example)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_readme_shows_the_two_commands():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert "make demo" in first
    assert "make test" in first
    assert "──►" in first


def test_documents_name_existing_verbs():
    text = "".join(
        path.read_text()
        for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    )
    named = set(re.findall(r"`attar ([a-z]+)\b", text)) | set(
        re.findall(r"^attar ([a-z]+)\b", text, re.M)
    )
    verbs = {
        "demo",
        "doctor",
        "completion",
        "partition",
        "train",
        "pack",
        "inspect",
        "keygen",
        "sign",
        "privacy",
        "fuse",
        "update",
        "eval",
        "predict",
        "export",
        "serve",
        "publish",
        "ls",
        "speed",
        "inbox",
        "network",
        "federate",
        "plan",
        "bench",
        "report",
    }
    assert named <= verbs
    assert verbs == set(VERBS)


def commands(page):
    """The attar commands in the code blocks of a page, each as a list of words."""
    for block in re.findall(r"^ *```(?:bash)?\n(.*?)^ *```", page.read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().removeprefix("$ ").startswith("attar "):
                yield shlex.split(line.strip().removeprefix("$ "), comments=True)[1:]


def help_of(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


def test_documents_name_existing_flags(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    known = {}
    shown = [(page, words) for page in PAGES for words in commands(page)]
    assert len(shown) > 50
    for page, words in shown:
        command = tuple(words[: 2 if words[0] in ("inbox", "network") else 1])
        if command[0] in ("--help", "--version"):
            continue
        if command not in known:
            known[command] = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_of(command, capsys)))
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= known[command], f"{page}: attar {' '.join(words)}"


def test_reference_has_every_command():
    text = (REFERENCE / "commands.md").read_text()
    shown = re.findall(r"^```{attar-help} (.*)$", text, re.M)
    assert len(shown) == len(set(shown))
    assert {command.split()[0] for command in shown} == set(VERBS)
    assert {command for command in shown if " " in command} == {
        "inbox invite",
        "inbox serve",
        "inbox send",
        "network init",
        "network server",
        "network client",
    }


def test_reference_has_every_public_name():
    directive = r"^\.\. (?:auto(?!module)|py:)\w+:: attar\.(\w+)$"
    shown = [
        name
        for page in sorted(REFERENCE.glob("*.md"))
        for name in re.findall(directive, page.read_text(), re.M)
    ]
    assert sorted(shown) == sorted(set(attar.__all__) - {"__version__"})


def test_reference_has_every_public_package():
    blocks = (REFERENCE / "blocks.md").read_text()
    shown = re.findall(r"^\.\. automodule:: attar\.(\S+)$", blocks, re.M)
    rooms = ["ensemble", "heads", "images", "student", "execution"]
    assert shown == ["settings", "seeds", "testing", *(f"blocks.{room}" for room in rooms)]


def test_documents_link_to_existing_files():
    assert {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} == set(attar.METHODS)
    for page in PAGES:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for link, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", prose):
            if "://" not in link:
                target = page.parent / link if link else page
                assert target.exists(), f"{page}: {link}"
                assert not heading or heading in headings(target), f"{page}: {link}#{heading}"


def headings(page):
    """What a link may name after a #: headings as a page of Markdown spells them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def benchmark(name):
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_methods_table_equals_the_results():
    script = benchmark("methods_table")
    page = (ROOT / "docs" / "methods.md").read_text()
    assert script.updated(page, ROOT / "results") == page, "run: python benchmarks/methods_table.py"
    assert {"dense", "co-boosting", "ensemble"} <= set(script.measured(ROOT / "results"))
    names = [line.split("|")[1] for line in page.splitlines() if line.startswith("| [`")]
    assert {name for cell in names for name in re.findall(r"`([^`]+)`", cell)} == set(attar.METHODS)


def test_readme_table_equals_the_results():
    script = benchmark("readme_results")
    readme = (ROOT / "README.md").read_text()
    assert script.updated(readme, ROOT / "results") == readme, (
        "run: python benchmarks/readme_results.py"
    )


def test_report_of_all_records():
    records = read_records(ROOT / "results")
    tables = facts_of(records, [], ROOT / "results")["tables"]
    assert {table["name"] for table in tables} == {
        record["recipe"] for record in records if record["ending"] == FINISHED
    }


def test_noise_picture_equals_the_record():
    script = benchmark("noise_picture")
    found = script.measured(ROOT / "results" / "backbones.json")
    assert all(len(table) == 5 for table in found.values())
    assert script.picture(found) == (ROOT / "docs" / "noise.svg").read_text(), (
        "run: python benchmarks/noise_picture.py"
    )


def test_accord_picture_equals_the_results():
    script = benchmark("accord_picture")
    found = script.measured(ROOT / "results" / "accord-table1.csv")
    assert len(found) == 10
    assert all({*script.PAPERS, *script.OURS} <= set(rows) for rows in found.values())
    clients = script.best_clients(read_records(ROOT / "results"))
    assert set(clients) == set(found)
    assert script.picture(found, clients) == (ROOT / "docs" / "accord.svg").read_text(), (
        "run: python benchmarks/accord_picture.py"
    )
