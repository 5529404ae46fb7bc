"""Verbs about evidence: run a recipe, show what came out."""

import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from json import dumps as to_json
from json import loads as from_json
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from attar.bench import (
    FIRST,
    Cell,
    Costs,
    EngineName,
    Recipe,
    Record,
    as_csv,
    cells_of,
    check_settings,
    name_of_code,
    open_engine,
    pack_records,
    parse_recipe,
    read_recipe,
    read_records,
    recipe_name,
    recipe_tables,
    run_bench,
    table_of,
    with_seeds,
    with_settings,
)
from attar.bench import BenchResult as Tally
from attar.bench import TensorBoardWriter as Board
from attar.bench import find_finished as finished
from attar.bench import find_outdated as outdated
from attar.bench import parse_filters as wanted_of
from attar.bench import unique_runs as named_by_headline
from attar.blocks.execution import Precision
from attar.cli.app import Device, Json, app
from attar.cli.arguments import parse_device
from attar.cli.output import console
from attar.cli.output.bench import show_plan, show_results, told_again
from attar.errors import DataError, RunError
from attar.internal.files import write_atomic
from attar.report import write_report
from attar.settings import Scalar, pairs


@app.command
def bench(
    recipes: Positional[tuple[Path, ...]],
    /,
    *,
    only: Annotated[
        UseAppendAction[tuple[str, ...]], arg(help="key=value: an axis, method=LABEL or seed=N.")
    ] = (),
    seeds: Annotated[int | None, arg(help="The first so many seeds.")] = None,
    engine: Annotated[
        EngineName, arg(help="inline, processes on this machine, or a Ray cluster.")
    ] = "inline",
    workers: Annotated[
        int | None, arg(help="Jobs at once; the cores unless given, 2 on a GPU.")
    ] = None,
    threads: Annotated[int, arg(help="CPU threads of a job; sums depend on it.")] = 1,
    ray_address: Annotated[
        str | None, arg(help="A Ray cluster; one is started here unless given.")
    ] = None,
    settings: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(name="set", help="key=value for every method that has it, in place of the recipe's."),
    ] = (),
    train: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="key=value for the classifiers' local training, such as epochs=20."),
    ] = (),
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Annotated[
        bool, arg(help="On CUDA: compile the nets, up to a minute a cell for faster steps.")
    ] = False,
    out: Annotated[Path, arg(help="Clients, runs, records, tables and the report.")] = Path(
        "bench"
    ),
    seconds: Annotated[
        float | None, arg(help="End in time; the same command goes on from there.")
    ] = None,
    keep_runs: Annotated[bool, arg(help="Keep the fused models.")] = False,
    tensorboard: Annotated[Path | None, arg(help="A folder for TensorBoard's event files.")] = None,
    dry_run: Annotated[
        bool,
        arg(help="Only show the plan and what it would cost, also on --device cuda without one."),
    ] = False,
    json: Json = False,
) -> None:
    """Run recipes: every cell that has no record yet. Killed, the same command goes on from there."""
    place = parse_device(device, here=not dry_run)
    if not recipes:
        raise DataError("No recipe is named.", fix="for example recipes/smoke.toml")
    tables = {
        recipe_name(path): with_settings(
            recipe_tables(path), _as_in_toml(settings), _as_in_toml(train)
        )
        for path in recipes
    }
    chosen = [with_seeds(parse_recipe(table, name), seeds) for name, table in tables.items()]
    wanted = wanted_of(chosen, only)
    planned = [cell for recipe in chosen for cell in cells_of(recipe, precision, wanted)]
    cells = {
        key: replace(cell, compile=compile) for key, cell in named_by_headline(planned).items()
    }
    check_settings(cells.values())
    before = read_records(out) if out.exists() else []
    costs = Costs(place, before)
    done = {key: cell for key, cell in cells.items() if finished(out, cell)}
    again = {
        key: reasons
        for key, cell in cells.items()
        if key not in done and (reasons := outdated(out, cell))
    }
    if dry_run:
        show_plan(chosen, list(cells.values()), list(done.values()), again, costs, out, json=json)
        return
    if cells and not done and all(cell.missing for cell in cells.values()):
        raise _nothing_to_run(chosen, cells.values())
    for told in () if json else told_again(again):
        console.note(told)
    board = None if tensorboard is None else Board(tensorboard)
    for name, table in tables.items():  # the folder says by itself what it is about
        asked = {"defaults": name_of_code(), **table}
        write_atomic(out / "recipes" / f"{name}.json", to_json(asked, indent=1) + "\n")
    at_once = workers or (2 if place.startswith("cuda") else os.cpu_count() or 1)
    with console.progress(f"bench, {engine}", quiet=json) as watch:
        tally = run_bench(
            list(cells.values()),
            out,
            open_engine(engine, at_once, ray_address),
            device=place,
            threads=threads,
            seconds=seconds,
            keep_runs=keep_runs,
            watch=watch,
            on_record=_teller(board, quiet=json),
            costs=costs,
        )
    _conclude(chosen, tally, out, json=json)


