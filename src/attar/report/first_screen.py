"""The first section of a page: which model is best, and how far it is from the clients alone and
from central training.

It is plain HTML, so that it needs no script.
"""

import math
from collections.abc import Sequence
from html import escape

from attar.internal.text import list_some
from attar.report.standings import Entry, Standing

MOST_NAMED = 6  # rows that are left out
OTHER_BARS = {
    "client": "Grey bars are clients alone.",
    "sees more": "Hatched bars see real images that no server has.",
}


def first_screen(standings: Sequence[Standing]) -> str:
    """A view for each standing, of which one is shown, and a choice between them.

    Args:
        standings: The one of the most runs is shown first.
    """
    if not standings:
        return "<p>Nothing was measured yet.</p>"
    shown = max(standings, key=lambda standing: standing.runs)
    views = "".join(
        _view(number, standing, hidden=standing is not shown)
        for number, standing in enumerate(standings)
    )
    return _choice(standings, shown) + views


def _choice(standings: Sequence[Standing], shown: Standing) -> str:
    """A select box with a group for each table; nothing where there is one standing."""
    if len(standings) == 1:
        return ""
    titles = list(dict.fromkeys(standing.title for standing in standings))
    groups = []
    for title in titles:
        options = "".join(
            f'<option value="{number}" data-place="{escape(standing.place)}"'
            f"{' selected' if standing is shown else ''}>{escape(standing.name)}"
            f"{'' if len(titles) == 1 else f' ({escape(title)})'}</option>"
            for number, standing in enumerate(standings)
            if standing.title == title
        )
        groups.append(f'<optgroup label="{escape(title)}">{options}</optgroup>')
    choices = "".join(groups) if len(titles) > 1 else groups[0].partition(">")[2][:-11]
    return (
        '<div class="controls"><label class="pick">Show'
        f'<select id="view" autocomplete="off">{choices}</select></label></div>'
    )


def _view(number: int, standing: Standing, *, hidden: bool) -> str:
    bars = _bars(standing)
    return (
        f'<div class="view" id="view-{number}"{" hidden" if hidden else ""}>'
        f"{_verdict(standing)}{_tiles(standing)}"
        f"<figure>{bars}<figcaption>{_caption(standing)}</figcaption></figure></div>"
    )


def _verdict(standing: Standing) -> str:
    """Which fused model is best, and how sure that is."""
    fused = standing.fused
    if not fused:
        return '<p class="verdict">No fused model was run here.</p>'
    best = fused[0]
    words = [f"<strong>{escape(best.label)}</strong> is the most accurate fused model."]
    if len(fused) == 1:
        words = [f"<strong>{escape(best.label)}</strong> is the only fused model."]
    elif best.mean - fused[1].mean < 0.005:
        words = [
            f"<strong>{escape(best.label)}</strong> and <strong>{escape(fused[1].label)}</strong> "
            "are the most accurate fused models."
        ]
    if standing.client is not None and best.mean <= standing.client:
        words.append('<span class="below">It is not better than the best single client.</span>')
    words += _doubts(standing, fused)
    return f'<p class="verdict">{" ".join(words)}</p>'


def _doubts(standing: Standing, fused: Sequence[Entry]) -> list[str]:
    """What the numbers do not prove."""
    if len(fused) < 2:
        return []
    best, second = fused[:2]
    ahead = f"{best.mean - second.mean:.1f} points ahead of {escape(second.label)}"
    if standing.places > 1:
        leads = f"{standing.wins} of {standing.places} places"
        return [f"In the mean it is {ahead}, and it leads at {leads}."]
    if best.deviation is None or second.deviation is None:
        return [f"It is {ahead}, in a single run: a few points can be chance."]
    if best.mean - second.mean < max(best.deviation, second.deviation):
        return [f"It is {ahead}, which is less than the spread of the seeds."]
    return [f"It is {ahead}."]


