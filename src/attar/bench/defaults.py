"""Which values a run takes where its recipe says nothing, and which of them are part of its name.

A run takes the values of the release that its recipe names, also after a default of the code has
changed. Names of runs and of trained clients are made of what the recipe gives, and of each
default that is not the one of the first release.
"""

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict
from functools import cache
from itertools import product
from typing import Any, get_args

from attar.bench.oracles import ORACLES, find_kind
from attar.bench.recipe import Federation, Group
from attar.bench.releases import CURRENT, FIRST, Release, find_release, release_names
from attar.core import AnyMethod
from attar.errors import SettingsError
from attar.federation import Rounds
from attar.methods import BUILT_IN, METHODS
from attar.settings import configure, flatten, settings_of
from attar.training import LARGE_LR, TABLE_3, LocalTraining, StatisticsSettings, TrainingDefaults

CHOOSERS = ("variant", "preset")  # settings that decide the values of others

Table = dict[str, Any]


def method_settings(release: Release, method: str, given: Mapping[str, Any]) -> Table:
    """The settings to run a method with.

    Args:
        release: Whose defaults hold.
        method: The method's name. One of another package is in no table and has its own defaults.
        given: The settings that the recipe gives.

    Returns:
        The given settings, and the release's values for all others.

    Raises:
        SettingsError: The release has settings that the method does not have any more.
    """
    table = release.section("methods").get(method)
    if table is None:
        return dict(given)
    values = {**_effective_values(table, given), **given}
    kind = find_kind(method)
    names = set() if kind is None else set(settings_of(kind))
    if gone := sorted(set(table["settings"]) - names):
        raise SettingsError(
            f"Method {method} does not have these settings of release {release.name} any more:",
            problems=[f"{name} = {values[name]}" for name in gone],
            fix=f"run the recipe with attar {release.name}, or name newer defaults in it: "
            f'defaults = "{release_names()[-1]}"',
        )
    return values


def training_defaults(release: Release) -> TrainingDefaults:
    """How clients train where the recipe says nothing, by the defaults of a release."""
    if not release.tables:
        return TrainingDefaults()
    table = release.section("training")
    of = f"local training in release {release.name}"
    classifier = configure(LocalTraining, table["classifier"], of=of)
    cvae = {
        preset: configure(LocalTraining, values, of=of) for preset, values in table["cvae"].items()
    }
    return TrainingDefaults(classifier, cvae, table["cvae_large_lr"])


def non_default(config: Federation | Group) -> Table:
    """The fields that differ from the first release's defaults.

    A field that was added later is no part of a name while it has its default.
    """
    section = find_release(FIRST).section(type(config).__name__.lower())
    defaults = {**asdict(type(config)()), **section}
    return {key: value for key, value in asdict(config).items() if value != defaults[key]}


def changed_settings(release: Release, method: str, given: Mapping[str, Any]) -> Table:
    """The settings that are not given and whose default is not the one of the first release."""
    first = find_release(FIRST).section("methods").get(method)
    if first is None:
        return {}
    kind = find_kind(method)
    table = release.section("methods").get(method)
    if not release.tables and kind is not None:
        table = _method_table(kind)
    values = _effective_values(table or {"settings": {}}, given)
    return _differences(values, _effective_values(first, given), given)


def changed_training(
    release: Release, federation: Federation, groups: Mapping[str, Set[str]]
) -> Table:
    """The defaults of local training that are not those of the first release.

    Args:
        release: Whose defaults hold.
        federation: Whose clients train.
        groups: By name of a group, the kinds of nets that its clients train.

    Returns:
        The values that this federation uses and does not give, by group; empty where all are equal.
    """
    tables = release.tables or _tables_of_training()
    first = find_release(FIRST).tables
    changed = {
        name: _changed_in_group(tables, first, federation.group(name), kinds)
        for name, kinds in groups.items()
    }
    if federation.statistics:
        changed["statistics"] = _differences(tables["statistics"], first["statistics"])
    if federation.rounds > 1:
        given = ("rounds", "fraction")
        changed["rounds"] = _differences(tables["rounds"], first["rounds"], given)
    return {name: values for name, values in changed.items() if values}


