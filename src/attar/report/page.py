"""One self-contained page of all records; it works offline, without any request."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from attar.bench import Recipe, read_records
from attar.internal.files import write_atomic
from attar.report.charts import CHARTS, Chart
from attar.report.facts import facts_of
from attar.report.first_screen import first_screen

HERE = Path(__file__).parent
LIBRARIES = ("d3.min.js", "plot.umd.min.js")
SCRIPTS = ("chart_tools.js", "charts.js")
FEW_COMMITS = 3  # are named at the top of the page; of more only the number is shown
MOST_COLUMNS = 5  # of a table on paper
FEW_TABLES = 2  # come before the charts; more come behind them


class Section(NamedTuple):
    """A section of the page: its identifier, its title, and its content as HTML."""

    name: str
    title: str
    content: str


def write_report(
    folder: Path, out: Path, recipes: Sequence[Recipe], title: str | None = None
) -> Path:
    """Write the page.

    Args:
        folder: All records below it are shown.
        out: The file.
        recipes: Their tables are shown with the published numbers.
        title: Of the page; None: that of the only table, if there is one.

    Returns:
        The file.
    """
    facts = facts_of(read_records(folder), recipes, folder)
    titles = [table["title"] for table in facts["tables"]]
    usual = "What was measured"
    if len(titles) == 1:
        usual = recipes[0].title if recipes else f"{usual}: {titles[0]}"
    write_atomic(out, page_of(facts, title or usual))
    return out


def page_of(
    facts: dict[str, Any], title: str, *, more: Sequence[Section] = (), note: str | None = None
) -> str:
    """The page as HTML.

    Args:
        facts: What ``facts_of`` makes.
        title: Of the page.
        more: Sections that follow the charts.
        note: HTML below the first section of a page about one model, which says nothing of
            charts that are not there; None: a page about a bench.

    Returns:
        The text. The first section and the tables are plain HTML, charts are drawn by the script
        in it. Charts without data are not there.
    """
    drawn = [chart for chart in CHARTS if chart.has_data(facts)]
    charts = [Section(chart.name, chart.title, _chart(chart)) for chart in drawn]
    tables = [_tables(facts["tables"])] if _say_more_than_bars(facts["tables"]) else []
    early, late = (tables, []) if len(facts["tables"]) <= FEW_TABLES else ([], tables)
    best = Section("best", "Which model is best", first_screen(facts["standings"]) + (note or ""))
    sections = [best, *early, *charts, *more, *late]
    data = {name: value for name, value in facts.items() if name != "standings"}
    # Also "<!--<script>" would end the page: after it, "</script>" no longer closes the element.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    script = "\n".join((HERE / name).read_text() for name in SCRIPTS)
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
            f"<title>{escape(title)} · attar</title>",
            f"<style>{(HERE / 'page.css').read_text()}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#best">Skip to the results</a>',
            f"<header><h1>{escape(title)}</h1>{_summary(facts['summary'])}"
            f"{_contents(sections)}</header>",
            "<main>",
            *[
                f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
                f"{section.content}</section>"
                for section in sections
            ],
            "</main>",
            f"<footer>{_left_out(drawn) if facts['runs'] and note is None else ''}",
            "<p>Made by attar. Drawn with Observable Plot and D3 (ISC licence), which are part of "
            "this file.</p></footer>",
            f'<script type="application/json" id="facts">{text}</script>',
            libraries,
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _contents(sections: Sequence[Section]) -> str:
    links = [f'<a href="#{section.name}">{escape(section.title)}</a>' for section in sections]
    return f'<nav aria-label="Contents">{"".join(links)}</nav>'


def _chart(chart: Chart) -> str:
    """A place for a chart that the script draws, with its caption and its numbers."""
    title = escape(chart.title)
    return (
        f'<div class="controls"></div><figure aria-label="{title}"><div class="drawing"></div>'
        f'<figcaption>{escape(chart.about)} <span class="which"></span></figcaption></figure>'
        "<details><summary>The same as numbers</summary>"
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{title}, as numbers"></div></details>'
    )


def _left_out(drawn: Sequence[Chart]) -> str:
    """One sentence for each chart that is not on the page: how to get it."""
    lines = [
        f"<li>{escape(chart.title)}: {_with_code(chart.otherwise)}.</li>"
        for chart in CHARTS
        if chart not in drawn
    ]
    if not lines:
        return ""
    return f'<div class="absent"><p>Not on this page:</p><ul>{"".join(lines)}</ul></div>'


def _with_code(text: str) -> str:
    """Text whose pieces between backquotes are code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(text))


def _say_more_than_bars(tables: Sequence[dict[str, Any]]) -> bool:
    """Whether the tables have anything that the first section does not show."""
    lines = [line for table in tables for line in table["lines"]]
    places = {_place(line) for line in lines}
    return len(places) > 1 or any(
        line["published"] is not None or line["mean"] is None for line in lines
    )


def _tables(tables: Sequence[dict[str, Any]]) -> Section:
    """Every number, beside those of the papers where there are any."""
    published = any(line["published"] is not None for table in tables for line in table["lines"])
    words = (
        "Accuracy of the <strong>last epoch</strong> on the test images, in percent: mean "
        "± standard deviation over seeds (number of seeds)."
    )
    if published:
        words += " Differences to the published number are in points."
    return Section(
        "headline",
        "Beside the papers" if published else "All numbers",
        f"<p>{words}</p>{''.join(_table(table) for table in tables)}",
    )


def _summary(summary: dict[str, Any]) -> str:
    failed = f", {summary['failed']} failed" if summary["failed"] else ""
    number = summary["runs"]
    words = [
        f"{number} {summary['of']}{'' if number == 1 else 's'}{failed}",
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
    source = f'<p class="source">{escape(table["source"])}</p>' if table["source"] else ""
    return f"<h3>{title}</h3>{source}{_grid(lines, shown, title)}{more}{notes}"


def _details(summary: str, content: str) -> str:
    """Content that is shown after a click."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def _grid(lines: list[dict[str, Any]], places: list[str], title: str) -> str:
    """A table; one with more columns than paper has room for is several tables there."""
    whole = _one_grid(lines, places, title)
    if len(places) <= MOST_COLUMNS:
        return whole
    pieces = [places[start : start + MOST_COLUMNS] for start in range(0, len(places), MOST_COLUMNS)]
    printed = "".join(_one_grid(lines, piece, title) for piece in pieces)
    return f'<div class="on-screen">{whole}</div><div class="on-paper">{printed}</div>'


def _one_grid(lines: list[dict[str, Any]], places: list[str], title: str) -> str:
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
