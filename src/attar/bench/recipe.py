"""A recipe: one published table as a TOML file, read and checked.

    title, source            what it repeats
    seeds                    [0, 1, 2]
    notes, missing           what a reader should know; what nobody has, in words
    defaults                 the release whose defaults hold for what is left out; "current": the code's
    extends                  another recipe beside this one: what it says holds where this one is silent, but for its numbers and notes
    [axes]                   name = [values], or a table of labels; the grid is their product
    [federation]             data, rule, clients, net, training ... (``Federation``); {axis} stands for its value
    [federation.groups.G]    clients that train in their own way
    [server]                 settings for every method that has them; one that no method has is refused
    [methods.LABEL]          method, set, student, output, groups, only, federation (``Row``)
    [published]              columns and rows: axes (and perhaps seed) say where, methods say what

An axis that bears the name of a key of the federation sets it. A value of an axis that is a
table replaces such keys, and its other entries are words that may be used like the axis itself:
``MNIST = { data = "mnist?size=32", net = "lenet5", preset = "mnist" }``.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from attar.bench.inherit import merged, recipe_name, recipe_tables
from attar.bench.releases import AS_IN_CODE, CURRENT, Release, find_release
from attar.errors import SettingsError
from attar.settings import Scalar, coerce_settings

_TOP = {"title", "source", "seeds", "notes", "missing", "defaults", "extends", "axes", "federation", "server", "methods",
        "published"}  # fmt: skip
_ROW = {
    "method",
    "set",
    "student",
    "output",
    "groups",
    "only",
    "federation",
    "missing",
    "curve",
    "start",
    "fid",
}
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:±\s*(\d+(?:\.\d+)?))?\s*$")

Labels = Mapping[str, str]  # axis -> the label of a value


@dataclass(frozen=True)
class Group:
    """Clients of a federation that train in one way; the same client may be in several groups,
    strong in one, weak in another.
    """

    clients: str = "all"  # as attar train --client has it
    net: str = "lenet5"
    preset: str = "auto"  # of a CVAE
    training: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Federation:
    """Who holds what and trains what."""

    data: str = "fashion-mini"
    rule: str = "dirichlet:0.3"
    clients: int = 5
    hold_out: float = 0.0
    public: str | None = (
        None  # data whose images, without labels, the server has; those held out unless given
    )
    min_size: int = 0
    least_share: float = 0.0  # of an equal share of the images: the fewest that a client may have
    leave_out: str | None = None  # a domain that no client gets
    tested_on: str = "test"  # the test part, or "left-out": the domain that no client saw
    start: str | None = None  # a model that all clients start from
    rounds: int = 1
    sample: float = 1.0  # share of the clients that take part in a round
    net: str = "lenet5"  # "start": the net of ``start``
    statistics: bool = False  # classifiers are sent with the statistics of their features
    training: Mapping[str, Scalar] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)

    def group(self, name: str) -> Group:
        return self.groups[name] if self.groups else Group("all", self.net, "auto", self.training)

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(self.groups) or ("clients",)


@dataclass(frozen=True)
class Published:
    """A number as printed, and its deviation where there is one."""

    value: float
    deviation: float | None = None

    @classmethod
    def parse(cls, text: object) -> "Published":
        match = _NUMBER.match(str(text))
        if match is None:
            raise ValueError(f"{text!r} is neither a number nor number±deviation")
        return cls(float(match[1]), None if match[2] is None else float(match[2]))


@dataclass(frozen=True)
class Row:
    """One method of the table with its settings."""

    label: str
    method: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    student: str | None = None
    output: str | None = (
        None  # the model of the result that the table is about; the headline unless given
    )
    groups: tuple[str, ...] = ()  # whose uploads; empty: those of all groups
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    federation: Mapping[str, Any] = field(default_factory=dict)  # what this row has otherwise
    missing: tuple[str, ...] = ()
    curve: int = 20  # points of the accuracy curve
    start: str | None = (
        # of the student: "average" (of the clients), "start" (of the federation), or a model's path
        None
    )
    fid: str | None = (
        None  # an Inception file: the distance of the decoders' images to real ones goes on record
    )

    def applies(self, labels: Labels) -> bool:
        return all(labels[axis] in wanted for axis, wanted in self.only.items())


@dataclass(frozen=True)
class Point:
    """One place of the grid: a label for each axis, and what a row is there."""

    labels: Labels
    federation: Federation
    settings: Mapping[str, Scalar]
    student: str | None
    after: int | None = (
        None  # the round whose accuracy the table wants, of the same run; the last unless given
    )

    def __post_init__(self) -> None:
        if self.after is not None and not 1 <= self.after <= self.federation.rounds != 1:
            fix = "name one of several rounds"
            raise SettingsError(
                f"after is {self.after}, with {self.federation.rounds} in rounds.", fix=fix
            )


@dataclass(frozen=True)
class Recipe:
    """A published table as it can be run."""

    name: str  # coboosting/table1
    title: str
    source: str
    seeds: tuple[int, ...]
    axes: Mapping[str, Mapping[str, Any]]  # axis -> label -> value
    federation: Mapping[str, Any]
    server: Mapping[str, Scalar]
    rows: tuple[Row, ...]
    published: tuple[tuple[Labels, int | None, str, Published], ...]  # where, seed, row, number
    notes: str = ""
    missing: tuple[str, ...] = ()
    defaults: Release = AS_IN_CODE

    @property
    def per_seed(self) -> bool:
        return any(seed is not None for _, seed, _, _ in self.published)

    def points(self, row: Row) -> Iterator[Point]:
        """The places of the grid where ``row`` has a cell."""
        for values in itertools.product(*(axis.items() for axis in self.axes.values())):
            chosen = dict(zip(self.axes, values, strict=True))
            labels = {axis: label for axis, (label, _) in chosen.items()}
            if row.applies(labels):
                yield self._point(row, labels, {axis: value for axis, (_, value) in chosen.items()})

    def published_for(self, row: Row, labels: Labels, seed: int | None) -> Published | None:
        for where, of_seed, label, number in self.published:
            if (
                label == row.label
                and of_seed == seed
                and all(labels[axis] == value for axis, value in where.items())
            ):
                return number
        return None

    def _point(self, row: Row, labels: Labels, values: Mapping[str, Any]) -> Point:
        keys = {*(one.name for one in fields(Federation)), "after"}
        whole: dict[str, Any] = dict(self.federation)
        words: dict[str, Scalar] = dict(labels)
        for axis, value in values.items():
            if not isinstance(value, dict):
                words[axis] = value
                whole |= {axis: value} if axis in keys else {}
                continue
            whole = merged(whole, {key: inside for key, inside in value.items() if key in keys})
            words |= {key: inside for key, inside in value.items() if key not in keys}
        filled = _filled(merged(whole, row.federation), words)
        settings, student = _filled(dict(row.settings), words), _filled(row.student, words)
        if unknown := dict.fromkeys(
            [*_unfilled(filled), *_unfilled(settings), *_unfilled(student)]
        ):
            known = f"there are {', '.join(words)}" if words else "the recipe has no axes"
            problems = [
                f"methods.{row.label}: {{{name}}} stands for nothing; {known}" for name in unknown
            ]
            raise SettingsError(f"Placeholders of recipe {self.name}:", problems=problems)
        read = coerce_settings(
            {"after": int | None}, {"after": filled.pop("after", None)}, of=f"recipe {self.name}"
        )
        federation = _as_federation(filled, f"recipe {self.name}", self.defaults)
        return Point(labels, federation, settings, student, **read)


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file; everything that is wrong with it in one error."""
    return parse_recipe(recipe_tables(path), recipe_name(path))