def _changed_in_group(
    tables: Mapping[str, Any], first: Mapping[str, Any], group: Group, kinds: Set[str]
) -> Table:
    changed = {}
    rows_before = _training_rows(first["training"], group.preset, kinds)
    for name, row in _training_rows(tables["training"], group.preset, kinds).items():
        changed[name] = _differences(row, rows_before.get(name, {}), group.training)
    return {name: values for name, values in changed.items() if values}


def _training_rows(table: Mapping[str, Any], preset: str, kinds: Set[str]) -> dict[str, Table]:
    """The rows of the table that may decide how nets of these kinds train."""
    rows: dict[str, Table] = {"classifier": table["classifier"]} if "classifier" in kinds else {}
    if "cvae" in kinds:
        rows |= {
            f"cvae {name}": row for name, row in table["cvae"].items() if preset in ("auto", name)
        }
        rows["cvae large"] = {"lr": table["cvae_large_lr"]}
    return rows


def _differences(
    values: Mapping[str, Any], first: Mapping[str, Any], given: Iterable[str] = ()
) -> Table:
    """The values that differ from the first release's, but for those that a recipe gives."""
    names = [name for name in dict.fromkeys([*values, *first]) if name not in given]
    return {
        name: values.get(name)
        for name in names
        if name not in values or name not in first or values[name] != first[name]
    }


def _effective_values(table: Mapping[str, Any], given: Mapping[str, Any]) -> Table:
    """The values of a method's settings, including those that its variant or preset fills."""
    values = dict(table["settings"])
    chosen = {name: str(given.get(name, values[name])) for name in CHOOSERS if name in values}
    for variant in table.get("variants", ()):
        if all(chosen[name] == value for name, value in variant["when"].items()):
            values |= variant["values"]
    return values


def tables_of_code() -> Table:
    """The defaults of the code, in the form of a release's tables."""
    kinds = {name: METHODS[name] for name in METHODS if name in BUILT_IN} | ORACLES
    return {
        "federation": _as_json(asdict(Federation())),
        "group": _as_json(asdict(Group())),
        **_tables_of_training(),
        "methods": {name: _method_table(kind) for name, kind in kinds.items()},
    }


def _tables_of_training() -> Table:
    training = {
        "classifier": asdict(LocalTraining()),
        "cvae": {preset: asdict(values) for preset, values in TABLE_3.items()},
        "cvae_large_lr": LARGE_LR,
    }
    return _as_json(
        {
            "training": training,
            "statistics": asdict(StatisticsSettings()),
            "rounds": asdict(Rounds()),
        }
    )


@cache
def _method_table(kind: type[AnyMethod]) -> Table:
    """What a method does by itself, and what each choice of its variant and preset fills."""
    plain = flat_settings(kind())
    declared = settings_of(kind)
    variants = []
    choosers = [name for name in CHOOSERS if name in plain]
    for values in product(*(get_args(declared[name].type) for name in choosers)):
        when = dict(zip(choosers, values, strict=True))
        filled = flat_settings(configure(kind, when, of=kind.__name__))
        if changed := {
            name: value
            for name, value in filled.items()
            if name not in when and value != plain[name]
        }:
            variants.append({"when": when, "values": changed})
    return {"settings": plain, **({"variants": variants} if variants else {})}


def flat_settings(method: AnyMethod) -> Table:
    """The settings of a method by their flat names, with values as JSON has them."""
    return _as_json(flatten(method))


def _as_json(table: Table) -> Table:
    """The table as it is read back from a JSON file."""
    read_back: Table = json.loads(json.dumps(table))
    return read_back


def name_of_code() -> str:
    """The release whose defaults the code has.

    Returns:
        Its name; ``current`` where a default was changed that is in no table yet.
    """
    newest = find_release(release_names()[-1])
    return newest.name if newest.tables == tables_of_code() else CURRENT
