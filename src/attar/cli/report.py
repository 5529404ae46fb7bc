"""``attar report``: one page of all records below a folder."""

from collections.abc import Sequence
from json import loads as from_json
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from attar.bench import (
    FIRST,
    Comparison,
    Recipe,
    Record,
    as_csv,
    compare_rows,
    pack_records,
    parse_filters,
    parse_recipe,
    read_queue,
    read_recipe,
    read_records,
    table_of,
    take_records,
)
from attar.cli.arguments import Device, Json, load_source, parse_device
from attar.cli.output import console
from attar.data import PARTS, PartName
from attar.errors import DataError, RunError, SettingsError
from attar.internal.files import write_atomic
from attar.models import describe_data
from attar.report import is_model_folder, measure_model, write_model_report, write_report
from attar.uploads import admit, receive


def report(
    folder: Positional[Path],
    /,
    *,
    out: Annotated[Path, arg(aliases=["-o"], help="The page.")] = Path("report.html"),
    recipe: Annotated[
        UseAppendAction[tuple[Path, ...]], arg(help="A recipe; those in the folder unless given.")
    ] = (),
    queue: Annotated[
        Path | None, arg(help="A queue: the recipes that it names and that have records.")
    ] = None,
    take: Annotated[
        UseAppendAction[tuple[Path, ...]],
        arg(help="First copy the finished records of this bench's folder into FOLDER."),
    ] = (),
    tables: Annotated[Path | None, arg(help="A folder for a CSV table of each recipe.")] = None,
    compare: Annotated[
        UseAppendAction[tuple[tuple[str, str], ...]],
        arg(help="Two rows: how far the first is ahead, run by run, with its 95 % interval."),
    ] = (),
    only: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="key=value: compare these places or seeds alone (an axis, or seed=N)."),
    ] = (),
    pack: Annotated[
        bool, arg(help="First move the records into one file for each recipe.")
    ] = False,
    data: Annotated[
        str | None,
        arg(help="Of a fused model: a labelled data source on which to measure it."),
    ] = None,
    split: Annotated[PartName, arg(help="Which of its images.")] = "test",
    uploads: Annotated[
        tuple[Path, ...],
        arg(help="Of a fused model: the clients' files, whose nets are measured, too."),
    ] = (),
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write one page of all records below a folder, or of a fused model; it needs no network and
    no server.
    """
    if is_model_folder(folder):
        _report_model(folder, out, data, split, uploads, parse_device(device), json=json)
        return
    if data is not None or uploads:
        raise SettingsError(
            f"{folder} holds no fused model: --data and --uploads are for one.",
            fix="name the --out folder of `attar fuse`",
        )
    _report_bench(folder, out, recipe, queue, take, tables, compare, only, pack=pack, json=json)


def _report_bench(
    folder: Path,
    out: Path,
    recipe: Sequence[Path],
    queue: Path | None,
    take: Sequence[Path],
    tables: Path | None,
    compare: Sequence[tuple[str, str]],
    only: Sequence[str],
    *,
    pack: bool,
    json: bool,
) -> None:
    """The page of all records below a folder."""
    for each in (folder, *take):
        if not each.is_dir():
            raise DataError(
                f"There is no folder {each}.", fix="name the --out folder of `attar bench`"
            )
    recipes = [read_recipe(path) for path in recipe]
    queued = [] if queue is None else read_queue(queue).recipes()
    taken = sum(take_records(source, folder) for source in take)
    packing = pack_records(folder) if pack else None
    for damage in packing.damage if packing is not None else ():
        console.note(damage)
    records = read_records(folder)
    if not records and not recipes:  # the table of a recipe alone is shown as "not run"
        raise RunError(
            f"There is no record below {folder}: nothing to report.",
            fix="name the folder that `attar bench --out` or `attar demo --out` wrote; its "
            "records are the files records/*.json and records/*.jsonl.xz in it",
        )
    run = {record["recipe"] for record in records}
    recipes += [each for each in queued if each.name in run and each not in recipes]
    recipes = recipes or recipes_in(folder)
    comparisons = _compare(recipes, records, compare, only)
    page = write_report(folder, out, recipes)
    written = {} if tables is None else _write_tables(recipes, records, tables)

    def show() -> None:
        if take:
            console.say(f"Records that were copied: {taken}.")
        if packing is not None:
            console.say(f"Records that were packed: {packing.records}.")
        if not records:
            console.say(f"There is no record below {folder}: the page says that nothing was run.")
        if comparisons:
            _show_comparisons(comparisons)
        console.say(f"Report: {page}")

    record = {
        "page": str(page),
        "records": len(records),
        "bytes": page.stat().st_size,
        "tables": written,
    }
    if take:
        record["taken"] = taken
    if packing is not None:
        record["packed"] = packing.records
    if comparisons:
        record["comparisons"] = [_comparison_json(comparison) for comparison in comparisons]
    console.emit(record, show, json=json)


def _report_model(
    folder: Path,
    out: Path,
    data: str | None,
    part: PartName,
    files: Sequence[Path],
    device: str,
    *,
    json: bool,
) -> None:
    """The page of a fused model."""
    if files and data is None:
        raise SettingsError(
            "--uploads names clients to measure, but there are no images to measure them on.",
            fix="--data SOURCE",
        )
    measured = None
    if data is not None:
        record = from_json((folder / "record.json").read_text())
        received = receive(files)
        uploads = admit(received, class_map=record.get("class_map"))[0] if received else []
        dataset = load_source(data, quiet=json)
        images = describe_data(len(dataset.part(part)), f"{PARTS[part]} {data}")
        measured = measure_model(folder, dataset, part, images, uploads, device)
    page = write_model_report(folder, out, measured)
    written = {"page": str(page), "bytes": page.stat().st_size, "measured": measured is not None}
    console.emit(written, lambda: console.say(f"Report: {page}"), json=json)


def recipes_in(folder: Path) -> list[Recipe]:
    """The recipes that were run into a folder, as the folder stores them.

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


