"""Settings: declared once as typed fields, given as text or values, checked, and written flat.

A method is a frozen dataclass. Each field is a setting, and so a flag of ``--set``, a key of a
recipe and a key of the record. The type of a field says what may stand there::

    steps: PositiveInt = 30                    # a bound is part of the type
    momentum: Fraction = 0.9
    keep: Literal["last", "best"] = "last"
    student: StudentTraining = StudentTraining(temperature=4.0)     # a group of settings

A group is a frozen dataclass, too. Its fields are settings of the method under a flat name: that
of the field, or the one that ``flat("student_lr", 0.01)`` gives it. Outside Python only flat names
exist; in Python both ways work::

    Dense(student=StudentTraining(lr=0.1))     Dense(student_lr=0.1)

``@settings`` on the method's class (not on the group's) makes this so, checks all bounds whenever
an instance is made, and fills in what a variant says.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from attar.errors import SettingsError
from attar.internal.coerce import Scalar, can_be_set, coerce, explain_type

__all__ = [
    "Bounds",
    "Fraction",
    "NonNegative",
    "NonNegativeInt",
    "Positive",
    "PositiveFraction",
    "PositiveInt",
    "Scalar",
    "Setting",
    "can_be_set",
    "check_bounds",
    "coerce",
    "coerce_settings",
    "configure",
    "explain_type",
    "filled_by_variant",
    "flat",
    "flatten",
    "pairs",
    "settings",
    "settings_of",
]

Config = TypeVar("Config")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Bounds:
    """The range of a number, as part of a field's type.

    Attributes:
        low: the smallest value, or the value that it must exceed.
        high: the largest value; None where there is no upper bound.
        above: whether ``low`` itself is excluded.
    """

    low: float = 0.0
    high: float | None = None
    above: bool = False

    def problem(self, value: Any) -> str | None:
        """What is expected instead of ``value``; None where it lies within the bounds."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        if value < self.low or (self.above and value == self.low):
            return f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        if self.high is not None and value > self.high:
            return f"at most {self.high:g}"
        return None

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        return low if self.high is None else f"{low}, at most {self.high:g}"


Positive = Annotated[float, Bounds(above=True)]
NonNegative = Annotated[float, Bounds()]
Fraction = Annotated[float, Bounds(high=1)]
PositiveFraction = Annotated[float, Bounds(high=1, above=True)]
PositiveInt = Annotated[int, Bounds(above=True)]
NonNegativeInt = Annotated[int, Bounds()]


@dataclass(frozen=True)
class Setting:
    """One setting of a method, as it is seen from outside: by its flat name.

    Attributes:
        name: the flat name, unique within the method.
        path: the fields that lead to it, such as ``("student", "lr")``.
        type: its type without bounds.
        bounds: the range of a number; None where there is none.
        default: what it is unless given.
    """

    name: str
    path: tuple[str, ...]
    type: Any
    bounds: Bounds | None
    default: Any


def flat(name: str, default: Value) -> Value:
    """A field of a group that is known outside by another name, such as ``student_lr``.

    Args:
        name: the flat name: flag, recipe key and record key.
        default: the field's default.

    Returns:
        The dataclass field, typed as its value.
    """
    declared: Any = field(default=default, metadata={"flat": name})
    return declared  # type: ignore[no-any-return]


def coerce_settings(
    types_by_name: Mapping[str, Any], given: Mapping[str, Any], *, of: str
) -> dict[str, Any]:
    """Every given setting as its declared type; all that is wrong in one SettingsError."""
    values, problems = {}, []
    for name, value in given.items():
        if name not in types_by_name:
            close = get_close_matches(name, types_by_name, 1)
            meant = f": did you mean {close[0]}?" if close else ""
            problems.append(f"{name}: {of} has no such setting{meant}")
            continue
        if not can_be_set(types_by_name[name]):
            problems.append(explain_type(name, types_by_name[name]))
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
    """An instance of the dataclass ``config`` from settings by flat names, which may be text.

    Args:
        config: a dataclass of settings.
        given: values by flat name; what is missing keeps its default.
        of: what the settings belong to, for messages: ``"method dense"``.

    Raises:
        SettingsError: with every name that is unknown and every value that does not fit.
    """
    types_by_name = {name: setting.type for name, setting in settings_of(config).items()}
    values = coerce_settings(types_by_name, given, of=of)
    try:
        return config(**values)
    except ValueError as error:  # a dataclass that checks its own values in __post_init__
        raise SettingsError(f"Settings of {of} that do not fit:", problems=[str(error)]) from None


_SETTINGS: dict[type[Any], dict[str, Setting]] = {}


def settings_of(config: type[Any]) -> dict[str, Setting]:
    """The settings of a dataclass by flat name, in the order of its fields and of their groups."""
    if config in _SETTINGS:
        return _SETTINGS[config]
    by_name: dict[str, Setting] = {}
    for setting in _walk(config, (), MISSING):
        if setting.name in by_name:
            where = ".".join(by_name[setting.name].path), ".".join(setting.path)
            raise TypeError(
                f"{config.__name__}: {where[0]} and {where[1]} share the name {setting.name}"
            )
        by_name[setting.name] = setting
    _SETTINGS[config] = by_name
    return by_name


