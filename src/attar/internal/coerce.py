"""Text and other plain values -> values of a declared type."""

import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

Scalar = bool | int | float | str

CAN_BE_SET = "bool, int, float, str, Literal[...], tuple[T, ...] of these, or one of them | None"

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


def can_be_set(to: Any) -> bool:
    """Whether text can become a value of type ``to``."""
    origin, inner = get_origin(to), get_args(to)
    if origin is Annotated:
        return can_be_set(inner[0])
    if origin in (Union, types.UnionType):
        return all(map(can_be_set, inner))
    if origin is tuple:
        return len(inner) == 2 and inner[1] is Ellipsis and can_be_set(inner[0])
    return origin is Literal or to in (bool, int, float, str, type(None))


def declared_otherwise(name: str, to: Any) -> str:
    """How the field ``name``, whose type no text can become, is declared instead."""
    instead = " (tuple[T, ...] in place of a list)" if list in (to, get_origin(to)) else ""
    return f"{name}: no text becomes its type {_type_name(to)}; declare it as {CAN_BE_SET}{instead}"


def _type_name(to: Any) -> str:
    return to.__name__ if isinstance(to, type) and get_origin(to) is None else str(to)


def coerce(value: object, to: Any) -> Any:
    """``value`` as type ``to``; raises ValueError with a short reason."""
    origin = get_origin(to)
    if origin is Annotated:
        return coerce(value, get_args(to)[0])
    if origin in (Union, types.UnionType):
        if type(None) in get_args(to) and (
            value is None or (isinstance(value, str) and value.lower() == "none")
        ):
            return None
        reasons = []
        for option in get_args(to):
            try:
                return coerce(value, option)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError(" or ".join(dict.fromkeys(reasons)))
    if origin is Literal:
        for choice in get_args(to):
            if value == choice or (isinstance(value, str) and value == str(choice)):
                return choice
        raise ValueError(f"one of {', '.join(str(choice) for choice in get_args(to))}")
    if origin is tuple:
        (element, _) = get_args(to)
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise ValueError("a list separated by commas")
        return tuple(
            coerce(item.strip() if isinstance(item, str) else item, element) for item in items
        )
    if to is bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise ValueError("true or false")
    if to is int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError("a whole number")
        try:
            return int(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise ValueError("a whole number") from None
    if to is float:
        try:
            number = float(value) if not isinstance(value, bool) else math.nan  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):  # a whole number of 400 digits is no float
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("a finite number")
        return number
    if to is type(None):
        raise ValueError("none")
    if to is str:
        if not isinstance(value, str):
            raise ValueError("a text")
        return value
    raise TypeError(f"settings of type {to} are not supported")
