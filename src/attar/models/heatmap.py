"""A table of clients and classes as colours (FedHydra, Fig. 6b), as a standalone SVG."""

from collections.abc import Sequence
from html import escape

from torch import Tensor

_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 52, 30, 130, 60


def heat_map(table: Tensor, clients: Sequence[str], classes: Sequence[str], title: str) -> str:
    """One column for each client, one row for each class, as the paper draws U; darker is more,
    the number in each cell.

    ``table`` is (K, C) and not negative; colours run from 0 to its largest value. A table of
    counts alone is written in whole numbers.
    """
    values = table.detach().cpu().double()
    largest = max(float(values.max()), 1e-12)
    whole = bool((values == values.round()).all())
    width = _LEFT + _CELL_WIDTH * len(clients) + 20
    height = _TOP + _CELL_HEIGHT * len(classes) + 90
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12" fill="#1f2933">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="28" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for row, name in enumerate(classes):
        y = _TOP + row * _CELL_HEIGHT
        lines.append(
            f'<text x="{_LEFT - 8}" y="{y + 20}" text-anchor="end">{escape(name[:18])}</text>'
        )
        for column, client in enumerate(clients):
            value = float(values[column, row])
            share = value / largest
            x = _LEFT + column * _CELL_WIDTH
            ink = "#ffffff" if share > 0.55 else "#1f2933"
            lines += [
                f'<rect x="{x}" y="{y}" width="{_CELL_WIDTH - 2}" height="{_CELL_HEIGHT - 2}" fill="{_shade(share)}">'
                f"<title>{escape(client)}, {escape(name)}: {f'{value:,.0f}' if whole else f'{value:.4g}'}</title></rect>",
                f'<text x="{x + _CELL_WIDTH / 2 - 1}" y="{y + 19}" text-anchor="middle" fill="{ink}">{_short(value, whole)}</text>',
            ]
    bottom = _TOP + _CELL_HEIGHT * len(classes) + 10
    for column, client in enumerate(clients):
        middle = _LEFT + column * _CELL_WIDTH + _CELL_WIDTH / 2 + 3
        lines.append(
            f'<text transform="translate({middle} {bottom}) rotate(-90)" text-anchor="end">{escape(client[:12])}</text>'
        )
    return "\n".join([*lines, "</svg>\n"])


def _short(value: float, whole: bool) -> str:
    if whole and value < 1_000_000:  # as far as a cell is wide
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 10_000 else f"{value:.0e}"


def _shade(share: float) -> str:
    """From near white to deep blue."""
    light, deep = (239, 244, 250), (31, 84, 147)
    mixed = [round(a + (b - a) * share) for a, b in zip(light, deep, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
