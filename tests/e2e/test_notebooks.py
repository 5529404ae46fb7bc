"""The notebooks of examples/: they run as they are, and hold what a run printed."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import notebooks

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
NUMBER = re.compile(r"[-+]?\d[\d.,]*")


def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_notebooks_are_small_and_need_no_kernel():
    assert {path.stem for path in NOTEBOOKS} == {"five_hospitals", "bring_your_own_network"}
    for path in NOTEBOOKS:
        assert path.stat().st_size < 50_000
        notebook = notebooks.read(path)
        assert notebook["nbformat"] == 4
        sources = ["".join(cell["source"]) for cell in notebooks.code_cells(notebook)]
        assert not [
            line for source in sources for line in source.splitlines() if line[:1] in ("%", "!")
        ]
        outputs = [out for cell in notebooks.code_cells(notebook) for out in cell["outputs"]]
        assert outputs
        assert all(out["output_type"] == "stream" for out in outputs)


def test_links_of_notebooks_exist():
    for path in NOTEBOOKS:
        for cell in notebooks.read(path)["cells"]:
            for link in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
                if cell["cell_type"] == "markdown":
                    assert (path.parent / link).exists(), link


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    """In a process of its own; it says what the notebook holds, but for numbers."""
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    before = spent()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", notebooks.__file__, str(copy)],
        cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert spent() - before < 90  # 60 on an idle core; a busy machine counts more
    held, printed = (words_of(place) for place in (path, copy))
    assert held == printed


def words_of(path):
    """What the cells of a notebook printed, without numbers, bars and blanks."""
    texts = [
        "".join(out["text"])
        for cell in notebooks.code_cells(json.loads(path.read_text()))
        for out in cell["outputs"]
    ]
    return [
        re.findall(r"[^\W\d_]{3,}", NUMBER.sub("", text.partition("% sure")[0])) for text in texts
    ]
