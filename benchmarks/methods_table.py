"""The table of methods in docs/methods.md: its last two columns are what ``results/`` has.

    python benchmarks/methods_table.py            rewrite docs/methods.md
    python benchmarks/methods_table.py --check    fail where it is out of date

The first three columns are words and are kept. The measured column is one federation, the same
for all methods: Fashion-MNIST at 32 x 32, 10 clients with lenet5, ``dirichlet-client:0.1``
(Co-Boosting, Table 1), the last epoch. It is seed 0 of all, from the records: the split of a
seed moves a number by up to 15 points, and not all were run with the same seeds. Methods that
were measured on other federations alone have no number here: it could not be compared.
"""

import argparse
import csv
import re
import sys
from pathlib import Path

from attar.bench import FINISHED, read_records

ROOT = Path(__file__).parents[1]
BEGIN, END = (
    "<!-- methods: the last two columns are written by benchmarks/methods_table.py -->",
    "<!-- /methods -->",
)
HEAD = "| name | what it does | needs | measured | paper |"
PUBLISHED_ELSEWHERE = {"ensemble": "71.3"}  # Co-Boosting's Table 9: its Table 1 has no ensembles


def measured(results: Path) -> dict[str, tuple[str, str]]:
    """method -> ours, the paper's; both as texts."""
    seed0 = _first_seed(results)
    benched: dict[str, tuple[str, str]] = {}
    for line in _lines(results / "coboosting-table1.csv"):
        if (
            line["dataset"] == "FMNIST"
            and line["alpha"] == "0.1"
            and line["row"] in seed0
            and not line["sees"]
        ):
            theirs = _one(line["published"]) or PUBLISHED_ELSEWHERE.get(line["method"], "")
            # a method's first row is the paper's; others vary it
            benched.setdefault(line["method"], (seed0[line["row"]], theirs))
    return benched


def _first_seed(results: Path) -> dict[str, str]:
    """Row -> accuracy of the table's federation with seed 0."""
    return {
        record["row"]: f"{100 * record['accuracy']:.1f}"
        for record in read_records(results)
        if record["recipe"] == "coboosting/table1" and record["labels"] == {"alpha": "0.1", "dataset": "FMNIST"}
        and record["seed"] == 0 and record["ending"] == FINISHED
    }  # fmt: skip


def _one(text: str) -> str:
    return f"{float(text):.1f}" if text else ""


def _lines(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def updated(page: str, results: Path) -> str:
    """The page with the columns filled in; rows keep their words, new rows need only the first
    three columns.
    """
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    numbers = measured(results)
    rows = [line for line in table.strip().splitlines() if line.startswith("| [`")]
    lines = [HEAD, "|---|---|---|---:|---:|"]
    for row in rows:
        name, what, needs = (cell.strip() for cell in row.strip("|").split("|")[:3])
        found = [numbers[method] for method in re.findall(r"`([^`]+)`", name) if method in numbers]
        ours, theirs = (
            (", ".join(column) for column in zip(*found, strict=True)) if found else ("", "")
        )
        lines.append(f"| {name} | {what} | {needs} | {ours} | {theirs} |")
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    path = ROOT / "docs" / "methods.md"
    text = path.read_text()
    new = updated(text, ROOT / "results")
    if check and new != text:
        print("docs/methods.md is out of date: python benchmarks/methods_table.py")
        return 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
