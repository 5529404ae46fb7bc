"""Text and other plain values -> values of a declared type."""

import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

Scalar = bool | int | float | str

CAN_BE_SET = "bool, int, float, str, Literal[...], tuple[T, ...] of these, or one of them | None"

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


def can_be_set(to: Any) -> bool:
    """Whether text can become a value of type ``to``: one of ``CAN_BE_SET``."""
    origin = get_origin(to)
    inner = get_args(to)
    if origin is Annotated:
        return can_be_set(inner[0])
    if origin in (Union, types.UnionType):
        return all(map(can_be_set, inner))
    if origin is tuple:
        return len(inner) == 2 and inner[1] is Ellipsis and can_be_set(inner[0])
    return origin is Literal or to in (bool, int, float, str, type(None))


def explain_type(name: str, to: Any) -> str:
    """How to declare the field ``name``, whose type ``to`` fails ``can_be_set``."""
    instead = " (tuple[T, ...] in place of a list)" if list in (to, get_origin(to)) else ""
    declared = f"text cannot become its type {_type_name(to)}"
    return f"{name}: {declared}; declare it as {CAN_BE_SET}{instead}"


def _type_name(to: Any) -> str:
    return to.__name__ if isinstance(to, type) and get_origin(to) is None else str(to)


def coerce(value: object, to: Any) -> Any:
    """Convert a value to a declared type.

    Args:
        value: text from a command line, or a value from JSON or TOML.
        to: a type for which ``can_be_set`` is true. Of a union the first member that fits is
            taken, and the text ``none`` stands for None.

    Returns:
        A value of type ``to``.

    Raises:
        ValueError: with what was expected, for example ``"a whole number"``.
        TypeError: for a type that ``can_be_set`` refuses.
    """
    origin = get_origin(to)
    if origin is Annotated:
        return coerce(value, get_args(to)[0])
    if origin in (Union, types.UnionType):
        return _to_member(value, get_args(to))
    if origin is Literal:
        return _to_choice(value, get_args(to))
    if origin is tuple:
        return _to_tuple(value, get_args(to)[0])
    if to is bool:
        return _to_bool(value)
    if to is int:
        return _to_int(value)
    if to is float:
        return _to_float(value)
    if to is type(None):
        raise ValueError("none")
    if to is str:
        if not isinstance(value, str):
            raise ValueError("a text")
        return value
    raise TypeError(f"settings of type {to} are not supported")


def _to_member(value: object, members: tuple[Any, ...]) -> Any:
    says_none = isinstance(value, str) and value.lower() == "none"
    if type(None) in members and (value is None or says_none):
        return None
    reasons = []
    for member in members:
        try:
            return coerce(value, member)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError(" or ".join(dict.fromkeys(reasons)))


def _to_choice(value: object, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if value == choice or (isinstance(value, str) and value == str(choice)):
            return choice
    raise ValueError(f"one of {', '.join(str(choice) for choice in choices)}")


def _to_tuple(value: object, element: Any) -> tuple[Any, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("a list separated by commas")
    stripped = (item.strip() if isinstance(item, str) else item for item in items)
    return tuple(coerce(item, element) for item in stripped)


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("true or false")
    return text in _TRUE


def _to_int(value: object) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("a whole number")
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise ValueError("a whole number") from None


def _to_float(value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # also a whole number of 400 digits
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number