def parse_recipe(tables: Mapping[str, Any], name: str) -> Recipe:
    problems = [f"{key}: a recipe has no such entry" for key in tables if key not in _TOP]
    problems += [f"{key} is missing" for key in ("title", "source", "methods") if key not in tables]
    axes, axis_problems = _axes(tables.get("axes", {}))
    rows, row_problems = _rows(tables.get("methods", {}), axes)
    published, number_problems = _published(tables.get("published", {}), axes, rows)
    seeds = tables.get("seeds", [0])
    if (
        not isinstance(seeds, list)
        or not seeds
        or not all(isinstance(seed, int) and seed >= 0 for seed in seeds)
    ):
        problems.append(f"seeds = {seeds!r}: expected a list of whole numbers from 0")
    problems += axis_problems + row_problems + number_problems
    missing = tables.get("missing", [])
    try:
        defaults = find_release(str(tables.get("defaults", CURRENT)))
    except SettingsError as error:
        problems.append(f"defaults: {error.what} ({error.fix})")
        defaults = AS_IN_CODE
    recipe = Recipe(
        name,
        str(tables.get("title", name)),
        str(tables.get("source", "")),
        tuple(seeds) if isinstance(seeds, list) else (0,),
        axes,
        dict(tables.get("federation", {})),
        dict(tables.get("server", {})),
        rows,
        published,
        str(tables.get("notes", "")),
        tuple(map(str, missing)) if isinstance(missing, list) else (str(missing),),
        defaults,
    )
    if not problems:
        for row in rows:
            try:
                for point in recipe.points(row):
                    unknown = [
                        group for group in row.groups if group not in point.federation.groups
                    ]
                    problems += [
                        f"methods.{row.label}: there is no group {group!r}" for group in unknown
                    ]
            except SettingsError as error:
                problems += error.problems or (error.what,)
    if problems:
        raise SettingsError(
            f"The recipe {name} cannot be used:",
            problems=dict.fromkeys(problems),
            fix="see docs/recipes.md",
        )
    return recipe


def with_seeds(recipe: Recipe, count: int | None) -> Recipe:
    """The first ``count`` seeds; as many more as are missing follow the last."""
    if count is None:
        return recipe
    if count < 1:
        raise SettingsError(f"--seeds {count}: expected a number from 1")
    more = range(max(recipe.seeds) + 1, max(recipe.seeds) + 1 + count)
    return replace(recipe, seeds=tuple([*recipe.seeds, *more][:count]))


