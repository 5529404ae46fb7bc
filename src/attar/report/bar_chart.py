"""Accuracies as a bar chart, in a standalone SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# in pixels
_ROW = 26
_LABEL = 250  # at least: longer labels get what they need
_BAR = 380  # of an accuracy of 1
_TOP = 46
_LETTER = 7.6  # more than the usual width at this size, so that no label is cut
_COLOURS = {"client": "#9aa5b1", "fused": "#2f6db5"}
_WORDS = {"client": "a client's own net", "fused": "fused"}
_LEGEND = 24  # pixels of height


@dataclass(frozen=True)
class Bar:
    """One model.

    Attributes:
        label: Its name.
        value: Its accuracy in [0, 1].
        kind: "client" or "fused".
    """

    label: str
    value: float
    kind: str


def draw_bars(entries: Sequence[Bar], title: str) -> str:
    """Draw a horizontal bar for each entry, with its value, a line at the best client, and a
    legend.

    Args:
        entries: From top to bottom.
        title: Above the bars.

    Returns:
        The SVG.
    """
    height = _TOP + _ROW * len(entries) + 26 + _LEGEND
    left = max([_LABEL, *(math.ceil(_LETTER * len(entry.label)) + 22 for entry in entries)])
    width = left + _BAR + 70
    described = "; ".join(f"{entry.label} {100 * entry.value:.1f} %" for entry in entries)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" '
        f'aria-label="{escape(title)}: {escape(described)}" font-family="system-ui, sans-serif" '
        'font-size="13" fill="#1f2933">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    best = max((entry.value for entry in entries if entry.kind == "client"), default=None)
    for place, entry in enumerate(entries):
        y = _TOP + place * _ROW
        width_of_bar = f"{_BAR * entry.value:.1f}"
        lines += [
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(entry.label)}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{width_of_bar}" height="{_ROW - 8}" rx="2" '
            f'fill="{_COLOURS[entry.kind]}"/>',
        ]
    if best is not None:
        x = f"{left + _BAR * best:.1f}"
        lines += [
            f'<line x1="{x}" x2="{x}" y1="{_TOP - 2}" y2="{height - 22 - _LEGEND}" '
            'stroke="#c2410c" stroke-dasharray="4 3"/>',
            f'<text x="{x}" y="{height - 8 - _LEGEND}" text-anchor="middle" font-size="11" '
            'fill="#c2410c">best client alone</text>',
        ]
    for place, entry in enumerate(entries):  # after the line, each on a white halo
        lines.append(
            f'<text x="{left + _BAR * entry.value + 6:.1f}" y="{_TOP + place * _ROW + 15}" '
            'paint-order="stroke" '
            f'stroke="#ffffff" stroke-width="5">{100 * entry.value:.1f} %</text>'
        )
    at = left
    for kind in dict.fromkeys(entry.kind for entry in entries):
        lines += [
            f'<rect x="{at}" y="{height - 21}" width="12" height="12" rx="2" '
            f'fill="{_COLOURS[kind]}" class="key"/>',
            f'<text x="{at + 18}" y="{height - 11}" font-size="12">{escape(_WORDS[kind])}</text>',
        ]
        at += 18 + math.ceil(_LETTER * len(_WORDS[kind])) + 20
    return "\n".join([*lines, "</svg>\n"])
