"""Settings that arrive as text (``--set temperature=4``) or from a file become typed values, or
one error naming them all.
"""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from attar.errors import SettingsError

Scalar = bool | int | float | str

CAN_BE_SET = "bool, int, float, str, Literal[...], tuple[T, ...] of these, or one of them | None"

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}

Config = TypeVar("Config")


def can_be_set(to: Any) -> bool:
    """Whether text can become a value of type ``to``."""
    origin, inner = get_origin(to), get_args(to)
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


def coerce_settings(
    types_by_name: Mapping[str, Any], given: Mapping[str, Any], *, of: str
) -> dict[str, Any]:
    """Every given setting as its declared type; all that is wrong in one SettingsError."""
    values, problems = {}, []
    for name, value in given.items():
        if name not in types_by_name:
            problems.append(f"{name}: {of} has no such setting")
            continue
        if not can_be_set(types_by_name[name]):
            problems.append(declared_otherwise(name, types_by_name[name]))
            continue
        try:
            values[name] = coerce(value, types_by_name[name])
        except ValueError as reason:
            problems.append(f"{name} = {value!r}: expected {reason}")
    if problems:
        known = ", ".join(types_by_name) or "it has none"
        raise SettingsError(
            f"Settings of {of} that do not fit:",
            problems=problems,
            fix=f"settings of {of}: {known}",
        )
    return values


def configure(config: type[Config], given: Mapping[str, Any], *, of: str) -> Config:
    """An instance of the dataclass ``config`` with the given settings, which may be text."""
    hints = get_type_hints(config)
    declared = {field.name: hints[field.name] for field in fields(config) if field.init}  # type: ignore[arg-type]
    try:
        return config(**coerce_settings(declared, given, of=of))
    except ValueError as error:  # a dataclass that checks its own values in __post_init__
        raise SettingsError(f"Settings of {of} that do not fit:", problems=[str(error)]) from None


def require(config: Any, *, may_be_zero: str = "", at_most_one: str = "") -> None:
    """Every number in ``config`` is above 0, or 0 where its name is listed, and every choice one
    of its field's.

    All that are not in one SettingsError.
    """
    wrong = [
        f"{name} = {value}: expected at most 1"
        for name in at_most_one.split()
        if (value := getattr(config, name)) > 1
    ]
    for name, choices in _choices(type(config)).items():
        if (value := getattr(config, name)) not in choices:
            wrong.append(f"{name} = {value!r}: expected one of {', '.join(map(str, choices))}")
    for field in fields(config):
        value, zero = getattr(config, field.name), field.name in may_be_zero.split()
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (value < 0 or (value == 0 and not zero))
        ):
            wrong.append(f"{field.name} = {value}: expected {'0 or more' if zero else 'above 0'}")
    if wrong:
        raise SettingsError(f"Settings of {type(config).__name__} out of range:", problems=wrong)


def _choices(config: type) -> dict[str, tuple[Any, ...]]:
    """The fields that are a choice, and what there is to choose from."""
    hints = get_type_hints(config)
    named = {field.name: hints[field.name] for field in fields(config)}
    return {name: get_args(hint) for name, hint in named.items() if get_origin(hint) is Literal}


def presets(chosen: Callable[[Any], Mapping[str, Any]]) -> Callable[[type[Config]], type[Config]]:
    """Decorates a dataclass of settings: those that were not given are what ``chosen`` says of
    the ones that were.

    What was asked for stays, also where it is the default, and an instance has the values that
    it runs with. ``dataclasses.replace`` gives every setting, so it changes what it names and
    nothing else.
    """

    def decorate(kind: type[Config]) -> type[Config]:
        plain = kind.__init__

        @wraps(plain)
        def settle(self: Any, *values: Any, **named: Any) -> None:
            plain(self, *values, **named)
            given = {
                field.name for field, _ in zip(fields(kind), values, strict=False)
            } | named.keys()  # type: ignore[arg-type]
            rest = {name: value for name, value in chosen(self).items() if name not in given}
            if rest:
                plain(self, *values, **named, **rest)

        kind.__init__ = settle  # type: ignore[method-assign]
        return kind

    return decorate


def pairs(settings: list[str] | tuple[str, ...]) -> dict[str, str]:
    """``["a=1", "b=x"]`` as a mapping."""
    bad = [text for text in settings if "=" not in text or text.startswith("=")]
    if bad:
        raise SettingsError(
            "Settings are written key=value:",
            problems=[repr(text) for text in bad],
            fix="write each with its value, such as lr=0.1",
        )
    split = [
        (key.strip(), value.strip()) for key, value in (text.split("=", 1) for text in settings)
    ]
    keys = [key for key, _ in split]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise SettingsError("Settings that are given twice:", problems=twice)
    return dict(split)