def _axes(given: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
    axes: dict[str, dict[str, Any]] = {}
    problems = []
    for name, values in dict(given).items():
        if isinstance(values, list) and values:
            axes[name] = {str(value): value for value in values}
        elif isinstance(values, dict) and values:
            axes[name] = {str(label): value for label, value in values.items()}
        else:
            problems.append(f"axes.{name}: expected a list of values, or a table of labels")
        if name in ("method", "seed"):
            problems.append(f"axes.{name}: the rows and seeds are no axes")
    return axes, problems


def _rows(given: Any, axes: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[Row, ...], list[str]]:
    rows, problems = [], []
    for label, entry in dict(given).items():
        if not isinstance(entry, dict) or "method" not in entry:
            problems.append(f'methods.{label}: expected a table with method = "..."')
            continue
        problems += [
            f"methods.{label}.{key}: a row has no such entry" for key in entry if key not in _ROW
        ]
        only = {
            axis: tuple(map(str, _listed(values))) for axis, values in entry.get("only", {}).items()
        }
        for axis, values in only.items():
            unknown = [value for value in values if value not in axes.get(axis, {})]
            problems += [
                f"methods.{label}.only: axis {axis!r} has no value {value!r}" for value in unknown
            ]
        rows.append(
            Row(
                str(label),
                str(entry["method"]),
                dict(entry.get("set", {})),
                entry.get("student"),
                entry.get("output"),
                tuple(entry.get("groups", ())),
                only,
                dict(entry.get("federation", {})),
                tuple(map(str, _listed(entry.get("missing", ())))),
                int(entry.get("curve", 20)),
                entry.get("start"),
                entry.get("fid"),
            )
        )
    if not rows and not problems:
        problems.append("methods: there is none")
    return tuple(rows), problems


def _published(
    given: Any, axes: Mapping[str, Mapping[str, Any]], rows: Sequence[Row]
) -> tuple[tuple[tuple[Labels, int | None, str, Published], ...], list[str]]:
    found: list[tuple[Labels, int | None, str, Published]] = []
    problems = []
    columns, lines = list(given.get("columns", [])), list(given.get("rows", []))
    known = {row.label for row in rows}
    problems += [f"published.columns: {name!r} is no axis, no method and not seed" for name in columns
                 if name not in axes and name not in known and name != "seed"]  # fmt: skip
    for number, line in enumerate(lines, 1):
        if len(line) != len(columns):
            problems.append(
                f"published.rows, line {number}: {len(line)} entries for {len(columns)} columns"
            )
            continue
        entries = dict(zip(columns, line, strict=True))
        where = {name: str(value) for name, value in entries.items() if name in axes}
        problems += [f"published.rows, line {number}: axis {axis!r} has no value {value!r}"
                     for axis, value in where.items() if value not in axes[axis]]  # fmt: skip
        for name, value in entries.items():
            if name not in known or value == "":  # an empty text: the paper has no number there
                continue
            try:
                found.append((where, entries.get("seed"), name, Published.parse(value)))
            except ValueError as error:
                problems.append(f"published.rows, line {number}: {error}")
    return tuple(found), problems


def _as_federation(given: Mapping[str, Any], of: str, defaults: Release) -> Federation:
    kinds = {"data": str, "rule": str, "clients": int, "hold_out": float, "public": str | None, "min_size": int, "least_share": float,
             "leave_out": str | None, "tested_on": str, "start": str | None, "rounds": int, "sample": float, "net": str,
             "statistics": bool}  # fmt: skip
    plain = coerce_settings(
        kinds, {k: v for k, v in given.items() if k not in ("training", "groups")}, of=of
    )
    groups = {}
    for name, entry in dict(given.get("groups", {})).items():
        own = coerce_settings(
            {"clients": str, "net": str, "preset": str, "training": dict},
            _texts(entry),
            of=f"group {name}",
        )
        training = dict(entry.get("training", given.get("training", {})))
        groups[name] = Group(**{**defaults.section("group"), **own, "training": training})
    own = {**plain, "training": dict(given.get("training", {})), "groups": groups}
    return Federation(**{**defaults.section("federation"), **own})


def _texts(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "training"}


def _filled(value: Any, words: Mapping[str, Scalar]) -> Any:
    """``"classes:{C}"`` with the value of axis C put in; ``"{C}"`` alone becomes that value
    itself, a number where it is one.
    """
    if isinstance(value, str):
        for name, word in words.items():
            if value == f"{{{name}}}":
                return word
            value = value.replace(f"{{{name}}}", str(word))
        return value
    if isinstance(value, dict):
        return {key: _filled(inside, words) for key, inside in value.items()}
    return value


def _unfilled(value: Any) -> list[str]:
    """The placeholders for which there was no word."""
    if isinstance(value, dict):
        return [name for inside in value.values() for name in _unfilled(inside)]
    return _PLACEHOLDER.findall(value) if isinstance(value, str) else []


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
