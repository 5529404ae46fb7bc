"""Reads and checks a recipe, which is one published table as a TOML file.

    title, source            what it repeats
    seeds                    [0, 1, 2]
    notes, missing           what a reader should know; what nobody has, in words
    defaults                 the release whose defaults hold for what is left out; "current": the
                             code's
    extends                  another recipe beside this one: what it says holds where this one is
                             silent, but for its numbers and notes
    [axes]                   name = [values], or a table of labels; the grid is their product
    [federation]             data, rule, clients, net, training ... (``Federation``); {axis} stands
                             for its value
    [federation.groups.G]    clients that train in their own way
    [server]                 settings for every method that has them; one that no method has is
                             refused
    [methods.LABEL]          method, set, student, output, groups, only, federation (``Row``)
    [published]              columns and rows: axes (and perhaps seed) say where, methods say what

An axis that bears the name of a key of the federation sets it. A value of an axis that is a
table replaces such keys, and its other entries are words that may be used like the axis itself:
``MNIST = { data = "mnist?size=32", net = "lenet5", preset = "mnist" }``.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attar.bench.inherit import recipe_name, recipe_tables
from attar.bench.recipe import Published, PublishedNumber, Recipe, Row
from attar.bench.releases import AS_IN_CODE, CURRENT, Release, find_release
from attar.errors import SettingsError

TOP_KEYS = {"title", "source", "seeds", "notes", "missing", "defaults", "extends", "axes",
            "federation", "server", "methods", "published"}  # fmt: skip
REQUIRED_KEYS = ("title", "source", "methods")
ROW_KEYS = {"method", "set", "student", "output", "groups", "only", "federation", "missing",
            "curve", "start", "fid"}  # fmt: skip

Axes = Mapping[str, Mapping[str, Any]]


def read_recipe(path: Path) -> Recipe:
    """Read a recipe and those that it extends.

    Raises:
        SettingsError: Lists everything that is wrong with it.
    """
    return parse_recipe(recipe_tables(path), recipe_name(path))


def parse_recipe(tables: Mapping[str, Any], name: str) -> Recipe:
    """Make a recipe of its TOML tables.

    Args:
        tables: The entries of the file, merged with those of the recipes that it extends.
        name: What the recipe is called.

    Raises:
        SettingsError: Lists everything that is wrong with it.
    """
    problems = [f"{key}: a recipe has no such entry" for key in tables if key not in TOP_KEYS]
    problems += [f"{key} is missing" for key in REQUIRED_KEYS if key not in tables]
    axes, axis_problems = _parse_axes(tables.get("axes", {}))
    rows, row_problems = _parse_rows(tables.get("methods", {}), axes)
    published, number_problems = _parse_published(tables.get("published", {}), axes, rows)
    seeds, seed_problems = _parse_seeds(tables.get("seeds", [0]))
    problems += [*seed_problems, *axis_problems, *row_problems, *number_problems]
    defaults, default_problems = _parse_defaults(tables.get("defaults", CURRENT))
    problems += default_problems
    recipe = Recipe(
        name=name,
        title=str(tables.get("title", name)),
        source=str(tables.get("source", "")),
        seeds=seeds,
        axes=axes,
        federation=dict(tables.get("federation", {})),
        server=dict(tables.get("server", {})),
        rows=rows,
        published=published,
        notes=str(tables.get("notes", "")),
        missing=_parse_missing(tables.get("missing", [])),
        defaults=defaults,
    )
    problems = problems or _point_problems(recipe)
    if problems:
        raise SettingsError(
            f"The recipe {name} cannot be used:",
            problems=dict.fromkeys(problems),
            fix="see docs/recipes.md",
        )
    return recipe


def _parse_seeds(value: Any) -> tuple[tuple[int, ...], list[str]]:
    problems = []
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(seed, int) and seed >= 0 for seed in value)
    ):
        problems.append(f"seeds = {value!r}: expected a list of whole numbers from 0")
    return tuple(value) if isinstance(value, list) else (0,), problems


def _parse_defaults(value: Any) -> tuple[Release, list[str]]:
    try:
        return find_release(str(value)), []
    except SettingsError as error:
        return AS_IN_CODE, [f"defaults: {error.what} ({error.fix})"]


def _parse_missing(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _parse_axes(table: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
    axes: dict[str, dict[str, Any]] = {}
    problems = []
    for name, values in dict(table).items():
        if isinstance(values, list) and values:
            axes[name] = {str(value): value for value in values}
        elif isinstance(values, dict) and values:
            axes[name] = {str(label): value for label, value in values.items()}
        else:
            problems.append(f"axes.{name}: expected a list of values, or a table of labels")
        if name in ("method", "seed"):
            problems.append(f"axes.{name}: the rows and seeds are no axes")
    return axes, problems


def _parse_rows(table: Any, axes: Axes) -> tuple[tuple[Row, ...], list[str]]:
    rows: list[Row] = []
    problems: list[str] = []
    for label, entry in dict(table).items():
        if not isinstance(entry, dict) or "method" not in entry:
            problems.append(f'methods.{label}: expected a table with method = "..."')
            continue
        problems += [
            f"methods.{label}.{key}: a row has no such entry"
            for key in entry
            if key not in ROW_KEYS
        ]
        row = _parse_row(str(label), entry)
        problems += [
            f"methods.{label}.only: axis {axis!r} has no value {value!r}"
            for axis, values in row.only.items()
            for value in values
            if value not in axes.get(axis, {})
        ]
        rows.append(row)
    if not rows and not problems:
        problems.append("methods: there is none")
    return tuple(rows), problems


def _parse_row(label: str, entry: Mapping[str, Any]) -> Row:
    only = entry.get("only", {})
    return Row(
        label=label,
        method=str(entry["method"]),
        settings=dict(entry.get("set", {})),
        student=entry.get("student"),
        output=entry.get("output"),
        groups=tuple(entry.get("groups", ())),
        only={axis: tuple(map(str, _as_list(values))) for axis, values in only.items()},
        federation=dict(entry.get("federation", {})),
        missing=tuple(map(str, _as_list(entry.get("missing", ())))),
        curve=int(entry.get("curve", 20)),
        start=entry.get("start"),
        fid=entry.get("fid"),
    )


def _parse_published(
    table: Any, axes: Axes, rows: Sequence[Row]
) -> tuple[tuple[PublishedNumber, ...], list[str]]:
    columns = list(table.get("columns", []))
    labels = {row.label for row in rows}
    problems = [
        f"published.columns: {name!r} is no axis, no method and not seed"
        for name in columns
        if name not in axes and name not in labels and name != "seed"
    ]
    numbers: list[PublishedNumber] = []
    for count, line in enumerate(table.get("rows", []), 1):
        where = f"published.rows, line {count}"
        if len(line) != len(columns):
            problems.append(f"{where}: {len(line)} entries for {len(columns)} columns")
            continue
        entries = dict(zip(columns, line, strict=True))
        place = {name: str(value) for name, value in entries.items() if name in axes}
        problems += [
            f"{where}: axis {axis!r} has no value {value!r}"
            for axis, value in place.items()
            if value not in axes[axis]
        ]
        for name, value in entries.items():
            if name not in labels or value == "":  # an empty text: the paper has no number there
                continue
            try:
                number = Published.parse(value)
            except ValueError as error:
                problems.append(f"{where}: {error}")
            else:
                numbers.append(PublishedNumber(place, entries.get("seed"), name, number))
    return tuple(numbers), problems


def _point_problems(recipe: Recipe) -> list[str]:
    """What is wrong at the places of the grid, once axes and rows are known to be right."""
    problems: list[str] = []
    for row in recipe.rows:
        try:
            for point in recipe.points(row):
                problems += [
                    f"methods.{row.label}: there is no group {group!r}"
                    for group in _missing_groups(row.groups, point.federation.groups)
                ]
        except SettingsError as error:
            problems += error.problems or (error.what,)
    return problems


def _missing_groups(names: Iterable[str], groups: Mapping[str, Any]) -> list[str]:
    return [name for name in names if name not in groups]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
