"""README's table of results: each number is one line of a CSV table in ``results/``.

python benchmarks/readme_results.py            rewrite README.md
python benchmarks/readme_results.py --check    fail where it is out of date
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results: written by benchmarks/readme_results.py -->", "<!-- /results -->"
HEAD = ["| method | data, split | seeds | measured | paper |", "|---|---|---:|---:|---:|"]


class Shown(NamedTuple):
    """One row of README, and the one line of a table that it shows."""

    method: str
    place: str  # in words
    table: str
    line: dict[str, str]  # columns of the table and their values


H200 = {"device": "NVIDIA H200"}
ROWS = (
    Shown("Co-Boosting as printed", "MNIST, Dirichlet 0.1", "coboosting-table1",
          {"alpha": "0.1", "dataset": "MNIST", "row": "Co-Boosting"}),
    Shown("Co-Boosting as printed", "CIFAR-10, Dirichlet 0.1", "coboosting-table1",
          {"alpha": "0.1", "dataset": "CIFAR-10", "row": "Co-Boosting"}),
    Shown("Co-Boosting", "CIFAR-10, Dirichlet 0.1, images cropped and mirrored", "coboosting-table1-augmented",
          {"alpha": "0.1", "dataset": "CIFAR-10", "row": "Co-Boosting (authors' code)"}),
    Shown("FedHydra", "MNIST, Dirichlet 0.1, the net of DENSE's code", "fedhydra-dense-net",
          {"net": "cnn-dense", "local": "200", "split": "0.1", "row": "FedHydra", **H200}),
    Shown("FedHydra", "CIFAR-10, Dirichlet 0.1", "fedhydra-table1",
          {"alpha": "0.1", "dataset": "CIFAR10", "row": "FedHydra"}),
    Shown("FedMHO-SD", "Fashion-MNIST, Dirichlet 0.5", "fedmho-table4-50-epochs",
          {"alpha": "0.5", "dataset": "Fashion", "row": "FedMHO-SD"}),
    Shown("FedMHO-SD", "MNIST, Dirichlet 0.1", "fedmho-table4-50-epochs",
          {"alpha": "0.1", "dataset": "MNIST", "row": "FedMHO-SD"}),
    Shown("FedMITR", "CIFAR-10, Dirichlet 0.1", "fedmitr-cifar10-at-32", {"split": "0.1", "row": "FedMITR"}),
    Shown("FedMITR", "CIFAR-10, Dirichlet 0.3", "fedmitr-cifar10-at-32", {"split": "0.3", "row": "FedMITR"}),
)  # fmt: skip


def table(results: Path) -> list[str]:
    """The rows of the table as Markdown."""
    return [*HEAD, *(_row(shown, results) for shown in ROWS)]


def _row(shown: Shown, results: Path) -> str:
    with (results / f"{shown.table}.csv").open(newline="") as file:
        (line,) = [line for line in csv.DictReader(file) if shown.line.items() <= line.items()]
    ours = f"{float(line['ours']):.1f}" + (f" ± {float(line['std']):.1f}" if line["std"] else "")
    theirs = f"{float(line['published']):.1f}" if line["published"] else ""
    return f"| {shown.method} | {shown.place} | {line['n']} | {ours} | {theirs} |"


def updated(readme: str, results: Path) -> str:
    """README with the table as the results have it."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *table(results), END]) + after


def main() -> int:
    """Rewrite README.md, or check it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    path = ROOT / "README.md"
    text = path.read_text()
    new = updated(text, ROOT / "results")
    if check and new != text:
        print("README.md is out of date: python benchmarks/readme_results.py")
        return 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
