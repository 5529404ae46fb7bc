"""The TOML of a recipe before it means anything: a file on top of those that it extends, and
what is asked for in its place.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attar.bench.taken import refuse_unheard, refuse_unknown
from attar.errors import SettingsError
from attar.settings import Scalar


def recipe_name(path: Path) -> str:
    """``recipes/coboosting/table1.toml`` -> ``coboosting/table1``; what lies elsewhere is called
    by its file.
    """
    folders = path.resolve().parts[:-1]
    inside = (
        folders[len(folders) - folders[::-1].index("recipes") :] if "recipes" in folders else ()
    )
    return "/".join((*inside, path.stem))


def recipe_tables(path: Path) -> dict[str, Any]:
    """The TOML of a file, on top of the one that it extends.

    A setting for every method is one that some method has, here or in what is extended: methods
    that replace others inherit settings of those, and that is no mistake.
    """
    layers = _layers(path)
    settings = [name for tables in layers for name in _table(tables, "server")]
    rows = [
        row
        for tables in layers
        for row in _table(tables, "methods").values()
        if isinstance(row, dict)
    ]
    refuse_unheard(
        settings, [str(row.get("method")) for row in rows], of=f"recipe {recipe_name(path)}"
    )
    whole: dict[str, Any] = {}
    for tables in layers:
        for own in ("published", "notes"):  # belong to one table alone
            whole.pop(own, None)
        for replaced in ("axes", "methods"):  # not mixed, where they are given
            if replaced in tables:
                whole.pop(replaced, None)
        whole = merged(whole, tables)
    return whole


def _layers(path: Path) -> list[dict[str, Any]]:
    """The tables of a recipe's file and of those that it stands on, the lowest first."""
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError(
            f"There is no recipe {path}.", fix="name a .toml file, for example recipes/smoke.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise SettingsError(f"{path} is no TOML file: {error}") from None
    base = tables.pop("extends", None)
    return [*([] if base is None else _layers(path.parent / str(base))), tables]


def _table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An entry that is a table; empty where it is missing or something else."""
    found = tables.get(name)
    return found if isinstance(found, dict) else {}


def with_settings(
    tables: Mapping[str, Any], settings: Mapping[str, Scalar], training: Mapping[str, Scalar]
) -> dict[str, Any]:
    """The same table with other settings, for every method that has them, and another local
    training of classifiers.
    """
    refuse_unknown(settings, [str(row.get("method")) for row in tables.get("methods", {}).values()])
    rows = {
        label: {
            **row,
            "set": {key: value for key, value in row.get("set", {}).items() if key not in settings},
        }
        for label, row in tables.get("methods", {}).items()
    }
    federation = dict(tables.get("federation", {}))
    groups = {
        name: group
        if str(group.get("net", "")).startswith("cvae")
        else merged(group, {"training": dict(training)})
        for name, group in federation.get("groups", {}).items()
    }
    federation = merged(federation, {"training": dict(training)}) | (
        {"groups": groups} if groups else {}
    )
    return {
        **tables,
        "methods": rows,
        "federation": federation,
        "server": {**tables.get("server", {}), **settings},
    }


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the entries of ``top``; tables within are merged."""
    whole = dict(base)
    for key, value in top.items():
        inside = whole.get(key)
        whole[key] = (
            merged(inside, value) if isinstance(inside, dict) and isinstance(value, dict) else value
        )
    return whole
