"""What README and examples promise, run as written."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attar
from attar.bench.records import FINISHED, read_records
from attar.cli import app
from attar.report.facts import facts_of

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(code, cwd):
    return subprocess.run(
        [sys.executable, *code], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_the_lines_of_python_in_readme_run(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len([line for line in block.splitlines() if line.strip()]) <= 12
    done = run(["-c", block], tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs(example, tmp_path):
    done = run([str(example)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_first_lines_of_readme_show_the_two_commands_and_the_path():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert "make demo" in first
    assert "make test" in first
    assert "──►" in first


def test_every_verb_in_the_documents_exists():
    text = "".join(
        path.read_text()
        for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    )
    named = set(re.findall(r"`attar ([a-z]+)\b", text)) | set(
        re.findall(r"^attar ([a-z]+)\b", text, re.M)
    )
    verbs = {
        "demo",
        "partition",
        "train",
        "pack",
        "inspect",
        "keygen",
        "sign",
        "privacy",
        "fuse",
        "eval",
        "predict",
        "ls",
        "speed",
        "network",
        "federate",
        "plan",
        "bench",
        "report",
    }
    assert named <= verbs
    assert verbs == set(app._subcommands)


def test_every_method_has_a_page_and_every_link_leads_somewhere():
    assert {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} == set(attar.METHODS)
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
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


def test_the_table_of_methods_in_readme_is_what_results_say():
    script = benchmark("methods_table")
    readme = (ROOT / "README.md").read_text()
    assert script.updated(readme, ROOT / "results") == readme, (
        "run: python benchmarks/methods_table.py"
    )
    assert {"dense", "co-boosting", "ensemble"} <= set(script.measured(ROOT / "results"))
    shown = {
        word.strip(" `")
        for line in readme.splitlines()
        if line.startswith("| `")
        for word in line.split("|")[1].split(",")
    }
    assert shown == set(attar.METHODS)


def test_all_records_of_the_repository_make_one_page():
    records = read_records(ROOT / "results")
    tables = facts_of(records, [], ROOT / "results")["tables"]
    assert {table["name"] for table in tables} == {
        record["recipe"] for record in records if record["ending"] == FINISHED
    }


def test_the_picture_of_accord_is_what_results_say():
    script = benchmark("accord_picture")
    found = script.measured(ROOT / "results" / "accord-table1.csv")
    assert len(found) == 10
    assert all({*script.PAPERS, *script.OURS} <= set(rows) for rows in found.values())
    assert script.picture(found) == (ROOT / "docs" / "accord.svg").read_text(), (
        "run: python benchmarks/accord_picture.py"
    )
