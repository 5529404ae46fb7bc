"""A queue: cells of several recipes in the order of their value, run as machine time comes.

A queue is a TOML file:

    records = ["../results"]   folders beside it whose records count as well
    precision = "tf32"         for entries that name none
    [[entry]]                  the first is worth most
    recipe = "a/table1.toml"   beside the queue
    why = "..."                one line
    only = ["alpha=0.1"]       as `attar bench --only`; all cells unless given
    seeds = [0, 1, 2]          or 3, the first three; the recipe's unless given
    set, train                 tables, as `--set` and `--train`
    precision, compile         as the flags
    seconds                    expected for a cell, where no record says better
    training_seconds           expected for the training of a set of clients, likewise
    resume = false             start a cell only where all of it fits into the time left
"""

import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from attar.bench.cells import Cell
from attar.bench.grid import cells_of, parse_filters
from attar.bench.inherit import recipe_name, recipe_tables, with_settings
from attar.bench.parse import parse_recipe
from attar.bench.recipe import Recipe, with_seeds
from attar.blocks.execution import Precision
from attar.errors import AttarError, SettingsError
from attar.internal.files import write_atomic
from attar.settings import Scalar

TOP_KEYS = {"records", "precision", "entry"}
ENTRY_TYPES: Mapping[str, tuple[type, ...]] = {
    "recipe": (str,), "why": (str,), "only": (list,), "seeds": (int, list), "set": (dict,),
    "train": (dict,), "precision": (str,), "compile": (bool,), "seconds": (int, float),
    "training_seconds": (int, float), "resume": (bool,),
}  # fmt: skip


@dataclass(frozen=True)
class QueueEntry:
    """Some cells of a recipe.

    Attributes:
        recipe: The recipe's file.
        why: Why these cells stand here.
        only: Which cells; empty: all.
        seeds: So many first ones, or these; None: the recipe's.
        settings: Settings of methods in place of the recipe's.
        training: Settings of local training in place of the recipe's.
        precision: The precision of training and fusion.
        compile: Whether nets are compiled on a GPU.
        seconds: Expected for a cell; None: from records or an estimate.
        training_seconds: The same for the training of a set of clients.
        resume: Whether a cell may be begun where it does not fit into the time left.
    """

    recipe: Path
    why: str = ""
    only: tuple[str, ...] = ()
    seeds: int | tuple[int, ...] | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    training: Mapping[str, Scalar] = field(default_factory=dict)
    precision: Precision = "fp32"
    compile: bool = False
    seconds: float | None = None
    training_seconds: float | None = None
    resume: bool = True

    @property
    def title(self) -> str:
        """The recipe, and which of its cells: ``a/table1: alpha 0.1, 0.3; DENSE; seeds 0 to 2``."""
        values: dict[str, list[str]] = {}
        for text in self.only:
            key, _, value = text.partition("=")
            values.setdefault(key, []).append(value)
        words = [
            f"{'' if key == 'method' else f'{key} '}{', '.join(named)}"
            for key, named in values.items()
        ]
        words += [f"{key}={value}" for key, value in {**self.settings, **self.training}.items()]
        words += [] if self.seeds is None else [f"seeds {self._seeds_in_words()}"]
        return f"{recipe_name(self.recipe)}: {'; '.join(words) or 'all'}"

    def _seeds_in_words(self) -> str:
        if isinstance(self.seeds, int):
            return "0" if self.seeds == 1 else f"0 to {self.seeds - 1}"
        return " ".join(map(str, self.seeds or ()))

    def read_recipe(self) -> Recipe:
        """The recipe with the entry's settings and seeds.

        Raises:
            SettingsError: The recipe cannot be read, or takes no such setting.
        """
        tables = with_settings(recipe_tables(self.recipe), self.settings, self.training)
        recipe = parse_recipe(tables, recipe_name(self.recipe))
        if isinstance(self.seeds, tuple):
            return replace(recipe, seeds=self.seeds)
        return with_seeds(recipe, self.seeds)

    def cells(self) -> list[Cell]:
        """The entry's cells in the order in which they run.

        Raises:
            SettingsError: The recipe cannot be read, or has no such cell.
        """
        recipe = self.read_recipe()
        cells = cells_of(recipe, self.precision, parse_filters([recipe], self.only))
        if not cells:
            raise SettingsError(
                f"No cell of {recipe.name} is {', '.join(self.only)}.",
                fix="a row may be limited to some places of the grid (only, in the recipe)",
            )
        return [replace(cell, compile=self.compile) for cell in cells]


