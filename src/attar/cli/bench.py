"""``attar bench``: run recipes, or a queue of their cells."""

import os
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps as to_json
from math import inf
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from attar.bench import (
    BenchResult,
    Cell,
    Costs,
    EngineName,
    QueuePlan,
    Recipe,
    Record,
    as_csv,
    cells_of,
    check_settings,
    find_finished,
    find_outdated,
    name_of_code,
    open_engine,
    pack_bench,
    parse_filters,
    parse_recipe,
    read_queue,
    read_records,
    recipe_name,
    recipe_tables,
    run_bench,
    table_of,
    unique_runs,
    with_seeds,
    with_settings,
)
from attar.blocks.execution import Precision
from attar.cli.arguments import Device, Json, Track, parse_device
from attar.cli.output import console
from attar.cli.output.bench import BenchPlan, BenchResults
from attar.cli.output.queue import QueueTable
from attar.errors import DataError, RunError, SettingsError
from attar.internal.files import write_atomic
from attar.report import write_report
from attar.settings import Scalar, pairs
from attar.tracking import check_trackers, with_whole_paths


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The flags of ``attar bench``."""

    recipes: Positional[tuple[Path, ...]]
    only: Annotated[
        UseAppendAction[tuple[str, ...]], arg(help="key=value: an axis, method=LABEL or seed=N.")
    ] = ()
    seeds: Annotated[int | None, arg(help="The first so many seeds.")] = None
    queue: Annotated[
        Path | None,
        arg(help="A queue in place of recipes: it runs in its order, as far as --seconds reach."),
    ] = None
    whole_cells: Annotated[
        bool, arg(help="With --queue: start only cells that fit into the time that is left.")
    ] = False
    carry: Annotated[
        Path | None,
        arg(help="With --queue: pack what the next piece needs into this file (tar)."),
    ] = None
    carry_mb: Annotated[
        float | None,
        arg(help="The most that --carry packs; records, then what the next cells need."),
    ] = None
    engine: Annotated[
        EngineName | None,
        arg(help="inline, processes on this machine, or ray; with --queue processes, else inline."),
    ] = None
    workers: Annotated[
        int | None, arg(help="Jobs at once; the cores unless given, 2 on a GPU.")
    ] = None
    threads: Annotated[int, arg(help="CPU threads of a job; sums depend on it.")] = 1
    ray_address: Annotated[
        str | None, arg(help="A Ray cluster; one is started here unless given.")
    ] = None
    settings: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(name="set", help="key=value for every method that has it, in place of the recipe's."),
    ] = ()
    train: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="key=value for the classifiers' local training, such as epochs=20."),
    ] = ()
    device: Device = "auto"
    precision: Precision = "fp32"
    compile: Annotated[
        bool, arg(help="On CUDA: compile the nets, up to a minute a cell for faster steps.")
    ] = False
    out: Annotated[Path, arg(help="Clients, runs, records, tables and the report.")] = Path("bench")
    seconds: Annotated[
        float | None, arg(help="Time limit in seconds; the same command continues later.")
    ] = None
    keep_runs: Annotated[bool, arg(help="Keep the fused models.")] = False
    track: Track = ()
    tensorboard: Annotated[Path | None, arg(help="The same as --track tensorboard:DIR.")] = None
    dry_run: Annotated[
        bool,
        arg(help="Only show the plan and what it would cost, also on --device cuda without one."),
    ] = False
    json: Json = False


def bench(options: BenchOptions) -> None:
    """Run the cells of recipes that have no record yet.

    If it is interrupted, the same command continues from there.
    """
    begun = time.monotonic()
    check_trackers(_trackers(options))
    device = parse_device(options.device, here=not options.dry_run)
    if options.queue is not None:
        _run_queue(options, options.queue, device, begun)
        return
    tables = _read_tables(options)
    plan = _make_plan(options, tables, device)
    if options.dry_run:
        console.emit(plan.as_record(), plan.show, json=options.json)
        return
    if plan.cells and not plan.done and all(cell.missing for cell in plan.cells):
        raise _nothing_to_run(plan.recipes, plan.cells)
    if not options.json:
        for sentence in plan.why_again():
            console.note(sentence)
    for name, table in tables.items():  # so that the folder itself says what it is about
        stored = {"defaults": name_of_code(), **table}
        write_atomic(options.out / "recipes" / f"{name}.json", to_json(stored, indent=1) + "\n")
    engine = options.engine or "inline"
    with console.progress(f"bench, {engine}", quiet=options.json) as watch:
        result = run_bench(
            plan.cells,
            options.out,
            open_engine(engine, _workers(options, device), options.ray_address),
            device=device,
            threads=options.threads,
            seconds=options.seconds,
            keep_runs=options.keep_runs,
            watch=watch,
            on_record=_reporter(quiet=options.json),
            costs=plan.costs,
            track=with_whole_paths(_trackers(options)),
        )
    results = _write_results(plan.recipes, result, options.out)
    console.emit(results.as_record(), results.show, json=options.json)
    _raise_failures(result)


def _workers(options: BenchOptions, device: str) -> int:
    """How many jobs run at once."""
    return options.workers or (2 if device.startswith("cuda") else os.cpu_count() or 1)


def _raise_failures(result: BenchResult) -> None:
    if result.failed:
        raise RunError(
            f"{len(result.failed)} cells failed.",
            problems=[f"{title}: {error}" for title, error in result.failed.items()],
            fix="their records say more; the same command tries them again",
        )


def _run_queue(options: BenchOptions, path: Path, device: str, begun: float) -> None:
    """Run what of a queue fits into the time, and say what would come next.

    Args:
        options: The flags.
        path: The queue.
        device: Where cells run.
        begun: When the command began, by ``time.monotonic()``: the time limit is its.
    """
    _check_queue_flags(options)
    engine = options.engine or "processes"
    lanes = 1 if engine == "inline" else _workers(options, device)
    queue = read_queue(path)
    plan = QueuePlan(queue, options.out, device, lanes=lanes, whole=options.whole_cells)
    check_settings(plan.cells.values())
    if options.dry_run:
        table = QueueTable(plan, plan.work(), plan.simulate(options.seconds), simulated=True)
        console.emit(table.as_record(), table.show, json=options.json)
        return
    for recipe, tables in queue.tables().items():
        stored = {"defaults": name_of_code(), **tables}
        write_atomic(options.out / "recipes" / f"{recipe}.json", to_json(stored, indent=1) + "\n")
    seconds = options.seconds
    with console.progress(f"queue, {engine}", quiet=options.json) as watch:
        result = run_bench(
            plan.to_run,
            options.out,
            open_engine(engine, lanes, options.ray_address),
            device=device,
            threads=options.threads,
            seconds=None if seconds is None else seconds - (time.monotonic() - begun),
            keep_runs=options.keep_runs,
            watch=watch,
            on_record=_reporter(quiet=options.json),
            costs=plan.costs,
            piece=plan.piece(),
            track=with_whole_paths(_trackers(options)),
        )
    table = QueueTable(plan, plan.work(result), result)
    if options.carry is not None:
        most = inf if options.carry_mb is None else 1e6 * options.carry_mb
        cells = [work.cell for work in table.left]
        table = replace(table, carried=pack_bench(cells, options.out, options.carry, most))
    console.emit(table.as_record(), table.show, json=options.json)
    _raise_failures(result)


def _check_queue_flags(options: BenchOptions) -> None:
    """Refuse flags that the entries of a queue decide, each for itself."""
    given = {
        "a recipe": options.recipes,
        "--only": options.only,
        "--seeds": options.seeds is not None,
        "--set": options.settings,
        "--train": options.train,
        "--precision": options.precision != "fp32",
        "--compile": options.compile,
    }
    if wrong := [flag for flag, value in given.items() if value]:
        raise SettingsError(
            f"With --queue each entry of the queue says what {', '.join(wrong)} would.",
            fix="write it into the entry: recipe, only, seeds, set, train, precision, compile",
        )


def _read_tables(options: BenchOptions) -> dict[str, dict[str, Any]]:
    """The TOML tables of all recipes by name, with the settings of the command line in place."""
    if not options.recipes:
        raise DataError("No recipe is named.", fix="for example recipes/smoke.toml")
    settings = _as_in_toml(options.settings)
    training = _as_in_toml(options.train)
    return {
        recipe_name(path): with_settings(recipe_tables(path), settings, training)
        for path in options.recipes
    }


def _make_plan(
    options: BenchOptions, tables: Mapping[str, dict[str, Any]], device: str
) -> BenchPlan:
    """All cells that are asked for, and those of them that have a record."""
    recipes = [
        with_seeds(parse_recipe(table, name), options.seeds) for name, table in tables.items()
    ]
    wanted = parse_filters(recipes, options.only)
    planned = [cell for recipe in recipes for cell in cells_of(recipe, options.precision, wanted)]
    cells = {
        key: replace(cell, compile=options.compile) for key, cell in unique_runs(planned).items()
    }
    check_settings(cells.values())
    out = options.out
    done = {key: cell for key, cell in cells.items() if find_finished(out, cell)}
    return BenchPlan(
        recipes=recipes,
        cells=list(cells.values()),
        done=list(done.values()),
        again={
            key: reasons
            for key, cell in cells.items()
            if key not in done and (reasons := find_outdated(out, cell))
        },
        costs=Costs(device, read_records(out) if out.exists() else []),
        out=out,
    )


def _nothing_to_run(recipes: Sequence[Recipe], cells: Iterable[Cell]) -> RunError:
    """The error where no cell has what it needs, and none has a record.

    Data may lie on another machine, or a name is misspelt.
    """
    counts = Counter(reason for cell in cells for reason in dict.fromkeys(cell.missing))
    return RunError(
        f"No cell of {', '.join(recipe.name for recipe in recipes)} can run here. What is missing:",
        problems=[
            f"{reason}, in {count} cell{'' if count == 1 else 's'}"
            for reason, count in counts.items()
        ],
        fix="`attar ls data`, `attar ls methods` and `attar ls nets` say what is here; "
        "docs/data.md says where data belong",
    )


def _as_in_toml(settings: tuple[str, ...]) -> dict[str, Scalar]:
    """Settings with numbers as numbers.

    A cell with a setting of the command line is then the cell of a recipe with this setting.
    """
    values: dict[str, Scalar] = {}
    for key, text in pairs(settings).items():
        try:
            values[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key] = text
    return values


def _trackers(options: BenchOptions) -> tuple[str, ...]:
    """The trackers that are named, by the old flag, too."""
    old = () if options.tensorboard is None else (f"tensorboard:{options.tensorboard}",)
    return (*options.track, *old)


def _reporter(*, quiet: bool) -> Callable[[Record], None]:
    """A function that prints a line about each new record."""

    def report(record: Record) -> None:
        if not quiet:
            labels = [f"{axis} {label}" for axis, label in record["labels"].items()]
            title = ", ".join([record["row"], *labels, f"seed {record['seed']}"])
            seconds = console.human_seconds(record["seconds"])
            console.note(f"{title}: {100 * record['accuracy']:.2f} % in {seconds}")

    return report


def _write_results(recipes: Sequence[Recipe], result: BenchResult, out: Path) -> BenchResults:
    """Write the CSV tables and the page."""
    records = read_records(out)
    lines = {recipe.name: table_of(recipe, records) for recipe in recipes}
    for recipe in recipes:
        file = out / "tables" / f"{recipe.name.replace('/', '-')}.csv"
        write_atomic(file, as_csv(recipe, lines[recipe.name]))
    page = write_report(out, out / "report.html", recipes)
    return BenchResults(
        recipes=recipes, records=records, lines=lines, result=result, out=out, page=page
    )
