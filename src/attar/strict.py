"""JSON that came from a stranger."""

import json
from typing import Any


class _Duplicate(ValueError):
    pass


def strict_json(text: str | bytes) -> Any:
    """JSON without duplicate keys, NaN or infinities; raises ValueError with a short reason."""

    def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            raise _Duplicate("a key appears twice")
        return result

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
