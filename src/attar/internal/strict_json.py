"""JSON from an untrusted sender."""

import json
from typing import Any

MAX_VALUES = 1_000_000  # in one text: a value may take a hundred times its characters in memory


class _DuplicateKey(ValueError):
    pass


def strict_json(text: str | bytes) -> Any:
    """Read JSON, refusing what the standard leaves open.

    Args:
        text: one JSON value.

    Returns:
        The value.

    Raises:
        ValueError: with a short reason: a key twice in one object, NaN or an infinity, more than
            ``MAX_VALUES`` values, nesting too deep, or text that is not JSON.
    """
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        return json.loads(text, object_pairs_hook=_to_dict, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _to_dict(items: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(items)
    if len(result) != len(items):
        raise _DuplicateKey("a key appears twice")
    return result


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")
