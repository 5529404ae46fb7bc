"""``attar report``: one page of all records below a folder."""

from collections.abc import Sequence
from json import loads as from_json
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from attar.bench import (
    FIRST,
    Recipe,
    Record,
    as_csv,
    pack_records,
    parse_recipe,
    read_recipe,
    read_records,
    table_of,
)
from attar.cli.arguments import Json
from attar.cli.output import console
from attar.errors import DataError, RunError
from attar.internal.files import write_atomic
from attar.report import write_report


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
    """Write one page of all records below a folder; it needs no network and no server."""
    if not folder.is_dir():
        raise DataError(
            f"There is no folder {folder}.", fix="name the --out folder of `attar bench`"
        )
    recipes = [read_recipe(path) for path in recipe]
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
    recipes = recipes or recipes_in(folder)
    page = write_report(folder, out, recipes)
    written = {} if tables is None else _write_tables(recipes, records, tables)

    def show() -> None:
        if packing is not None:
            console.say(f"Records that were packed: {packing.records}.")
        if not records:
            console.say(f"There is no record below {folder}: the page says that nothing was run.")
        console.say(f"Report: {page}")

    record = {
        "page": str(page),
        "records": len(records),
        "bytes": page.stat().st_size,
        "tables": written,
    }
    if packing is not None:
        record["packed"] = packing.records
    console.emit(record, show, json=json)


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