def _compare(
    recipes: Sequence[Recipe],
    records: Sequence[Record],
    rows: Sequence[tuple[str, str]],
    only: Sequence[str],
) -> list[Comparison]:
    """Each two rows, in every recipe that has both."""
    if only and not rows:
        raise SettingsError("--only names what to compare.", fix="add --compare ROW OTHER")
    filters = parse_filters(recipes, only) if only else None
    comparisons = []
    for first, second in rows:
        having = [
            recipe for recipe in recipes if {first, second} <= {row.label for row in recipe.rows}
        ]
        comparisons += [
            compare_rows(recipe, records, first, second, filters) for recipe in having or recipes
        ]
    return comparisons


def _show_comparisons(comparisons: Sequence[Comparison]) -> None:
    rows = []
    for one in comparisons:
        low, high = one.interval or (None, None)
        rows.append(
            (
                one.recipe,
                f"{one.first} - {one.second}",
                str(len(one.pairs)),
                "" if one.mean is None else f"{one.mean:+.2f}",
                "" if low is None else f"{low:+.2f} to {high:+.2f}",
                f"{one.wins} of {len(one.pairs)}" if one.pairs else "not run",
            )
        )
    columns = ("recipe", "rows", "pairs", "points ahead", "95 % interval", "ahead in")
    console.show_table("Paired differences", columns, rows, right=columns[2:])


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "recipe": comparison.recipe,
        "first": comparison.first,
        "second": comparison.second,
        "pairs": [
            {
                "labels": dict(pair.labels),
                "seed": pair.seed,
                "first": pair.first,
                "second": pair.second,
            }
            for pair in comparison.pairs
        ],
        "mean": comparison.mean,
        "interval": comparison.interval,
        "wins": comparison.wins,
    }


def _write_tables(
    recipes: Sequence[Recipe], records: Sequence[Record], folder: Path
) -> dict[str, str]:
    """One CSV file for each recipe; the files by the recipe's name."""
    files = {}
    for recipe in recipes:
        file = folder / f"{recipe.name.replace('/', '-')}.csv"
        write_atomic(file, as_csv(recipe, table_of(recipe, records)))
        files[recipe.name] = str(file)
    return files