def _walk(config: type[Any], path: tuple[str, ...], group: Any) -> list[Setting]:
    hints = get_type_hints(config, include_extras=True)
    settings: list[Setting] = []
    for each in fields(config):
        if not each.init:
            continue
        default = _default(each) if group is MISSING else getattr(group, each.name)
        plain, bounds = _without_bounds(hints[each.name])
        if is_dataclass(plain):
            settings += _walk(plain, (*path, each.name), default)  # type: ignore[arg-type]
        else:
            name = each.metadata.get("flat", each.name)
            settings.append(Setting(name, (*path, each.name), plain, bounds, default))
    return settings


def _default(declared: Field[Any]) -> Any:
    made = declared.default_factory
    return declared.default if made is MISSING else made()


def _without_bounds(hint: Any) -> tuple[Any, Bounds | None]:
    """A type without its bounds, and these: ``Positive | None`` -> ``float | None``."""
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
        return kind, next((extra for extra in extras if isinstance(extra, Bounds)), None)
    if get_origin(hint) in (Union, types.UnionType):
        options = [_without_bounds(option) for option in get_args(hint)]
        bounds = next((bounds for _, bounds in options if bounds is not None), None)
        return Union[tuple(kind for kind, _ in options)], bounds  # noqa: UP007
    return hint, None


def flatten(config: Any) -> dict[str, Any]:
    """The values of a dataclass of settings by flat name: what a record keeps."""
    return {name: _value(config, setting) for name, setting in settings_of(type(config)).items()}


def _value(config: Any, setting: Setting) -> Any:
    value = config
    for name in setting.path:
        value = getattr(value, name)
    return value


def check_bounds(config: Any) -> None:
    """Check every number against the bounds of its field and every choice against its list.

    Raises:
        SettingsError: with all values that are out of range.
    """
    wrong = []
    for name, setting in settings_of(type(config)).items():
        value = _value(config, setting)
        if get_origin(setting.type) is Literal and value not in get_args(setting.type):
            expected = f"one of {', '.join(map(str, get_args(setting.type)))}"
            wrong.append(f"{name} = {value!r}: expected {expected}")
        elif setting.bounds is not None and (bound := setting.bounds.problem(value)):
            wrong.append(f"{name} = {value}: expected {bound}")
    if wrong:
        raise SettingsError(f"Settings of {type(config).__name__} out of range:", problems=wrong)


Presets = Callable[[Any], Mapping[str, Any]]


def settings(presets: Presets | None = None) -> Callable[[type[Config]], type[Config]]:
    """Decorate a frozen dataclass whose fields are settings.

    Its instances can be made with the flat names of settings in groups, their bounds are checked,
    and settings that were not given are what ``presets`` says. What was asked for stays, also where
    it is the default. ``dataclasses.replace`` gives every field, so it changes what it names and
    nothing else.

    Args:
        presets: from an instance without presets, whose bounds and choices are already checked, to
            the values of its variant by flat name; None where there are no variants.
    """

    def decorate(kind: type[Config]) -> type[Config]:
        plain = kind.__init__

        @wraps(plain)
        def make(self: Any, *values: Any, **named: Any) -> None:
            known = settings_of(kind)
            names = [each.name for each in fields(kind) if each.init]  # type: ignore[arg-type]
            given = dict(zip(names, values, strict=False)) | named
            plain(self, *values[len(names) :], **_grouped(kind, given))
            check_bounds(self)
            if presets is not None:
                chosen = presets(self)
                if unknown := chosen.keys() - known.keys():
                    raise TypeError(
                        f"presets of {kind.__name__} name no setting: {sorted(unknown)}"
                    )
                rest = {
                    name: value
                    for name, value in chosen.items()
                    if name not in given and known[name].path[0] not in given
                }
                if rest:
                    plain(self, **_grouped(kind, given | rest))
                    check_bounds(self)

        kind.__init__ = make  # type: ignore[method-assign]
        kind.__presets__ = presets  # type: ignore[attr-defined]
        return kind

    return decorate


def _grouped(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flat name as values of fields: those of a group as one instance of the group."""
    known = settings_of(kind)
    declared = {each.name: each for each in fields(kind)}
    values = {name: value for name, value in given.items() if name in declared or name not in known}
    for name, value in given.items():
        if name not in declared and name in known:
            first, *inner = known[name].path
            values[first] = _put(values.get(first, _default(declared[first])), inner, value)
    return values


def _put(group: Any, path: list[str], value: Any) -> Any:
    first, *inner = path
    return replace(group, **{first: _put(getattr(group, first), inner, value) if inner else value})


def filled_by_variant(config: Any) -> dict[str, Any]:
    """The settings that the variant of ``config`` decided, by flat name; for the record."""
    presets = getattr(type(config), "__presets__", None)
    if presets is None:
        return {}
    values = flatten(config)
    return {name: value for name, value in presets(config).items() if values[name] == value}


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
