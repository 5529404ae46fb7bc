"""Settings that arrive as text or from a file become typed values, or one error that names them
all.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from attar.errors import SettingsError
from attar.settings import (
    Fraction,
    NonNegativeInt,
    Positive,
    PositiveInt,
    can_be_set,
    coerce,
    coerce_settings,
    configure,
    filled_by_variant,
    flat,
    flatten,
    pairs,
    settings,
    settings_of,
)

HUGE = 10**400

GOOD = [
    ("4", int, 4), (4.0, int, 4), ("-3", int, -3), (HUGE, int, HUGE),
    ("0.5", float, 0.5), ("1e-3", float, 1e-3), (2, float, 2.0), ("2", float, 2.0),
    ("true", bool, True), ("Yes", bool, True), ("ON", bool, True), ("1", bool, True), (1, bool, True), (True, bool, True),
    ("false", bool, False), ("no", bool, False), ("Off", bool, False), ("0", bool, False), (0, bool, False),
    ("words", str, "words"), ("", str, ""), ("none", str, "none"),
    ("none", float | None, None), ("None", int | None, None), (None, str | None, None), ("3", float | None, 3.0),
    ("none", str | None, None),
    ("4", int | float, 4), ("4.5", int | float, 4.5), ("x", int | str, "x"), ("7", int | str, 7),
    ("b", Literal["a", "b"], "b"), ("2", Literal[1, 2], 2), (2, Literal[1, 2], 2), ("x", Literal["x"] | None, "x"),
    ("1,2, 3", tuple[int, ...], (1, 2, 3)), ([1, "2"], tuple[int, ...], (1, 2)), ((0.5,), tuple[float, ...], (0.5,)),
    ("a, b", tuple[str, ...], ("a", "b")), ([], tuple[int, ...], ()),
]  # fmt: skip


@pytest.mark.parametrize(("value", "to", "expected"), GOOD, ids=lambda item: str(item)[:30])
def test_coerce_takes_what_fits(value, to, expected):
    result = coerce(value, to)
    assert result == expected
    assert type(result) is type(expected)


BAD = [
    ("4.5", int, "a whole number"),
    (4.5, int, "a whole number"),
    ("four", int, "a whole number"),
    (True, int, "a whole number"),
    (None, int, "a whole number"),
    ([4], int, "a whole number"),
    ("", int, "a whole number"),
    (float("inf"), int, "a whole number"),
    (float("nan"), int, "a whole number"),
    ("9" * 5000, int, "a whole number"),
    ("nan", float, "a finite number"),
    ("inf", float, "a finite number"),
    ("x", float, "a finite number"),
    (True, float, "a finite number"),
    (None, float, "a finite number"),
    (HUGE, float, "a finite number"),
    ("maybe", bool, "true or false"),
    (2, bool, "true or false"),
    (None, bool, "true or false"),
    ("", bool, "true or false"),
    (3, str, "a text"),
    (None, str, "a text"),
    ("x", float | None, "a finite number or none"),
    ("x", int | float, "a whole number or a finite number"),
    ("c", Literal["a", "b"], "one of a, b"),
    (None, Literal["a"], "one of a"),
    ([], Literal["a"], "one of a"),
    ("1,x", tuple[int, ...], "a whole number"),
    (5, tuple[int, ...], "a list separated by commas"),
    ("", tuple[int, ...], "a whole number"),
]


@pytest.mark.parametrize(("value", "to", "reason"), BAD, ids=lambda item: str(item)[:30])
def test_coerce_refuses_with_what_was_expected(value, to, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        coerce(value, to)


def test_coerce_raises_type_error_for_other_types():
    with pytest.raises(TypeError, match="not supported"):
        coerce("x", bytes)


@pytest.mark.parametrize("to", [to for _, to, _ in GOOD], ids=str)
def test_can_be_set_of_types_of_settings(to):
    assert can_be_set(to)


@pytest.mark.parametrize(
    "to",
    [
        list,
        list[int],
        dict,
        object,
        bytes,
        tuple,
        tuple[int, int],
        tuple[list[int], ...],
        int | list[int],
        set[str] | None,
    ],
)
def test_can_be_set_of_other_types(to):
    assert not can_be_set(to)


def test_coerce_settings_says_how_to_declare_a_type():
    with pytest.raises(SettingsError) as caught:
        coerce_settings(
            {"widths": list[int], "lr": float}, {"widths": "3,4", "lr": "x"}, of="method mut"
        )
    widths, lr = caught.value.problems
    assert widths.startswith(
        "widths: text cannot become its type list[int]; declare it as bool, int, float, str, "
    )
    assert widths.endswith("(tuple[T, ...] in place of a list)")
    assert lr == "lr = 'x': expected a finite number"


@dataclass(frozen=True)
class Config:
    steps: int = 10
    lr: float = 0.1
    clip: float | None = None
    rule: Literal["mean", "max"] = "mean"
    fast: bool = False
    sizes: tuple[int, ...] = (1, 2)
    made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError("steps: at least 0")


def test_configure_from_text():
    given = {
        "steps": "3",
        "lr": "1e-2",
        "clip": "none",
        "rule": "max",
        "fast": "yes",
        "sizes": "4,5",
    }
    assert configure(Config, given, of="method x") == Config(3, 0.01, None, "max", True, (4, 5))
    assert configure(Config, {}, of="method x") == Config()


def test_configure_lists_all_problems():
    with pytest.raises(SettingsError) as caught:
        configure(
            Config,
            {"steps": "many", "lr": "inf", "rule": "median", "speed": 1, "made": 2, "fast": "true"},
            of="method x",
        )
    assert list(caught.value.problems) == [
        "steps = 'many': expected a whole number",
        "lr = 'inf': expected a finite number",
        "rule = 'median': expected one of mean, max",
        "speed: method x has no such setting",
        "made: method x has no such setting",
    ]
    text = str(caught.value)
    assert "Settings of method x" in text
    assert "steps, lr, clip, rule, fast, sizes" in text


def test_configure_turns_value_errors_into_settings_errors():
    with pytest.raises(SettingsError, match="steps: at least 0"):
        configure(Config, {"steps": "-1"}, of="method x")


def test_coerce_settings_without_any_setting():
    with pytest.raises(SettingsError, match="it has none"):
        coerce_settings({}, {"a": 1}, of="net x")


def test_pairs():
    assert pairs(["a=1", " b = x = y ", "c="]) == {"a": "1", "b": "x = y", "c": ""}
    assert pairs([]) == {}
    with pytest.raises(SettingsError) as caught:
        pairs(["a", "b=1", "=2"])
    assert list(caught.value.problems) == ["'a'", "'=2'"]
    assert caught.value.fix == "write each with its value, such as lr=0.1"


def test_pairs_refuses_a_name_given_twice():
    with pytest.raises(SettingsError, match="lr"):
        pairs(["lr=1", "steps=3", "lr=2"])


@dataclass(frozen=True)
class Learning:
    lr: Positive = flat("student_lr", 0.1)
    clip: Positive | None = None
    mode: Literal["plain", "fancy"] = "plain"


@settings(lambda given: {"fast": {"student_lr": 0.9, "epochs": 1}, "paper": {}}[given.variant])
@dataclass(frozen=True)
class Grouped:
    epochs: NonNegativeInt = 5
    batch: PositiveInt = 4
    student: Learning = Learning(lr=0.01)
    share: Fraction = 1.0
    variant: Literal["paper", "fast"] = "paper"


def test_settings_of_lists_groups_by_flat_names():
    assert list(settings_of(Grouped)) == [
        "epochs", "batch", "student_lr", "clip", "mode", "share", "variant",
    ]  # fmt: skip
    setting = settings_of(Grouped)["student_lr"]
    assert (setting.path, setting.default, str(setting.bounds)) == (
        ("student", "lr"),
        0.01,
        "above 0",
    )


def test_flatten_gives_the_values_by_flat_names():
    values = flatten(Grouped(student=Learning(lr=0.5, clip=2.0)))
    assert values == {
        "epochs": 5, "batch": 4, "student_lr": 0.5, "clip": 2.0, "mode": "plain", "share": 1.0,
        "variant": "paper",
    }  # fmt: skip


def test_settings_takes_flat_names_and_groups():
    assert Grouped(student_lr=0.5) == Grouped(student=Learning(lr=0.5))
    assert configure(Grouped, {"student_lr": "0.5"}, of="it") == Grouped(student_lr=0.5)
    assert Grouped(student=Learning(lr=0.5), clip=1.0).student == Learning(0.5, 1.0)
    assert replace(Grouped(batch=2), student_lr=0.5) == Grouped(batch=2, student_lr=0.5)
    with pytest.raises(TypeError, match="studnet_lr"):
        Grouped(studnet_lr=0.5)


def test_settings_checks_bounds_all_at_once():
    with pytest.raises(SettingsError) as caught:
        Grouped(batch=0, student_lr=-1.0, share=2.0, epochs=-1, mode="odd")
    assert list(caught.value.problems) == [
        "epochs = -1: expected 0 or more",
        "batch = 0: expected above 0",
        "student_lr = -1.0: expected above 0",
        "mode = 'odd': expected one of plain, fancy",
        "share = 2.0: expected at most 1",
    ]


def test_settings_lets_a_variant_fill_what_was_not_given():
    assert flatten(Grouped(variant="fast"))["student_lr"] == 0.9
    assert Grouped(variant="fast", student_lr=0.2).student.lr == 0.2
    assert Grouped(variant="fast", student=Learning(lr=0.01)).student.lr == 0.01
    assert Grouped(variant="fast", clip=1.0).student == Learning(0.9, 1.0)
    assert filled_by_variant(Grouped(variant="fast", student_lr=0.2)) == {"epochs": 1}
    assert filled_by_variant(Grouped()) == {}


def test_settings_refuses_an_unknown_variant_before_its_presets_are_asked():
    with pytest.raises(SettingsError) as raised:
        Grouped(variant="coed")  # type: ignore[arg-type]
    assert raised.value.problems == ("variant = 'coed': expected one of paper, fast",)


def test_settings_of_refuses_two_settings_of_one_name():
    @dataclass(frozen=True)
    class Twice:
        clip: float = 1.0
        student: Learning = Learning()

    with pytest.raises(TypeError, match="share the name clip"):
        settings_of(Twice)
