"""Accuracy against epsilon of heads from sums with noise: results/backbones.json as a picture.

python benchmarks/noise_picture.py            rewrite docs/noise.svg
"""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENTRY = "cifar10-lite0"  # of the record
TABLES = {"noise, all features": "all 1,280 features", "noise, 256 features": "256 features"}
COLOURS = {"noise, all features": "#08519c", "noise, 256 features": "#4292c6"}
LDA, RIDGE = "gaussian-head (LDA)", "analytic (ridge)"
STEP, LEFT, TOP, HEIGHT = 120, 56, 84, 240  # pixels: between two epsilons, margins, the plot
LOWEST, HIGHEST = 74, 90  # per cent
STYLE = """text{font:12px system-ui,sans-serif;fill:#1f2933}.title{font-size:15px;font-weight:600}.mid{text-anchor:middle}
.end{text-anchor:end}.grid{stroke:#d9dee3}.line{fill:none;stroke-width:2}.ring{fill:none;stroke-width:1.6}.back{fill:#fff}
@media (prefers-color-scheme: dark){text{fill:#d7dde3}.grid{stroke:#36414d}.back{fill:#0d1117}}"""

Table = dict[str, dict[str, float]]  # epsilon: head: mean accuracy


def measured(record: Path) -> dict[str, Table]:
    """The mean over the draws of the noise, table by table."""
    entry = json.loads(record.read_text())[ENTRY]
    return {
        name: {
            epsilon: {head: sum(draws) / len(draws) for head, draws in heads.items()}
            for epsilon, heads in entry[name].items()
        }
        for name in TABLES
    }


def picture(found: Mapping[str, Table]) -> str:
    """A line of LDA for each number of features; rings are ridge."""

    def up(value: float) -> float:
        return round(TOP + HEIGHT * (1 - (value - LOWEST) / (HIGHEST - LOWEST)), 1)

    epsilons = list(next(iter(found.values())))
    right = LEFT + STEP * len(epsilons)
    width, height = right + 16, TOP + HEIGHT + 56
    marks = [
        f'<text x="{LEFT}" y="24" class="title">Test accuracy against epsilon, CIFAR-10, ten clients</text>'
    ]
    for value in range(LOWEST, HIGHEST + 1, 4):
        marks.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{up(value)}" y2="{up(value)}" class="grid"/>'
        )
        marks.append(f'<text x="{LEFT - 8}" y="{up(value) + 4}" class="end">{value} %</text>')
    places = {epsilon: LEFT + STEP * n + STEP // 2 for n, epsilon in enumerate(epsilons)}
    for epsilon, x in places.items():
        word = "no noise" if epsilon == "none" else epsilon
        marks.append(f'<text x="{x}" y="{TOP + HEIGHT + 20}" class="mid">{word}</text>')
    marks.append(
        f'<text x="{(LEFT + right) // 2}" y="{TOP + HEIGHT + 42}" class="mid">epsilon, for one image (delta 0.00001)</text>'
    )
    for name, table in found.items():
        colour = COLOURS[name]
        noisy = [epsilon for epsilon in epsilons if epsilon != "none"]
        points = " ".join(f"{places[e]},{up(table[e][LDA])}" for e in noisy)
        marks.append(f'<polyline points="{points}" class="line" stroke="{colour}"/>')
        for epsilon, x in places.items():
            lda, ridge = table[epsilon][LDA], table[epsilon][RIDGE]
            told = f"{TABLES[name]}, epsilon {epsilon}"
            marks.append(
                f'<circle cx="{x}" cy="{up(lda)}" r="4.5" fill="{colour}"><title>LDA, {told}: {lda:.1f}</title></circle>'
            )
            marks.append(
                f'<circle cx="{x}" cy="{up(ridge)}" r="7" class="ring" stroke="{colour}"><title>ridge, {told}: {ridge:.1f}</title></circle>'
            )
    legend = []
    for n, name in enumerate(found):
        x, colour = LEFT + 6 + 170 * n, COLOURS[name]
        legend.append(
            f'<circle cx="{x}" cy="52" r="4.5" fill="{colour}"/><text x="{x + 12}" y="56">LDA, {TABLES[name]}</text>'
        )
    x = LEFT + 6 + 170 * len(found)
    legend.append(
        f'<circle cx="{x}" cy="52" r="7" class="ring" stroke="#8a94a0"/><text x="{x + 14}" y="56">rings: ridge, the same colours</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{_words(found)}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" class="back"/>'
        + "\n".join([*marks, *legend])
        + "</svg>\n"
    )


def _words(found: Mapping[str, Table]) -> str:
    each = (
        f"{TABLES[name]}, epsilon {epsilon}: LDA {heads[LDA]:.1f}, ridge {heads[RIDGE]:.1f}"
        for name, table in found.items()
        for epsilon, heads in table.items()
    )
    return escape("; ".join(each))


if __name__ == "__main__":
    (ROOT / "docs" / "noise.svg").write_text(picture(measured(ROOT / "results" / "backbones.json")))
