"""Text for messages and tables."""

from collections.abc import Sequence


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
