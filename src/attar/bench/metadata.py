"""What a record says of a run besides its outcome: what it is, where it runs, by which code."""

import os
import platform
import subprocess
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy
import torch

from attar.bench.cells import Cell
from attar.bench.records import FORMAT, Record
from attar.version import __version__


def run_metadata(cell: Cell, device: str) -> Record:
    """Describe a run before it begins: the cell, the machine, and the plug-ins that it uses."""
    machine = describe_machine(device)
    record = describe_cell(cell) | machine
    plugins = {name: asdict(origin) for name, origin in cell.plugins.items()}
    if plugins:
        record["versions"] = {**machine["versions"], "plugins": plugins}
    return record


def describe_cell(cell: Cell) -> Record:
    """What a run is, wherever it takes place."""
    return {
        "format": FORMAT,
        "recipe": cell.recipe,
        "row": cell.row.label,
        "labels": dict(cell.labels),
        "key": cell.key,
        "name": cell.name,
        "method": cell.row.method,
        "given": dict(cell.settings),
        "federation": asdict(cell.federation),
        "groups": list(cell.group_names),
        "student": cell.student,
        "seed": cell.seed,
        "precision": cell.precision,
        "compiled": cell.compile,
    }


@cache
def describe_machine(device: str) -> Record:
    """The device, versions, commit and host of this process's runs."""
    kind = torch.device(device).type
    return {
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else kind,
        "versions": {
            "attar": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "commit": find_commit(),
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


@cache
def find_commit() -> str:
    """The commit of the source tree that attar runs from.

    Returns:
        The commit, with ``+changes`` where files were changed since; the value of
        ``$ATTAR_COMMIT`` where that is set; ``unknown`` where there is no git.
    """
    if commit := os.environ.get("ATTAR_COMMIT"):
        return commit
    here = Path(__file__).parent
    try:
        commit = _run_git("rev-parse", "HEAD")
        changes = _run_git("status", "--porcelain", "--", str(here.parent))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if changes else "")


def _run_git(*words: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def short_commit(text: str) -> str:
    """The first twelve digits of a commit, and whether files were changed since."""
    number, changed, _ = text.partition("+")
    return number[:12] + changed + ("changes" if changed else "")
