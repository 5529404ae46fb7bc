"""JSON that came from a stranger."""

import json
from typing import Any

MAX_VALUES = 1_000_000  # in one JSON text: each may take a hundred times its letters in memory


class _Duplicate(ValueError):
    pass


def strict_json(text: str | bytes) -> Any:
    """JSON without duplicate keys, NaN or infinities, and not too many values; raises ValueError
    with a short reason.
    """

    def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            raise _Duplicate("a key appears twice")
        return result

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number")

    letters = text.encode(errors="replace") if isinstance(text, str) else text
    if sum(letters.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
