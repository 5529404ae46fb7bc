"""Lists in messages."""

from collections.abc import Sequence


def list_some(names: Sequence[str], most: int = 5) -> str:
    """The first names and how many more there are: a thousand classes shall not fill the screen."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
