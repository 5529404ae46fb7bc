"""One self-contained page of all records; it works offline, without any request."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from attar.bench import Recipe, read_records
from attar.internal.files import write_atomic
from attar.report.facts import facts_of

HERE = Path(__file__).parent
LIBRARIES = ("d3.min.js", "plot.umd.min.js")
FEW_COMMITS = 3  # are named at the top of the page; of more only the number is shown
CHARTS = (
    (
        "curves",
        "Accuracy against epochs",
        "Each line is one run, each colour a method; dashed lines are methods without epochs.",
    ),
    (
        "heterogeneity",
        "Accuracy against heterogeneity",
        "Ours with a bar of one standard deviation; hollow diamonds are the published numbers.",
    ),
    (
        "partition",
        "Who holds what",
        "The size of a circle is the number of images of a class at a client.",
    ),
    (
        "weights",
        "Weights of the clients",
        "What each client counts in the ensemble of a run, and how good it is alone.",
    ),
    (
        "table",
        "Clients and classes",
        "A table that a method made on its way: FedHydra's stratification U, images made, class "
        "shares.",
    ),
    (
        "confusion",
        "Confusion",
        "Rows are the true classes, columns the answers of the fused model, in percent of the row.",
    ),
    (
        "gallery",
        "Synthetic images through the epochs",
        "Each row is a moment of the run, from top to bottom.",
    ),
    (
        "bytes",
        "Bytes against accuracy",
        "What all clients send, up and down, and what comes of it; lines go from round to round, "
        "dashed is what all methods reach.",
    ),
    (
        "time",
        "Time per phase",
        "Seconds of the server, mean over the runs of a method at this place.",
    ),
)


def write_report(folder: Path, out: Path, recipes: Sequence[Recipe]) -> Path:
    """Write the page.

    Args:
        folder: All records below it are shown.
        out: The file.
        recipes: Their tables are shown with the published numbers.

    Returns:
        The file.
    """
    write_atomic(
        out, page_of(facts_of(read_records(folder), recipes, folder), "attar: what was measured")
    )
    return out


def page_of(facts: dict[str, Any], title: str) -> str:
    """The page as HTML.

    Args:
        facts: What ``facts_of`` makes.
        title: Of the page.

    Returns:
        The text. The headline table is plain HTML, charts are drawn by the script in it.
    """
    # Also "<!--<script>" would end the page: after it, "</script>" no longer closes the element.
    data = json.dumps(facts, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    libraries = "\n".join(
        f"<script>{(HERE / 'vendor' / name).read_text()}</script>" for name in LIBRARIES
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src '
            "data:; "
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">",
            f"<title>{escape(title)}</title>",
            f"<style>{(HERE / 'page.css').read_text()}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#headline">Skip to the table</a>',
            f"<header><h1>{escape(title)}</h1>{_summary(facts['summary'])}{_contents()}</header>",
            "<main>",
            '<section id="headline"><h2>Beside the papers</h2>',
            "<p>Accuracy of the <strong>last epoch</strong> on the test images, in percent: mean "
            "± standard deviation over seeds "
            "(number of seeds). Differences to the published number are in points.</p>",
            *[_table(table) for table in facts["tables"]],
            "" if facts["tables"] else "<p>No recipe belongs to these records.</p>",
            "</section>",
            *[_section(*chart) for chart in CHARTS],
            "</main>",
            "<footer><p>Made by attar. Drawn with Observable Plot and D3 (ISC licence), which "
            "are part of this file.</p></footer>",
            f'<script type="application/json" id="facts">{data}</script>',
            libraries,
            f"<script>{(HERE / 'page.js').read_text()}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _contents() -> str:
    links = [
        f'<a href="#{name}">{escape(title)}</a>'
        for name, title, _ in (("headline", "Beside the papers", ""), *CHARTS)
    ]
    return f'<nav aria-label="Contents">{"".join(links)}</nav>'


def _section(name: str, title: str, about: str) -> str:
    return (
        f'<section id="{name}"><h2>{escape(title)}</h2><p>{escape(about)}</p><div '
        'class="controls"></div>'
        f'<figure aria-label="{escape(title)}"></figure>'
        "<details><summary>The same as numbers</summary>"
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(title)}, as numbers"></div></details></section>'
    )


def _summary(summary: dict[str, Any]) -> str:
    failed = f", {summary['failed']} failed" if summary["failed"] else ""
    words = [
        f"{summary['runs']} runs{failed}",
        *summary["devices"],
        *summary["precisions"],
        *summary["versions"],
    ]
    commits = summary["commits"]
    hidden = ""
    if len(commits) <= FEW_COMMITS:
        words += [f"commit {commit}" for commit in commits]
    else:
        words.append(f"{len(commits)} commits")  # which is not printed on paper
        listed = escape(" · ".join(commits))
        hidden = f"<details><summary>Which commits</summary><p>{listed}</p></details>"
    return f'<p class="summary">{" · ".join(escape(word) for word in words)}</p>{hidden}'


def _table(table: dict[str, Any]) -> str:
    """A row for each method, a column for each place of the grid; per seed where the paper
    prints it so.

    Where some were run, the other places and rows are shown after a click.
    """
    title = escape(table["title"])
    run = [line for line in table["lines"] if _was_run(line)]
    rows = {line["row"] for line in run}
    lines = [line for line in table["lines"] if line["row"] in rows or not rows]
    idle = [line for line in table["lines"] if rows and line["row"] not in rows]
    places = list(dict.fromkeys(_place(line) for line in table["lines"]))
    reached = {_place(line) for line in run}
    shown = [place for place in places if place in reached] or places
    rest = [place for place in places if place not in shown]
    more = _details(f"{len(rest)} more, not run", _grid(lines, rest, title)) if rest else ""
    if idle:
        number = len({line["row"] for line in idle})
        more = _details(f"Rows not run: {number}", _grid(idle, places, title)) + more
    notes = f'<p class="notes">{escape(table["notes"])}</p>' if table["notes"] else ""
    source = f'<p class="source">{escape(table["source"])}</p>'
    return f"<h3>{title}</h3>{source}{_grid(lines, shown, title)}{more}{notes}"


def _details(summary: str, content: str) -> str:
    """Content that is shown after a click."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def _grid(lines: list[dict[str, Any]], places: list[str], title: str) -> str:
    head = "".join(f'<th scope="col">{escape(place)}</th>' for place in places)
    body = []
    for row in dict.fromkeys(line["row"] for line in lines):
        of_row = {_place(line): line for line in lines if line["row"] == row}
        oracle = next((line["oracle"] for line in of_row.values() if line["oracle"]), None)
        mark = f' <small class="oracle">sees {escape(oracle)}</small>' if oracle else ""
        cells = "".join(_cell(of_row.get(place)) for place in places)
        body.append(f'<tr><th scope="row">{escape(row)}{mark}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f'<table class="headline"><thead><tr><th scope="col">method</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _was_run(line: dict[str, Any]) -> bool:
    return line["mean"] is not None or line["status"].startswith("failed")


def _place(line: dict[str, Any]) -> str:
    words = [f"{axis} {label}" for axis, label in line["labels"].items()]
    return (
        ", ".join(words + ([f"seed {line['seed']}"] if line["seed"] is not None else []))
        or "accuracy"
    )


def _cell(line: dict[str, Any] | None) -> str:
    if line is None:
        return "<td></td>"
    published = ""
    if line["published"] is not None:
        spread = "" if line["published_std"] is None else f" ± {line['published_std']:.1f}"
        published = f'<span class="theirs">paper {line["published"]:.1f}{spread}</span>'
    if line["mean"] is None:
        return f'<td><span class="none">{escape(_short(line["status"]))}</span>{published}</td>'
    spread = "" if line["std"] is None else f" ± {line['std']:.1f}"
    difference = ""
    if line["difference"] is not None:
        kind = "above" if line["difference"] >= 0 else "below"
        difference = f'<span class="difference {kind}">{line["difference"]:+.1f}</span>'
    mean = f"{line['mean']:.1f}{spread} <small>({line['n']})</small>"
    return f'<td><span class="ours">{mean}</span>{published}{difference}</td>'


def _short(status: str) -> str:
    """A status that fits a cell; the plan and the CSV table have it in full."""
    return status if len(status) <= 60 else f"{status[:57]}..."