def _tiles(standing: Standing) -> str:
    best = standing.fused[0] if standing.fused else None
    tiles = [] if best is None else [_tile("Best fused model", best.mean, escape(best.label))]
    tiles += [
        _reference("Best single client", standing.client, best, standing.without_client),
        _reference("Central training", standing.central, best, standing.without_central),
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _tile(title: str, value: float, note: str) -> str:
    return (
        f'<div><dt>{title}</dt><dd><span class="figure">{value:.1f} %</span> '
        f'<span class="note">{note}</span></dd></div>'
    )


def _reference(title: str, value: float | None, best: Entry | None, missing: str) -> str:
    if value is None:
        return (
            f'<div><dt>{title}</dt><dd><span class="figure none">–</span> '
            f'<span class="note">{escape(missing)}</span></dd></div>'
        )
    if best is None:
        return _tile(title, value, "")
    points = best.mean - value
    where = "above" if points > 0 else "below"
    note = f'the fused model is <b class="{where}">{abs(points):.1f} points {where}</b>'
    if abs(points) < 0.05:
        note = "the fused model is as accurate"
    return _tile(title, value, note)


def _bars(standing: Standing) -> str:
    """A row for each model: its name, a bar and its accuracy."""
    top = _top_of_scale(standing)
    lines = [
        f"--{name}-at:{100 * value / top:.2f}%"
        for name, value in (("client", standing.client), ("central", standing.central))
        if value is not None
    ]
    best = standing.fused[0] if standing.fused else None
    spread = standing.places == 1  # that over places is no doubt about the mean
    rows = "".join(
        _bar(entry, top, best=entry is best, spread=spread) for entry in standing.entries
    )
    return (
        f'<table class="bars" style="{";".join(lines)}"><thead><tr><th scope="col">model</th>'
        '<th scope="col" aria-hidden="true"></th><th scope="col">accuracy, %</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _bar(entry: Entry, top: float, *, best: bool, spread: bool) -> str:
    kind = "best" if best else entry.kind.replace(" ", "-")
    sees = f" <small>sees {escape(entry.sees)}</small>" if entry.sees else ""
    deviation = entry.deviation if spread else None
    error = "" if deviation is None else f" <small>± {deviation:.1f}</small>"
    width = 100 * entry.mean / top
    return (
        f'<tr class="{kind}"><th scope="row">{escape(entry.label)}{sees}</th>'
        f'<td class="track" aria-hidden="true"><i style="width:{width:.2f}%"></i></td>'
        f"<td>{entry.mean:.1f}{error}</td></tr>"
    )


def _top_of_scale(standing: Standing) -> float:
    """The accuracy at the right end of the bars, in percent."""
    values = [entry.mean for entry in standing.entries]
    values += [value for value in (standing.client, standing.central) if value is not None]
    return min(100.0, 10.0 * math.ceil(max(values, default=1.0) * 1.02 / 10 + 0.01))


def _caption(standing: Standing) -> str:
    """What the bars and the lines are."""
    of = f"the mean over {standing.places} places"
    if standing.places == 1:
        seeds = max((len(entry.accuracies) for entry in standing.entries), default=1)
        of = "one run each" if seeds == 1 else f"mean ± standard deviation over up to {seeds} seeds"
    scale = f"bars from 0 to {_top_of_scale(standing):.0f} %"
    words = [f"Accuracy on {escape(standing.images)}, {of}; {scale}."]
    kinds = {entry.kind for entry in standing.entries}
    words += [about for kind, about in OTHER_BARS.items() if kind in kinds]
    if standing.client is not None:
        words.append(
            f'<span class="key client"></span>Best single client alone: {standing.client:.1f} % '
            "(chosen on the same images)."
        )
    if standing.central is not None:
        words.append(
            f'<span class="key central"></span>Central training, one net on the images of all '
            f"clients: {standing.central:.1f} %."
        )
    if standing.left_out:
        words.append(f"Not run at every place: {escape(list_some(standing.left_out, MOST_NAMED))}.")
    return " ".join(words)
