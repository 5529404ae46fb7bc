"""A table of clients and classes as colours (FedHydra, Fig. 6b), as a standalone SVG."""

from collections.abc import Sequence
from html import escape

from torch import Tensor

# Pixels.
_CELL_WIDTH = 52
_CELL_HEIGHT = 30
_LEFT = 130
_TOP = 60


def draw_heat_map(table: Tensor, clients: Sequence[str], classes: Sequence[str], title: str) -> str:
    """Draw a table of clients and classes: darker is more, with the number in each cell.

    Args:
        table: (K, C), not negative. Colours run from 0 to its largest value; a table of whole
            numbers is written without decimals.
        clients: names of the columns.
        classes: names of the rows.
        title: above the table.

    Returns:
        A standalone SVG file.
    """
    values = table.detach().cpu().double()
    largest = max(float(values.max()), 1e-12)
    whole = bool((values == values.round()).all())
    width = _LEFT + _CELL_WIDTH * len(clients) + 20
    height = _TOP + _CELL_HEIGHT * len(classes) + 90
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="#1f2933"'
    label = f'role="img" aria-label="{escape(title)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label} {font}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="28" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for row, name in enumerate(classes):
        y = _TOP + row * _CELL_HEIGHT
        place = f'x="{_LEFT - 8}" y="{y + 20}"'
        lines.append(f'<text {place} text-anchor="end">{escape(name[:18])}</text>')
        for column, client in enumerate(clients):
            value = float(values[column, row])
            exact = f"{value:,.0f}" if whole else f"{value:.4g}"
            hint = f"{escape(client)}, {escape(name)}: {exact}"
            x = _LEFT + column * _CELL_WIDTH
            lines += _draw_cell(x, y, value / largest, _shorten(value, whole), hint)
    bottom = _TOP + _CELL_HEIGHT * len(classes) + 10
    for column, client in enumerate(clients):
        middle = _LEFT + column * _CELL_WIDTH + _CELL_WIDTH / 2 + 3
        turned = f'transform="translate({middle} {bottom}) rotate(-90)"'
        lines.append(f'<text {turned} text-anchor="end">{escape(client[:12])}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _draw_cell(x: int, y: int, share: float, text: str, hint: str) -> list[str]:
    size = f'width="{_CELL_WIDTH - 2}" height="{_CELL_HEIGHT - 2}"'
    ink = "#ffffff" if share > 0.55 else "#1f2933"
    middle = f'x="{x + _CELL_WIDTH / 2 - 1}" y="{y + 19}" text-anchor="middle"'
    return [
        f'<rect x="{x}" y="{y}" {size} fill="{_shade(share)}"><title>{hint}</title></rect>',
        f'<text {middle} fill="{ink}">{text}</text>',
    ]


def _shorten(value: float, whole: bool) -> str:
    """The value in the width of a cell."""
    if whole and value < 1_000_000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 10_000 else f"{value:.0e}"


def _shade(share: float) -> str:
    """From near white to deep blue."""
    light, deep = (239, 244, 250), (31, 84, 147)
    mixed = [round(a + (b - a) * share) for a, b in zip(light, deep, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
