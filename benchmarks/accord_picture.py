"""Accord's students beside those of DENSE, Co-Boosting and FedHydra, split by split:
results/accord-table1.csv as a picture.

python benchmarks/accord_picture.py            rewrite docs/accord.svg
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAPERS = (
    "DENSE",
    "DENSE from the stratified teacher",
    "Co-Boosting",
    "Co-Boosting from the average",
    "FedHydra",
)
OURS = {
    "accord, models": "models",
    "accord, counts": "+ counts",
    "accord, statistics": "+ statistics",
}
WORDS = {"dirichlet:": "Dirichlet ", "classes:": "classes "}
SPLIT, LEFT, TOP, HEIGHT = (
    88,
    52,
    76,
    250,
)  # pixels: between two splits, and of the margins and the plot
HIGHEST = 90  # per cent
SHADES = {"models": "#9ecae1", "+ counts": "#4292c6", "+ statistics": "#08519c"}
STYLE = """text{font:12px system-ui,sans-serif;fill:#1f2933}.title{font-size:15px;font-weight:600}.mid{text-anchor:middle}
.end{text-anchor:end}.grid{stroke:#d9dee3}.theirs{fill:none;stroke:#8a94a0;stroke-width:1.6}.back{fill:#fff}.gain{font-weight:600}
@media (prefers-color-scheme: dark){text{fill:#d7dde3}.grid{stroke:#36414d}.back{fill:#0d1117}}"""

Split = tuple[str, str]  # data set, rule


def measured(table: Path) -> dict[Split, dict[str, float]]:
    """The mean of three seeds of every row, split by split, in the order of the table's data
    sets and rules.
    """
    found: dict[Split, dict[str, float]] = defaultdict(dict)
    with table.open(newline="") as file:
        for line in csv.DictReader(file):
            if line["device"] == "NVIDIA H200" and line["n"] == "3":
                found[(line["dataset"], line["rule"])][line["row"]] = float(line["ours"])
    return dict(sorted(found.items(), key=lambda item: item[0][0] != "FMNIST"))


def picture(found: Mapping[Split, Mapping[str, float]]) -> str:
    """A column for every split: rings are their students, dots are accord's, and above them what
    it gains.
    """

    def up(value: float) -> float:
        return round(TOP + HEIGHT * (1 - value / HIGHEST), 1)

    width, right = LEFT + SPLIT * len(found) + 16, LEFT + SPLIT * len(found)
    marks = [
        f'<text x="{LEFT}" y="24" class="title">One student from ten clients: its test accuracy, mean of three seeds</text>'
    ]
    for value in range(0, HIGHEST + 1, 20):
        marks.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{up(value)}" y2="{up(value)}" class="grid"/>'
        )
        marks.append(f'<text x="{LEFT - 8}" y="{up(value) + 4}" class="end">{value} %</text>')
    for place, ((data, rule), rows) in enumerate(found.items()):
        x = LEFT + SPLIT * place + SPLIT // 2
        for row in PAPERS:
            marks.append(
                f'<circle cx="{x - 12}" cy="{up(rows[row])}" r="4.5" class="theirs"><title>{row}: {rows[row]}</title></circle>'
            )
        for row, sent in OURS.items():
            told = f"<title>{row}: {rows[row]}</title>"
            marks.append(
                f'<circle cx="{x + 12}" cy="{up(rows[row])}" r="5" fill="{SHADES[sent]}">{told}</circle>'
            )
        highest = max(rows[row] for row in OURS)
        marks.append(
            f'<text x="{x + 12}" y="{up(highest) - 10}" class="mid gain">{_gain(rows):+.0f}</text>'
        )
        for prefix, word in WORDS.items():
            rule = rule.replace(prefix, word)
        marks.append(f'<text x="{x}" y="{TOP + HEIGHT + 20}" class="mid">{escape(rule)}</text>')
        marks.append(
            f'<text x="{x}" y="{TOP + HEIGHT + 37}" class="mid">{"Fashion" if data == "FMNIST" else data}</text>'
        )
    average = sum(map(_gain, found.values())) / len(found)
    over = f'<tspan class="gain">{average:+.0f}</tspan> points on average over the best ring'
    legend = [
        f'<circle cx="{LEFT + 6}" cy="48" r="4.5" class="theirs"/><text x="{LEFT + 18}" y="52">DENSE, Co-Boosting, FedHydra</text>',
        f'<text x="{LEFT + 590}" y="52">{over}</text>',
    ]
    for x, (sent, shade) in zip((LEFT + 236, LEFT + 362, LEFT + 456), SHADES.items(), strict=True):
        word = f"accord, {sent}" if sent == "models" else sent
        legend.append(
            f'<circle cx="{x}" cy="48" r="5" fill="{shade}"/><text x="{x + 12}" y="52">{word}</text>'
        )
    height = TOP + HEIGHT + 52
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{_words(found)}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" class="back"/>'
        + "\n".join([*marks, *legend])
        + "</svg>\n"
    )


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
        picture(measured(ROOT / "results" / "accord-table1.csv"))
    )
