"""A partition at a glance: clients from left to right, classes from top to bottom, areas of
circles for numbers of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_INK, _SOFT, _LINE, _FILL, _BAR = "#1f2933", "#61707f", "#e4e8ec", "#2f6f8f", "#b9cfdb"
_PER_LETTER = 6.6  # pixels of a letter at 12 px, rather too wide than too narrow
_BAR_LENGTH = 44.0  # of the longest bar of totals
_LONGEST_NAME = 24


def bubbles(
    counts: NDArray[np.integer],
    classes: Sequence[str],
    client_names: Sequence[str] | None = None,
    title: str = "",
) -> str:
    """A standalone SVG of ``counts`` (K, C), as FedHydra draws it in Fig. 3, with the totals of
    clients and classes.
    """
    clients, rows = (int(length) for length in counts.shape)
    names = (
        list(client_names)
        if client_names is not None
        else [str(number) for number in range(clients)]
    )
    if len(names) != clients or len(classes) != rows:
        raise ValueError(
            f"counts {counts.shape}, but {len(names)} clients and {len(classes)} classes"
        )
    column = min(44.0, max(13.0, 880.0 / max(clients, 1)))
    row = min(34.0, max(14.0, min(1.7 * column, 640.0 / max(rows, 1))))
    radius = min(1.5 * column, row) / 2 - 1  # in narrow columns the largest circles may touch
    largest = max(1, int(counts.max(initial=0)))
    labels, ticks = [_short(name) for name in classes], [_short(name) for name in names]
    upright = max((len(name) for name in ticks), default=0) * _PER_LETTER > column - 4

    left = max((len(name) for name in labels), default=0) * _PER_LETTER + 30
    tick_height = (
        max((len(name) for name in ticks), default=0) * _PER_LETTER + 8 if upright else 18.0
    )
    totals, sums = counts.sum(1), counts.sum(0)
    longest_total = max((len(f"{total:,}") for total in totals), default=0) * 6.0
    steep = longest_total > column
    top = (40.0 if title else 10.0) + _BAR_LENGTH + 12 + (longest_total if steep else 12)
    plot_width, plot_height = column * clients, row * rows
    legend = _legend(largest)
    legend_width = sum(_legend_step(radius, value) for value in legend) + 60
    right = _BAR_LENGTH + 60
    width = max(left + plot_width + right, left + legend_width, 24 + 8.8 * len(title))
    bottom = top + plot_height + tick_height + 26
    height = bottom + max(2 * radius, 16) + 16

    held = f"{clients} clients, {rows} classes, {int(counts.sum()):,} images"
    describe = f"{title}: {held}" if title else held
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(describe)}" font-family="{_FONT}" font-size="12" '
        f'fill="{_INK}">',
        f"<title>{escape(describe)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    if title:
        out.append(f'<text x="14" y="26" font-size="15" font-weight="600">{escape(title)}</text>')

    def x_of(client: int) -> float:
        return left + column * (client + 0.5)

    def y_of(label: int) -> float:
        return top + row * (label + 0.5)

    out.append(f'<g stroke="{_LINE}">')
    out += [_rule(left, y_of(label), left + plot_width, y_of(label)) for label in range(rows)]
    out += [_rule(x_of(client), top, x_of(client), top + plot_height) for client in range(clients)]
    out.append("</g>")

    out.append(f'<g fill="{_BAR}">')
    most, widest = max(1, int(totals.max(initial=0))), max(1, int(sums.max(initial=0)))
    thin = min(column, row, 18.0) * 0.6
    for client, total in enumerate(totals):
        length = _BAR_LENGTH * int(total) / most
        out.append(
            _bar(
                x_of(client) - thin / 2,
                top - 4 - length,
                thin,
                length,
                f"{names[client]}: {total:,} images",
            )
        )
    for label, total in enumerate(sums):
        length = _BAR_LENGTH * int(total) / widest
        tip = f"{classes[label]}: {total:,} images"
        out.append(_bar(left + plot_width + 6, y_of(label) - thin / 2, length, thin, tip))
    out.append("</g>")
    out.append(f'<g fill="{_SOFT}" font-size="10">')
    for client, total in enumerate(totals):
        x, y = x_of(client), top - 8 - _BAR_LENGTH * int(total) / most
        place = (
            f'transform="rotate(-90 {x:.1f} {y:.1f}) translate(0 3.5)"'
            if steep
            else 'text-anchor="middle"'
        )
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" {place}>{total:,}</text>')
    for label, total in enumerate(sums):
        x = left + plot_width + 11 + _BAR_LENGTH * int(total) / widest
        out.append(f'<text x="{x:.1f}" y="{y_of(label) + 3.5:.1f}">{total:,}</text>')
    out.append("</g>")

    out.append('<g text-anchor="end">')
    out += [
        f'<text x="{left - 8:.1f}" y="{y_of(label) + 4:.1f}">{escape(name)}</text>'
        for label, name in enumerate(labels)
    ]
    out.append("</g>")
    out.append(
        f'<g text-anchor="{"end" if upright else "middle"}" font-size="{min(12.0, column - 1):.1f}">'
    )
    for client, name in enumerate(ticks):
        x, y = x_of(client), top + plot_height + (6 if upright else 16)
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f}) translate(0 4)"' if upright else ""
        out.append(f'<text x="{x:.1f}" y="{y:.1f}"{turn}>{escape(name)}</text>')
    out.append("</g>")

    out.append(f'<g fill="{_FILL}" fill-opacity="0.85">')
    for client, label in zip(*np.nonzero(counts), strict=True):
        count = int(counts[client, label])
        size = max(0.8, radius * math.sqrt(count / largest))
        out.append(
            f'<circle cx="{x_of(int(client)):.1f}" cy="{y_of(int(label)):.1f}" r="{size:.2f}">'
            f"<title>{escape(names[client])}, {escape(classes[label])}: {count:,}</title></circle>"
        )
    out.append("</g>")

    middle = bottom + max(radius, 8.0)
    out.append(f'<g fill="{_SOFT}"><text x="{left:.1f}" y="{middle + 4:.1f}">images</text>')
    x = left + 52
    for value in legend:
        size = max(0.8, radius * math.sqrt(value / largest))
        x += size
        out.append(
            f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="{size:.2f}" fill="{_FILL}" fill-opacity="0.85"/>'
        )
        out.append(f'<text x="{x + size + 5:.1f}" y="{middle + 4:.1f}">{value:,}</text>')
        x += _legend_step(radius, value) - size
    out += ["</g>", "</svg>", ""]
    return "\n".join(out)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _bar(x: float, y: float, width: float, height: float, tip: str) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"<rect {box}><title>{escape(tip)}</title></rect>"


def _legend(largest: int) -> list[int]:
    """The largest count and two round smaller ones."""
    values = {largest}
    for part in (0.25, 0.05):
        size = 10 ** max(0, math.floor(math.log10(max(1.0, largest * part))))
        values.add(max(1, round(largest * part / size) * size))
    return sorted(values)


def _legend_step(radius: float, value: int) -> float:
    return 2 * radius + 24 + _PER_LETTER * len(f"{value:,}")
