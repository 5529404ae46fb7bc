"""Text for messages, tables and files that other programs open."""

import re
from collections.abc import Sequence

# Beside < > &, which become entities: what begins emphasis, code, a link or picture, a cell, a
# formula or a name to be notified; and what makes an address of "http://" and "www.".
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$@]|:(?=//|[\w+-]+:)|(?i:(?<=\bwww))\.)")
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def list_some(names: Sequence[str], most: int = 5) -> str:
    """Join names with commas, and count those that are left out.

    Args:
        names: what to list.
        most: how many of them to write out.

    Returns:
        ``"a, b, c"``, or ``"a, b and 998 more"``.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def human_bytes(count: float) -> str:
    """Write a number of bytes in decimal units: 1234567 -> ``"1.2 MB"``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def escape_markdown(text: str) -> str:
    """Write a text that somebody else chose into Markdown, so that it is shown as it is.

    Args:
        text: of one line, such as the name of a class.

    Returns:
        The text without markup, HTML, links or pictures; also in a cell of a table.
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def escape_cell(value: object) -> object:
    """Keep a spreadsheet from computing a text that begins like a formula: a quote comes first.

    A carriage return, which some readers take for the end of a row, becomes a space.

    Args:
        value: of a cell of a CSV table; numbers are returned as they are.
    """
    if not isinstance(value, str):
        return value
    quote = "'" if value.startswith(_FORMULA) else ""
    return quote + value.replace("\r", " ")
