"""The TOML of a recipe before it is interpreted: a file on top of those that it extends, and
settings given on the command line.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attar.bench.methods import check_server_table, check_setting_names
from attar.bench.recipe import merge_tables
from attar.errors import SettingsError
from attar.settings import Scalar

NOT_INHERITED = ("published", "notes")  # belong to one table alone
REPLACED = ("axes", "methods")  # not merged with those of the recipe that is extended


def recipe_name(path: Path) -> str:
    """The name of a recipe: ``recipes/coboosting/table1.toml`` -> ``coboosting/table1``.

    A file outside of a folder ``recipes`` is named by its file name alone.
    """
    folders = path.resolve().parts[:-1]
    if "recipes" not in folders:
        return path.stem
    start = len(folders) - folders[::-1].index("recipes")
    return "/".join((*folders[start:], path.stem))


def recipe_tables(path: Path) -> dict[str, Any]:
    """Read the TOML of a recipe on top of the one that it extends.

    A setting in ``[server]`` must be one that some method has, here or in a recipe that is
    extended: methods that replace others inherit the settings for those, and that is no mistake.

    Raises:
        SettingsError: The file is missing or is not TOML, or no method has a setting.
    """
    layers = _read_layers(path)
    settings = [name for tables in layers for name in _get_table(tables, "server")]
    rows = [row for tables in layers for row in _get_table(tables, "methods").values()]
    methods = [str(row.get("method")) for row in rows if isinstance(row, dict)]
    check_server_table(settings, methods, recipe=recipe_name(path))
    whole: dict[str, Any] = {}
    for tables in layers:
        for name in NOT_INHERITED:
            whole.pop(name, None)
        for name in REPLACED:
            if name in tables:
                whole.pop(name, None)
        whole = merge_tables(whole, tables)
    return whole


def _read_layers(path: Path) -> list[dict[str, Any]]:
    """The tables of a recipe's file and of those that it extends, the lowest first."""
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError(
            f"There is no recipe {path}.", fix="name a .toml file, for example recipes/smoke.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise SettingsError(f"{path} is no TOML file: {error}") from None
    base = tables.pop("extends", None)
    lower = [] if base is None else _read_layers(path.parent / str(base))
    return [*lower, tables]


def _get_table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An entry that is a table; empty where it is missing or something else."""
    entry = tables.get(name)
    return entry if isinstance(entry, dict) else {}


def with_settings(
    tables: Mapping[str, Any], settings: Mapping[str, Scalar], training: Mapping[str, Scalar]
) -> dict[str, Any]:
    """Replace settings of a recipe.

    Args:
        tables: The recipe's tables.
        settings: For every method that has them, in place of those of the recipe.
        training: For the local training of classifiers; CVAEs train as the recipe says.

    Returns:
        The tables with the settings replaced.

    Raises:
        SettingsError: No method of the recipe has one of the settings.
    """
    methods = tables.get("methods", {})
    check_setting_names(settings, [str(row.get("method")) for row in methods.values()])
    rows = {label: _without_settings(row, settings) for label, row in methods.items()}
    federation = dict(tables.get("federation", {}))
    groups = {
        name: group if _trains_cvae(group) else merge_tables(group, {"training": dict(training)})
        for name, group in federation.get("groups", {}).items()
    }
    federation = merge_tables(federation, {"training": dict(training)})
    if groups:
        federation["groups"] = groups
    return {
        **tables,
        "methods": rows,
        "federation": federation,
        "server": {**tables.get("server", {}), **settings},
    }


def _without_settings(row: Mapping[str, Any], names: Mapping[str, Scalar]) -> dict[str, Any]:
    values = {key: value for key, value in row.get("set", {}).items() if key not in names}
    return {**row, "set": values}


def _trains_cvae(group: Mapping[str, Any]) -> bool:
    return str(group.get("net", "")).startswith("cvae")
