"""Runs a notebook cell by cell in this process, without Jupyter:

    python tests/notebooks.py examples/five_hospitals.ipynb

keeps what each cell prints in the notebook. The notebooks of the repository use no magic commands
and print text alone, so a kernel, a browser and the forty packages that they need would test
nothing more.
"""

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """Return the notebook of a file."""
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """Return the cells that are run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: Notebook) -> list[str]:
    """Run all cells in their order, as one program.

    Returns:
        What each cell printed.
    """
    scope: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, cell in enumerate(code_cells(notebook), 1):
        told = io.StringIO()
        program = compile("".join(cell["source"]), f"cell {number}", "exec")
        with redirect_stdout(told):
            exec(program, scope)
        printed.append(told.getvalue())
    return printed


def keep(path: Path, notebook: Notebook, printed: list[str]) -> None:
    """Write the notebook with what its cells printed."""
    for number, (cell, text) in enumerate(zip(code_cells(notebook), printed, strict=True), 1):
        cell["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"] = [stream] if text else []
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        notebook = read(path)
        keep(path, notebook, run(notebook))
