"""Accord's students beside those of DENSE, Co-Boosting and FedHydra, split by split, with the best
single client and the ten nets together: results/accord-table1.csv and its records as a picture.

python benchmarks/accord_picture.py            rewrite docs/accord.svg
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from statistics import fmean

from attar.bench import FINISHED, Record, read_records

ROOT = Path(__file__).parents[1]
RECIPE = "accord/table1"
DEVICE = "NVIDIA H200"
PAPERS = {  # row -> the paper's method, which has a shape of its own
    "DENSE": "DENSE",
    "DENSE from the stratified teacher": "DENSE",
    "Co-Boosting": "Co-Boosting",
    "Co-Boosting from the average": "Co-Boosting",
    "FedHydra": "FedHydra",
}
SHAPES = {  # around (0, 0)
    "DENSE": '<rect x="-4" y="-4" width="8" height="8" class="theirs"/>',
    "Co-Boosting": '<path d="M0-5L5 4L-5 4Z" class="theirs"/>',
    "FedHydra": '<path d="M0-5.5L5.5 0L0 5.5L-5.5 0Z" class="theirs"/>',
}
OURS = {
    "accord, models": "models",
    "accord, counts": "+ counts",
    "accord, statistics": "+ statistics",
}
TOGETHER = "class shares of counts"  # all ten nets, which are kept: no student
WORDS = {"dirichlet:": "Dirichlet ", "classes:": "classes "}
# pixels: between two splits, and of the margins and the plot
SPLIT, LEFT, TOP, HEIGHT = 88, 52, 100, 290
HIGHEST = 90  # per cent
SHADES = {"models": "#9ecae1", "+ counts": "#4292c6", "+ statistics": "#08519c"}
STYLE = """text{font:12px system-ui,sans-serif;fill:#1f2933}.title{font-size:15px;font-weight:600}.mid{text-anchor:middle}
.end{text-anchor:end}.grid{stroke:#d9dee3}.theirs{fill:none;stroke:#6b7683;stroke-width:1.6}.back{fill:#fff}.gain{font-weight:600}
.client{stroke:#b4530a;stroke-width:2;stroke-dasharray:5 3}.together{stroke:#1f2933;stroke-width:2}.ours{stroke:#fff;stroke-width:.8}
@media (prefers-color-scheme: dark){text{fill:#d7dde3}.grid{stroke:#36414d}.back{fill:#0d1117}.theirs{stroke:#a7b1bc}
.client{stroke:#f0a35e}.together{stroke:#e8e6e1}.ours{stroke:#0d1117}}"""

Split = tuple[str, str]  # data set, rule


def measured(table: Path) -> dict[Split, dict[str, float]]:
    """The mean of three seeds of every row, split by split, in the order of the table's data
    sets and rules.
    """
    found: dict[Split, dict[str, float]] = defaultdict(dict)
    with table.open(newline="") as file:
        for line in csv.DictReader(file):
            if line["device"] == DEVICE and line["n"] == "3":
                found[(line["dataset"], line["rule"])][line["row"]] = float(line["ours"])
    return dict(sorted(found.items(), key=lambda item: item[0][0] != "FMNIST"))


def best_clients(records: Iterable[Record]) -> dict[Split, float]:
    """The best single client's accuracy in percent, the mean over the sets of clients."""
    found: dict[Split, dict[frozenset[str], float]] = defaultdict(dict)
    for record in records:
        alone = [client["accuracy"] for client in record["clients"]]
        ours = record["recipe"] == RECIPE and record["device"] == DEVICE
        if not ours or record["ending"] != FINISHED or None in alone:
            continue
        split = (record["labels"]["dataset"], record["labels"]["rule"])
        files = frozenset(client["sha256"] for client in record["clients"])
        found[split][files] = 100 * max(alone)
    return {split: fmean(best.values()) for split, best in found.items()}


def picture(found: Mapping[Split, Mapping[str, float]], clients: Mapping[Split, float]) -> str:
    """A column for every split: hollow shapes are their students, dots are accord's, and beside
    them what it gains; lines are the best single client and the ten nets together.
    """
    width, right = LEFT + SPLIT * len(found) + 16, LEFT + SPLIT * len(found)
    marks = [
        f'<text x="{LEFT}" y="24" class="title">One student from ten clients: its test accuracy, mean of three seeds</text>'
    ]
    for value in range(0, HIGHEST + 1, 20):
        marks.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{_up(value)}" y2="{_up(value)}" class="grid"/>'
        )
        marks.append(f'<text x="{LEFT - 8}" y="{_up(value) + 4}" class="end">{value} %</text>')
    for place, (split, rows) in enumerate(found.items()):
        marks += _column(LEFT + SPLIT * place + SPLIT // 2, split, rows, clients[split])
    average = sum(map(_gain, found.values())) / len(found)
    over = f'<tspan class="gain">{average:+.0f}</tspan> points over the best hollow one, on average'
    legend = [f'<text x="{LEFT + 582}" y="52">{over}</text>']
    for x, (name, shape) in zip((0, 82, 188), SHAPES.items(), strict=True):
        legend.append(f'<g transform="translate({LEFT + 6 + x} 48)">{shape}</g>')
        legend.append(f'<text x="{LEFT + 18 + x}" y="52">{name}</text>')
    for x, (sent, shade) in zip((290, 402, 478), SHADES.items(), strict=True):
        word = f"accord, {sent}" if sent == "models" else sent
        legend.append(
            f'<circle cx="{LEFT + x}" cy="48" r="5" fill="{shade}"/><text x="{LEFT + x + 11}" y="52">{word}</text>'
        )
    for x, (kind, word) in zip(
        (0, 350),
        {
            "client": "best single client (chosen on the test images)",
            "together": "the ten nets together, weighted by class shares",
        }.items(),
        strict=True,
    ):
        legend.append(
            f'<line x1="{LEFT + x}" x2="{LEFT + x + 22}" y1="70" y2="70" class="{kind}"/><text x="{LEFT + x + 30}" y="74">{word}</text>'
        )
    height = TOP + HEIGHT + 52
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{_words(found)}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" class="back"/>'
        + "\n".join([*marks, *legend])
        + "</svg>\n"
    )


def _up(value: float) -> float:
    return round(TOP + HEIGHT * (1 - value / HIGHEST), 1)


def _column(x: int, split: Split, rows: Mapping[str, float], client: float) -> list[str]:
    """The marks of a split around ``x``."""
    data, rule = split
    marks = []
    for kind, name, value in (
        ("client", "best single client", client),
        ("together", "ten nets together", rows[TOGETHER]),
    ):
        y = _up(value)
        marks.append(
            f'<line x1="{x - 27}" x2="{x + 27}" y1="{y}" y2="{y}" class="{kind}"><title>{name}: {value:.1f}</title></line>'
        )
    for row, method in PAPERS.items():
        marks.append(
            f'<g transform="translate({x - 9} {_up(rows[row])})">{SHAPES[method]}<title>{row}: {rows[row]}</title></g>'
        )
    for row, sent in OURS.items():
        told = f"<title>{row}: {rows[row]}</title>"
        marks.append(
            f'<circle cx="{x + 9}" cy="{_up(rows[row])}" r="5" fill="{SHADES[sent]}" class="ours">{told}</circle>'
        )
    beside = _up(rows["accord, statistics"]) + 4
    marks.append(f'<text x="{x + 17}" y="{beside}" class="gain">{_gain(rows):+.0f}</text>')
    for prefix, word in WORDS.items():
        rule = rule.replace(prefix, word)
    return [
        *marks,
        f'<text x="{x}" y="{TOP + HEIGHT + 20}" class="mid">{escape(rule)}</text>',
        f'<text x="{x}" y="{TOP + HEIGHT + 37}" class="mid">{"Fashion" if data == "FMNIST" else data}</text>',
    ]


def _gain(rows: Mapping[str, float]) -> float:
    return rows["accord, statistics"] - max(rows[row] for row in PAPERS)


def _words(found: Mapping[Split, Mapping[str, float]]) -> str:
    each = (
        f"{data} {rule}: accord {rows['accord, statistics']:.1f}, best of theirs {max(rows[row] for row in PAPERS):.1f}"
        for (data, rule), rows in found.items()
    )
    return escape("; ".join(each))


if __name__ == "__main__":
    (ROOT / "docs" / "accord.svg").write_text(
        picture(
            measured(ROOT / "results" / "accord-table1.csv"),
            best_clients(read_records(ROOT / "results")),
        )
    )
