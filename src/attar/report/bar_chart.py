"""Accuracies side by side, as a standalone SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_ROW, _LABEL, _BAR, _TOP = (
    26,
    250,
    380,
    46,
)  # _LABEL at least: a longer label gets the room it needs
_LETTER = 7.6  # pixels, wide for this size, so that no label is cut
_COLOURS = {"client": "#9aa5b1", "fused": "#2f6db5"}


@dataclass(frozen=True)
class Bar:
    """One model: its name, its accuracy in [0, 1], and whether it is a ``client`` or ``fused``."""

    label: str
    value: float
    kind: str


def draw_bars(entries: Sequence[Bar], title: str) -> str:
    """A horizontal bar for each entry, in the given order, with its value written out; a line at
    the best client.
    """
    height = _TOP + _ROW * len(entries) + 26
    left = max([_LABEL, *(math.ceil(_LETTER * len(entry.label)) + 22 for entry in entries)])
    width = left + _BAR + 70
    described = "; ".join(f"{entry.label} {100 * entry.value:.1f} %" for entry in entries)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}: {escape(described)}" font-family="system-ui, sans-serif" font-size="13" fill="#1f2933">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    best = max((entry.value for entry in entries if entry.kind == "client"), default=None)
    for place, entry in enumerate(entries):
        y = _TOP + place * _ROW
        width_of_bar = f"{_BAR * entry.value:.1f}"
        lines += [
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(entry.label)}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{width_of_bar}" height="{_ROW - 8}" rx="2" fill="{_COLOURS[entry.kind]}"/>',
        ]
    if best is not None:
        x = f"{left + _BAR * best:.1f}"
        lines += [
            f'<line x1="{x}" x2="{x}" y1="{_TOP - 2}" y2="{height - 22}" stroke="#c2410c" stroke-dasharray="4 3"/>',
            f'<text x="{x}" y="{height - 8}" text-anchor="middle" font-size="11" fill="#c2410c">best client alone</text>',
        ]
    for place, entry in enumerate(entries):  # after the line, each on a white halo
        lines.append(
            f'<text x="{left + _BAR * entry.value + 6:.1f}" y="{_TOP + place * _ROW + 15}" paint-order="stroke" '
            f'stroke="#ffffff" stroke-width="5">{100 * entry.value:.1f} %</text>'
        )
    return "\n".join([*lines, "</svg>\n"])
