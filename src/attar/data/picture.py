"""A picture of a partition: clients from left to right, classes from top to bottom.

The areas of circles are numbers of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_INK = "#1f2933"
_SOFT = "#61707f"
_LINE = "#e4e8ec"
_FILL = "#2f6f8f"
_BAR = "#b9cfdb"
_PER_LETTER = 6.6  # pixels of a letter at 12 px, rather too wide than too narrow
_BAR_LENGTH = 44.0  # of the longest bar of totals
_LONGEST_NAME = 24
_CAPTION = "A circle: the images of a class at a client. Bars: totals."


@dataclass(frozen=True)
class _Frame:
    """Where everything is drawn, in pixels."""

    names: list[str]
    classes: Sequence[str]
    labels: list[str]
    ticks: list[str]
    column: float
    row: float
    radius: float
    left: float
    top: float
    plot_width: float
    plot_height: float
    upright: bool  # whether the names of clients are turned
    steep: bool  # whether the totals of clients are turned
    largest: int

    def x(self, client: int) -> float:
        return self.left + self.column * (client + 0.5)

    def y(self, label: int) -> float:
        return self.top + self.row * (label + 0.5)

    def circle(self, count: int) -> float:
        """The radius of the circle of a count."""
        return max(0.8, self.radius * math.sqrt(count / self.largest))

    @property
    def bottom(self) -> float:
        """Where the legend begins."""
        longest = max((len(name) for name in self.ticks), default=0)
        ticks = longest * _PER_LETTER + 8 if self.upright else 18.0
        return self.top + self.plot_height + ticks + 26


def draw_partition(
    counts: NDArray[np.integer],
    classes: Sequence[str],
    client_names: Sequence[str] | None = None,
    title: str = "",
) -> str:
    """Draw who holds what, as FedHydra's Fig. 3, with the totals of clients and classes.

    Args:
        counts: images, (K, C).
        classes: names of the rows.
        client_names: names of the columns; None numbers them.
        title: above the picture; empty for none.

    Returns:
        A standalone SVG file.

    Raises:
        ValueError: if the names do not match ``counts``.
    """
    clients, rows = (int(length) for length in counts.shape)
    names = [str(number) for number in range(clients)]
    if client_names is not None:
        names = list(client_names)
    if len(names) != clients or len(classes) != rows:
        given = f"{len(names)} clients and {len(classes)} classes"
        raise ValueError(f"counts {counts.shape}, but {given}")
    frame = _lay_out(counts, classes, names, title)
    legend = _legend(frame.largest)
    legend_width = sum(_legend_step(frame.radius, value) for value in legend) + 60
    plot_end = frame.left + frame.plot_width + _BAR_LENGTH + 60
    width = max(
        plot_end,
        frame.left + legend_width,
        24 + 8.8 * len(title),
        28 + _PER_LETTER * len(_CAPTION),
    )
    height = frame.bottom + max(2 * frame.radius, 16) + 40
    size = f"{clients} clients, {rows} classes, {int(counts.sum()):,} images"
    describe = escape(f"{title}: {size}" if title else size)
    box = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    font = f'font-family="{_FONT}" font-size="12" fill="{_INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{describe}" {font}>',
        f"<title>{describe}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    if title:
        heading = escape(title)
        lines.append(f'<text x="14" y="26" font-size="15" font-weight="600">{heading}</text>')
    lines += _draw_grid(frame, clients, rows)
    lines += _draw_totals(frame, counts)
    lines += _draw_names(frame)
    lines += _draw_circles(frame, counts)
    lines += _draw_legend(frame, legend)
    lines.append(f'<text x="14" y="{height - 14:.0f}" fill="{_SOFT}">{_CAPTION}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _lay_out(
    counts: NDArray[np.integer], classes: Sequence[str], names: list[str], title: str
) -> _Frame:
    clients, rows = (int(length) for length in counts.shape)
    column = min(44.0, max(13.0, 880.0 / max(clients, 1)))
    row = min(34.0, max(14.0, min(1.7 * column, 640.0 / max(rows, 1))))
    labels = [_shorten(name) for name in classes]
    ticks = [_shorten(name) for name in names]
    longest_label = max((len(name) for name in labels), default=0)
    longest_tick = max((len(name) for name in ticks), default=0)
    longest_total = max((len(f"{total:,}") for total in counts.sum(1)), default=0) * 6.0
    steep = longest_total > column
    top = (40.0 if title else 10.0) + _BAR_LENGTH + 12 + (longest_total if steep else 12)
    return _Frame(
        names=names,
        classes=classes,
        labels=labels,
        ticks=ticks,
        column=column,
        row=row,
        radius=min(1.5 * column, row) / 2 - 1,  # in narrow columns the largest circles may touch
        left=longest_label * _PER_LETTER + 30,
        top=top,
        plot_width=column * clients,
        plot_height=row * rows,
        upright=longest_tick * _PER_LETTER > column - 4,
        steep=steep,
        largest=max(1, int(counts.max(initial=0))),
    )


def _draw_grid(frame: _Frame, clients: int, rows: int) -> list[str]:
    right = frame.left + frame.plot_width
    below = frame.top + frame.plot_height
    lines = [f'<g stroke="{_LINE}">']
    for label in range(rows):
        lines.append(_line(frame.left, frame.y(label), right, frame.y(label)))
    for client in range(clients):
        lines.append(_line(frame.x(client), frame.top, frame.x(client), below))
    return [*lines, "</g>"]


def _draw_totals(frame: _Frame, counts: NDArray[np.integer]) -> list[str]:
    """Bars and numbers: of clients above the columns, of classes beside the rows."""
    right = frame.left + frame.plot_width
    thin = min(frame.column, frame.row, 18.0) * 0.6
    of_clients = counts.sum(1)
    of_classes = counts.sum(0)
    per_client = _BAR_LENGTH / max(1, int(of_clients.max(initial=0)))
    per_class = _BAR_LENGTH / max(1, int(of_classes.max(initial=0)))
    bars = [f'<g fill="{_BAR}">']
    numbers = [f'<g fill="{_SOFT}" font-size="10">']
    for client, total in enumerate(of_clients):
        x = frame.x(client)
        length = per_client * int(total)
        tip = f"{frame.names[client]}: {total:,} images"
        bars.append(_bar(x - thin / 2, frame.top - 4 - length, thin, length, tip))
        y = frame.top - 8 - length
        place = 'text-anchor="middle"'
        if frame.steep:
            place = f'transform="rotate(-90 {x:.1f} {y:.1f}) translate(0 3.5)"'
        numbers.append(f'<text x="{x:.1f}" y="{y:.1f}" {place}>{total:,}</text>')
    for label, total in enumerate(of_classes):
        y = frame.y(label)
        length = per_class * int(total)
        tip = f"{frame.classes[label]}: {total:,} images"
        bars.append(_bar(right + 6, y - thin / 2, length, thin, tip))
        numbers.append(f'<text x="{right + 11 + length:.1f}" y="{y + 3.5:.1f}">{total:,}</text>')
    return [*bars, "</g>", *numbers, "</g>"]


def _draw_names(frame: _Frame) -> list[str]:
    lines = ['<g text-anchor="end">']
    for label, name in enumerate(frame.labels):
        place = f'x="{frame.left - 8:.1f}" y="{frame.y(label) + 4:.1f}"'
        lines.append(f"<text {place}>{escape(name)}</text>")
    lines.append("</g>")
    anchor = "end" if frame.upright else "middle"
    lines.append(f'<g text-anchor="{anchor}" font-size="{min(12.0, frame.column - 1):.1f}">')
    y = frame.top + frame.plot_height + (6 if frame.upright else 16)
    for client, name in enumerate(frame.ticks):
        x = frame.x(client)
        turn = ""
        if frame.upright:
            turn = f' transform="rotate(-90 {x:.1f} {y:.1f}) translate(0 4)"'
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}"{turn}>{escape(name)}</text>')
    return [*lines, "</g>"]


def _draw_circles(frame: _Frame, counts: NDArray[np.integer]) -> list[str]:
    lines = [f'<g fill="{_FILL}" fill-opacity="0.85">']
    for client, label in zip(*np.nonzero(counts), strict=True):
        count = int(counts[client, label])
        middle = f'cx="{frame.x(int(client)):.1f}" cy="{frame.y(int(label)):.1f}"'
        tip = f"{escape(frame.names[client])}, {escape(frame.classes[label])}: {count:,}"
        circle = f'<circle {middle} r="{frame.circle(count):.2f}">'
        lines.append(f"{circle}<title>{tip}</title></circle>")
    return [*lines, "</g>"]


def _draw_legend(frame: _Frame, values: Sequence[int]) -> list[str]:
    y = frame.bottom + max(frame.radius, 8.0)
    place = f'x="{frame.left:.1f}" y="{y + 4:.1f}"'
    lines = [f'<g fill="{_SOFT}"><text {place}>images</text>']
    x = frame.left + 52
    for value in values:
        radius = frame.circle(value)
        x += radius
        middle = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.2f}"'
        lines.append(f'<circle {middle} fill="{_FILL}" fill-opacity="0.85"/>')
        lines.append(f'<text x="{x + radius + 5:.1f}" y="{y + 4:.1f}">{value:,}</text>')
        x += _legend_step(frame.radius, value) - radius
    return [*lines, "</g>"]


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
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