@dataclass(frozen=True)
class Queue:
    """What is to run, the most valuable first.

    Attributes:
        path: The queue's file.
        entries: The entries in their order.
        records: Folders whose records count beside those of the bench.
    """

    path: Path
    entries: tuple[QueueEntry, ...]
    records: tuple[Path, ...] = ()

    def tables(self) -> dict[str, dict[str, Any]]:
        """The TOML tables of each recipe of the queue, by its name.

        Raises:
            SettingsError: One cannot be read.
        """
        files = dict.fromkeys(entry.recipe for entry in self.entries)
        return {recipe_name(file): recipe_tables(file) for file in files}

    def recipes(self) -> list[Recipe]:
        """Each recipe of the queue once, as its file has it.

        Raises:
            SettingsError: One cannot be read.
        """
        return [parse_recipe(tables, name) for name, tables in self.tables().items()]

    def cells(self) -> list[list[Cell]]:
        """The cells of each entry.

        Raises:
            SettingsError: Lists every entry whose cells cannot be made.
        """
        cells: list[list[Cell]] = []
        problems: list[str] = []
        for number, entry in enumerate(self.entries, 1):
            try:
                cells.append(entry.cells())
            except AttarError as error:
                details = "; ".join(error.problems or ())
                problems.append(f"entry {number}, {entry.title}: {error.what} {details}".strip())
        if problems:
            raise SettingsError(f"Entries of {self.path} cannot be run:", problems=problems)
        return cells


def read_queue(path: Path) -> Queue:
    """Read a queue.

    Raises:
        SettingsError: Lists everything that is wrong with the file.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError(
            f"There is no queue {path}.", fix="name a .toml file, such as recipes/queue.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise SettingsError(f"{path} is no TOML file: {error}") from None
    problems = [f"{key}: a queue has no such entry" for key in tables if key not in TOP_KEYS]
    listed = tables.get("entry", [])
    if not isinstance(listed, list) or not listed:
        problems.append("there is no [[entry]]")
        listed = []
    precision = tables.get("precision", "fp32")
    entries = []
    for number, table in enumerate(listed, 1):
        found = _entry_problems({"precision": precision, **table})
        problems += [f"entry {number}: {problem}" for problem in found]
        if not found:
            entries.append(_make_entry({"precision": precision, **table}, path.parent))
    if problems:
        raise SettingsError(
            f"The queue {path} cannot be used:", problems=problems, fix="see docs/bench.md"
        )
    records = tuple(path.parent / str(folder) for folder in tables.get("records", []))
    return Queue(path, tuple(entries), records)


def _entry_problems(table: Mapping[str, Any]) -> list[str]:
    problems = [f"{key}: an entry has no such key" for key in table if key not in ENTRY_TYPES]
    problems += [
        f"{key} = {value!r}: expected {' or '.join(kind.__name__ for kind in kinds)}"
        for key, value in table.items()
        if (kinds := ENTRY_TYPES.get(key)) is not None and not _is_one_of(value, kinds)
    ]
    problems += [f"{key} is missing" for key in ("recipe", "why") if key not in table]
    if table["precision"] not in get_args(Precision):
        problems.append(f"precision: one of {', '.join(get_args(Precision))}")
    for key in ("seconds", "training_seconds"):
        if isinstance(table.get(key), int | float) and table[key] <= 0:
            problems.append(f"{key} = {table[key]}: expected a number above 0")
    return problems


def _is_one_of(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether a value has one of these types; true and false are no numbers."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _make_entry(table: Mapping[str, Any], home: Path) -> QueueEntry:
    seeds = table.get("seeds")
    return QueueEntry(
        recipe=home / table["recipe"],
        why=table["why"],
        only=tuple(map(str, table.get("only", ()))),
        seeds=tuple(seeds) if isinstance(seeds, list) else seeds,
        settings=table.get("set", {}),
        training=table.get("train", {}),
        precision=table["precision"],
        compile=table.get("compile", False),
        seconds=table.get("seconds"),
        training_seconds=table.get("training_seconds"),
        resume=table.get("resume", True),
    )


class Ledger:
    """How far every cell and every training is, over all pieces of machine time.

    It is a small file in the bench's folder, which is copied with it.

    Args:
        out: The bench's folder.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / "queue.json"
        self._work: dict[str, dict[str, float]] = {}
        with suppress(OSError, ValueError, KeyError):  # what it says helps the plan alone
            self._work = json.loads(self._path.read_text())["work"]

    def add(self, key: str, seconds: float, share: float) -> None:
        """Note that work on a cell or a set of clients ended, for now or for good.

        Args:
            key: Of the cell or the set.
            seconds: The time that it took this time.
            share: How much of the whole is done.
        """
        total = self.seconds(key) + seconds
        self._work[key] = {"seconds": round(total, 3), "share": round(share, 4)}
        write_atomic(self._path, json.dumps({"work": self._work}, indent=1) + "\n")

    def seconds(self, key: str) -> float:
        """The time that was spent on a cell or a set of clients."""
        return self._work.get(key, {}).get("seconds", 0.0)

    def share(self, key: str) -> float:
        """How much of a cell or of a training is done, 0 to 1."""
        return self._work.get(key, {}).get("share", 0.0)
