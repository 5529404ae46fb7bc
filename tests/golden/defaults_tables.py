"""Write the frozen defaults of releases (``src/attar/bench/releases``).

python tests/golden/defaults_tables.py add    # add what is new in the code to every table
python tests/golden/defaults_tables.py 0.2    # where a default has changed: the next release's
"""

import json
import sys
from pathlib import Path
from typing import Any

from attar.bench.defaults import CHOOSERS, tables_of_code
from attar.bench.releases import HOME, release_names


def added(table: dict[str, Any], code: dict[str, Any]) -> dict[str, Any]:
    """The table with what it lacks, as the code has it; nothing that it has is changed."""
    whole = dict(table)
    for name, value in code.items():
        if name == "variants":
            known = [variant["when"] for variant in table.get("variants", ())]
            whole[name] = [
                *table.get(name, ()),
                *(variant for variant in value if variant["when"] not in known),
            ]
        elif name not in table:
            whole[name] = value
        elif isinstance(value, dict):
            whole[name] = added(table[name], value)
    if (new := new_default(table, code)) is not None:
        whole["variants"] = [*whole.get("variants", ()), new]
    return whole


def new_default(table: dict[str, Any], code: dict[str, Any]) -> dict[str, Any] | None:
    """The choice that is the default now, as a variant of an older table that does not know it."""
    now, before = code.get("settings", {}), table.get("settings", {})
    when = {name: now[name] for name in CHOOSERS if name in now and name in before}
    known = [variant["when"] for variant in table.get("variants", ())]
    if all(before[name] == value for name, value in when.items()) or when in known:
        return None
    differing = {
        name: value
        for name, value in now.items()
        if name not in when and name in before and before[name] != value
    }
    return {"when": when, "values": differing}


def write(path: Path, tables: dict[str, Any]) -> None:
    path.write_text(json.dumps(tables, indent=1) + "\n")


def main(word: str) -> None:
    code = tables_of_code()
    if word == "add":
        for name in release_names():
            path = HOME / f"{name}.json"
            write(path, added(json.loads(path.read_text()), code))
    elif word in release_names():
        raise SystemExit(
            f"The defaults of {word} are on file, and runs rely on them. Name the next release."
        )
    else:
        write(HOME / f"{word}.json", code)


if __name__ == "__main__":
    main(sys.argv[1])