def _nothing_to_run(recipes: Sequence[Recipe], cells: Iterable[Cell]) -> RunError:
    """No cell has what it needs, and no number is there from before: data may lie on another
    machine, or a name is misspelt.
    """
    lacking = Counter(reason for cell in cells for reason in dict.fromkeys(cell.missing))
    return RunError(
        f"No cell of {', '.join(recipe.name for recipe in recipes)} can run here. What is missing:",
        problems=[
            f"{reason}, in {count} cell{'' if count == 1 else 's'}"
            for reason, count in lacking.items()
        ],
        fix="`attar ls data`, `attar ls methods` and `attar ls nets` say what is here; docs/data.md says where data belong",
    )


def _as_in_toml(settings: tuple[str, ...]) -> dict[str, Scalar]:
    """Numbers as numbers: a cell that a recipe asks for in the same words is the same cell."""
    found: dict[str, Scalar] = {}
    for key, text in pairs(settings).items():
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return found


def _teller(board: Board | None, *, quiet: bool) -> Callable[[Record], None]:
    def tell(record: Record) -> None:
        if board is not None:
            board.add(record)
        if not quiet:
            place = ", ".join(f"{axis} {label}" for axis, label in record["labels"].items())
            where = f"{record['row']}{f', {place}' if place else ''}, seed {record['seed']}"
            console.note(
                f"{where}: {100 * record['accuracy']:.2f} % in {console.human_seconds(record['seconds'])}"
            )

    return tell


def _conclude(recipes: list[Recipe], tally: Tally, out: Path, *, json: bool) -> None:
    """The tables, the page, and a word about what is left."""
    records = read_records(out)
    for recipe in recipes:
        write_atomic(
            out / "tables" / f"{recipe.name.replace('/', '-')}.csv",
            as_csv(recipe, table_of(recipe, records)),
        )
    page = write_report(out, out / "report.html", recipes)
    show_results(recipes, records, tally, out, page, json=json)
    if tally.failed:
        told = [f"{title}: {error}" for title, error in tally.failed.items()]
        raise RunError(
            f"{len(told)} cells failed.",
            problems=told,
            fix="their records say more; the same command tries them again",
        )


def _found(folder: Path) -> list[Recipe]:
    """The recipes that were run into a folder, as it remembers them.

    The first release did not write down whose defaults it had.
    """
    home = folder / "recipes"
    names = {
        path.relative_to(home).with_suffix("").as_posix(): path
        for path in sorted(home.rglob("*.json"))
    }
    return [
        parse_recipe({"defaults": FIRST, **from_json(path.read_text())}, name)
        for name, path in names.items()
    ]


@app.command
def report(
    folder: Positional[Path],
    /,
    *,
    out: Annotated[Path, arg(aliases=["-o"], help="The page.")] = Path("report.html"),
    recipe: Annotated[
        UseAppendAction[tuple[Path, ...]], arg(help="A recipe; those in the folder unless given.")
    ] = (),
    tables: Annotated[Path | None, arg(help="A folder for a CSV table of each recipe.")] = None,
    pack: Annotated[
        bool, arg(help="First move the records into one file for each recipe.")
    ] = False,
    json: Json = False,
) -> None:
    """One page of all records below a folder; it needs no network and no server."""
    if not folder.is_dir():
        raise DataError(
            f"There is no folder {folder}.", fix="name the --out folder of `attar bench`"
        )
    named = [read_recipe(path) for path in recipe]
    packing = pack_records(folder) if pack else None
    for damage in packing.damage if packing is not None else ():
        console.note(damage)
    records = read_records(folder)
    if (
        not records and not named
    ):  # a recipe's table without any number is one, too: it says "not run"
        raise RunError(
            f"There is no record below {folder}: nothing to report.",
            fix="name the folder that `attar bench --out` or `attar demo --out` wrote; its records are the files records/*.json "
            "and records/*.jsonl.xz in it",
        )
    chosen = named or _found(folder)
    page = write_report(folder, out, chosen)
    written = {}
    if tables is not None:
        for one in chosen:
            written[one.name] = str(tables / f"{one.name.replace('/', '-')}.csv")
            write_atomic(Path(written[one.name]), as_csv(one, table_of(one, records)))
    if json:
        packed = {} if packing is None else {"packed": packing.records}
        told = {
            "page": str(page),
            "records": len(records),
            "bytes": page.stat().st_size,
            "tables": written,
        }
        console.show_json(told | packed)
    else:
        if packing is not None:
            console.say(f"Records that were packed: {packing.records}.")
        if not records:
            console.say(
                f"There is no record below {folder}: every number of the page is one that was not run."
            )
        console.say(f"Report: {page}")
