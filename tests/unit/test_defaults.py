"""A recipe runs with the defaults that it names; no old record passes for a run with other ones."""

import importlib.util
import json
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from attar.bench.cell import run_cell
from attar.bench.clients import read_uploads, train_clients
from attar.bench.cost import Costs
from attar.bench.defaults import (
    CHOOSERS,
    flat_settings,
    method_settings,
    name_of_code,
    tables_of_code,
    training_defaults,
)
from attar.bench.grid import cells_of, check_settings
from attar.bench.methods import configure_method
from attar.bench.oracles import ORACLES
from attar.bench.parse import parse_recipe
from attar.bench.releases import (
    AS_IN_CODE,
    CURRENT,
    FIRST,
    HOME,
    Release,
    find_release,
    release_names,
)
from attar.cli.report import recipes_in
from attar.core import ModelSpec
from attar.errors import SettingsError
from attar.methods import BUILT_IN, METHODS
from attar.methods.dense import Dense
from attar.methods.feddf import FedDF
from attar.settings import flatten, settings
from attar.training import TrainingDefaults, TrainingFlags, make_stacks
from attar.training.clients import ClientData

PINNED = find_release(FIRST)
NEWEST = release_names()[-1]
KINDS = {name: METHODS[name] for name in BUILT_IN} | ORACLES
WHAT_TO_DO = (
    f"Defaults of the code differ from src/attar/bench/releases/{NEWEST}.json. Runs on record must "
    "stay what they are. Where a default has changed, that file stays as it is: "
    "`python tests/golden/defaults_tables.py 0.N` writes a table for the next release. Where a "
    "setting, a field, a variant or a method is new, `python tests/golden/defaults_tables.py add` "
    "adds it to every table; its value must be the one that does what was done without it."
)
TOOL = importlib.util.spec_from_file_location(
    "defaults_tables", Path(__file__).parents[1] / "golden" / "defaults_tables.py"
)
defaults_tables = importlib.util.module_from_spec(TOOL)
TOOL.loader.exec_module(defaults_tables)


def changed(name="0.9", **places):
    """The first release's defaults with other values: ``methods__feddf__settings={"steps": 7}``."""
    tables = deepcopy(dict(PINNED.tables))
    for place, values in places.items():
        table = tables
        for word in place.split("__"):
            table = table[word]
        table |= values
    return Release(name, tables)


def recipe_of(federation=None, defaults=PINNED, **methods):
    rows = {label.replace("_", " "): row for label, row in methods.items()} or {
        "A": {"method": "feddf"}
    }
    tables = {"title": "t", "source": "s", "federation": federation or {}, "methods": rows}
    return replace(parse_recipe(tables, "t"), defaults=defaults)


def only_cell(federation=None, defaults=PINNED, **methods):
    (cell,) = cells_of(recipe_of(federation, defaults, **methods))
    return cell


def set_keys(cell):
    return [one.key for one in cell.client_sets]


def test_newest_release_is_that_of_code():
    assert find_release(NEWEST).tables == tables_of_code(), WHAT_TO_DO
    assert name_of_code() == NEWEST
    assert FIRST in release_names()


@pytest.mark.parametrize("name", release_names())
def test_releases_have_every_default(name):
    tables = dict(find_release(name).tables)
    assert defaults_tables.added(tables, tables_of_code()) == tables, WHAT_TO_DO


def test_added_changes_nothing():
    old = {
        "methods": {
            "a": {
                "settings": {"x": 1, "gone": 2},
                "variants": [{"when": {"variant": "v"}, "values": {"x": 3}}],
            }
        }
    }
    variants = [
        {"when": {"variant": "v"}, "values": {"x": 4}},
        {"when": {"variant": "w"}, "values": {"y": 6}},
    ]
    new = {
        "methods": {
            "a": {"settings": {"x": 5, "y": 0}, "variants": variants},
            "b": {"settings": {}},
        },
        "more": {"z": 1},
    }
    assert defaults_tables.added(old, new) == {
        "methods": {
            "a": {
                "settings": {"x": 1, "gone": 2, "y": 0},
                "variants": [
                    {"when": {"variant": "v"}, "values": {"x": 3}},
                    {"when": {"variant": "w"}, "values": {"y": 6}},
                ],
            },
            "b": {"settings": {}},
        },
        "more": {"z": 1},
    }


def test_added_has_the_new_default_as_a_variant_of_older_tables():
    old = {"a": {"settings": {"x": 1, "y": 2, "variant": "v"}}}
    variants = [{"when": {"variant": "v"}, "values": {"x": 1}}]
    new = {"a": {"settings": {"x": 5, "y": 2, "z": 3, "variant": "w"}, "variants": variants}}
    whole = defaults_tables.added(old, new)
    assert whole["a"]["settings"] == {"x": 1, "y": 2, "z": 3, "variant": "v"}
    wanted = {"when": {"variant": "w"}, "values": {"x": 5}}
    assert whole["a"]["variants"] == [*variants, wanted]
    assert defaults_tables.added(whole, new) == whole
    assert "variants" not in defaults_tables.added(old, {"a": {"settings": old["a"]["settings"]}})


def test_release_names_order(tmp_path, monkeypatch):
    for name in ("0.2", "0.10", "0.1"):
        (tmp_path / f"{name}.json").write_text("{}")
    monkeypatch.setattr("attar.bench.releases.HOME", tmp_path)
    assert release_names() == ["0.1", "0.2", "0.10"]
    with pytest.raises(SettingsError, match=r"There are no defaults called '7'\.") as raised:
        find_release("7")
    assert raised.value.fix == "choose one of: 0.1, 0.2, 0.10, current"
    with pytest.raises(SettingsError, match="cannot be used") as raised:
        parse_recipe(
            {"title": "t", "source": "s", "defaults": "x", "methods": {"A": {"method": "fedavg"}}},
            "t",
        )
    assert raised.value.problems == (
        "defaults: There are no defaults called 'x'. (choose one of: 0.1, 0.2, 0.10, current)",
    )


def test_releases_are_in_package():
    import attar

    assert (HOME / f"{FIRST}.json").is_relative_to(next(iter(attar.__path__)))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_choosers_are_complete(name):
    """``CHOOSERS`` is complete: the tables have what each of them fills, and no other choice
    fills anything.
    """
    kind = KINDS[name]
    hints, plain = get_type_hints(kind), flat_settings(kind())
    for field in fields(kind):
        choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
        for value in (*choices, *((True, False) if hints[field.name] is bool else ())):
            if field.name not in CHOOSERS:
                try:
                    found = flat_settings(kind(**{field.name: value}))
                except SettingsError:
                    continue
                assert found == {**plain, field.name: value}


@pytest.mark.parametrize(
    "release", [find_release(name) for name in release_names()], ids=release_names()
)
@pytest.mark.parametrize("name", sorted(KINDS))
def test_method_settings_equal_defaults_of_code(name, release):
    """Also in the types of its values, for every variant, and where the recipe gives what the
    variant would fill. What holds without a variant is that of the newest release; beside what a
    variant fills, an older release keeps the defaults that have changed since.
    """
    table = release.tables["methods"][name]
    newest = find_release(NEWEST).tables["methods"][name]["settings"]
    changed = {key for key, value in table["settings"].items() if value != newest[key]}
    variants = table.get("variants", ())
    several = [(variant["when"], variant["values"]) for variant in variants]
    several += [({}, {})] if release.name == NEWEST else []
    several += [
        ({**variant["when"], key: table["settings"][key]}, variant["values"])
        for variant in variants
        for key in variant["values"]
    ]
    for given, filled in several:
        kept = changed - {*filled, *given}
        pinned, plain = (
            flatten(configure_method(name, values))
            for values in (method_settings(release, name, given), given)
        )
        for key in kept:
            assert pinned.pop(key) == table["settings"][key]
            del plain[key]
        assert json.dumps(pinned) == json.dumps(plain)


def test_method_settings_keep_release(monkeypatch):
    before = only_cell()
    free = only_cell(defaults=AS_IN_CODE)
    assert free.key == before.key

    @dataclass(frozen=True)
    class Changed(FedDF):
        """The same with another default."""

        steps: int = 7

    monkeypatch.setitem(METHODS, "feddf", Changed)
    assert only_cell().method().steps == FedDF().steps
    assert only_cell().key == before.key
    now = only_cell(defaults=AS_IN_CODE)
    assert now.method().steps == 7
    assert now.key != before.key
    assert now.describe()["settings"] == {"steps": 7}
    assert set_keys(now) == set_keys(before)
    given = {"method": "feddf", "set": {"steps": 9}}
    assert only_cell(A=given).key == only_cell(defaults=AS_IN_CODE, A=given).key
    assert name_of_code() == CURRENT


def test_method_settings_keep_variant(monkeypatch):
    given = {"method": "dense", "set": {"variant": "authors", "batch_size": 64}}
    before = only_cell(A=given)

    @settings(lambda given: {"temperature": 5.0, "clip": 1.0} if given.variant == "authors" else {})
    @dataclass(frozen=True)
    class Changed(Dense):
        """The same with another default, and another variant."""

        epochs: int = 7

    monkeypatch.setitem(METHODS, "dense", Changed)
    cell = only_cell(A=given)
    assert cell.key == before.key
    method = cell.method()
    assert flatten(method) == flatten(before.method())
    student = method.student
    assert (method.epochs, student.temperature, student.clip) == (200, 20.0, None)
    assert method.batch_size == 64
    now = only_cell(defaults=AS_IN_CODE, A=given)
    student = now.method().student
    assert (now.method().epochs, student.temperature, student.clip) == (7, 5.0, 1.0)
    assert now.describe()["settings"]["clip"] == 1.0
    # which the variant does not fill any more
    assert now.describe()["settings"]["student_lr"] == 0.01
    assert now.key != before.key
    plain = only_cell(defaults=AS_IN_CODE, A={"method": "dense"})
    assert plain.describe()["settings"] == {"epochs": 7}


def test_cell_key_of_newer_release():
    newer = changed(methods__feddf__settings={"steps": 7})
    cell = only_cell(defaults=newer)
    assert cell.method().steps == 7
    # the same run, however it came to its steps
    assert cell.key == only_cell(A={"method": "feddf", "set": {"steps": 7}}).key
    assert (
        only_cell(defaults=newer, A={"method": "fedavg"}).key
        == only_cell(A={"method": "fedavg"}).key
    )


def test_method_settings_refuse_removed_setting():
    cell = only_cell(defaults=changed(methods__feddf__settings={"colour": 3}))
    with pytest.raises(
        SettingsError, match=r"Method feddf does not have these settings of release 0\.9 any more"
    ) as raised:
        cell.method()
    assert raised.value.problems == ("colour = 3",)
    assert (
        raised.value.fix
        == f'run the recipe with attar 0.9, or name newer defaults in it: defaults = "{NEWEST}"'
    )
    with pytest.raises(SettingsError) as raised:
        check_settings([cell])
    assert raised.value.problems == ("A: colour = 3",)


def test_parse_recipe_uses_federation_of_release():
    newer = changed(federation={"clients": 7, "hold_out": 0.25}, group={"net": "mlp"})
    cell = only_cell(defaults=newer)
    assert (cell.federation.clients, cell.federation.hold_out) == (7, 0.25)
    assert cell.key == only_cell({"clients": 7, "hold_out": 0.25}).key
    assert set_keys(cell) == set_keys(only_cell({"clients": 7, "hold_out": 0.25}))
    central = only_cell({"training": {"lr": 0.1}}, newer, all={"method": "central"})
    assert (central.federation.clients, central.federation.hold_out) == (1, 0.25)
    groups = {"groups": {"strong": {"clients": "0"}}}
    assert only_cell(groups, newer).federation.group("strong").net == "mlp"
    assert only_cell(groups).federation.group("strong").net == "lenet5"


def test_changed_training_is_part_of_keys():
    newer = changed(
        training__classifier={"lr": 0.5},
        training__cvae__mnist={"epochs": 9},
        statistics={"least": 6},
        rounds={"drop": 0.5},
    )
    plain, weak = {}, {"groups": {"weak": {"net": "cvae-small", "preset": "mnist"}}}
    for federation, expected in (
        (plain, {"clients": {"classifier": {"lr": 0.5}}}),
        ({"training": {"lr": 0.5}}, None),
        (weak, {"weak": {"cvae mnist": {"epochs": 9}}}),
        ({"groups": {"weak": {"net": "cvae-small"}}}, {"weak": {"cvae mnist": {"epochs": 9}}}),
        ({"groups": {"weak": {"net": "cvae-small", "preset": "svhn"}}}, None),
        (
            {"net": "nobody-knows-it"},
            {"clients": {"classifier": {"lr": 0.5}, "cvae mnist": {"epochs": 9}}},
        ),
        ({"training": {"lr": 1.0}, "statistics": True}, {"statistics": {"least": 6}}),
        ({"training": {"lr": 1.0}, "rounds": 2}, {"rounds": {"drop": 0.5}}),
    ):
        cell, before = only_cell(federation, newer), only_cell(federation)
        assert cell.describe().get("defaults") == expected
        assert (cell.key == before.key) == (expected is None)
        assert (set_keys(cell) == set_keys(before)) == (
            expected is None or cell.federation.rounds > 1
        )
        assert "defaults" not in only_cell(federation, AS_IN_CODE).describe()
    large = changed(training={"cvae_large_lr": 0.5})
    assert only_cell(weak, large).describe()["defaults"] == {"weak": {"cvae large": {"lr": 0.5}}}


def test_training_defaults_of_release():
    newer = changed(
        training__classifier={"epochs": 3, "clip": 2.0},
        training__cvae__emnist={"lr": 0.5},
        training={"cvae_large_lr": 0.25},
    )
    usual = training_defaults(newer)
    assert training_defaults(PINNED) == training_defaults(AS_IN_CODE) == TrainingDefaults()
    pixels, labels = torch.zeros(2, 1, 16, 16, dtype=torch.uint8), torch.tensor([0, 1])
    clients = [ClientData(name, pixels, labels, ("a", "b")) for name in ("ann", "bob", "cy")]
    specs = [
        ModelSpec.parse(text) for text in ("mlp", "cvae-small:hidden=8", "cvae-large:hidden=8")
    ]
    stacks = make_stacks(
        clients,
        specs,
        TrainingFlags(lr=None, momentum=0.5),
        preset="emnist",
        seed=0,
        device="cpu",
        initial=None,
        defaults=usual,
    )
    found = {str(stack.spec): stack.training for stack in stacks}
    assert (found["mlp"].epochs, found["mlp"].clip, found["mlp"].momentum) == (3, 2.0, 0.5)
    assert found["cvae-small:hidden=8"].lr == 0.5
    assert found["cvae-large:hidden=8"].lr == 0.25


def test_run_cell_uses_training_of_release(tmp_path):
    few = {
        "data": "fashion-mini",
        "rule": "iid",
        "clients": 60,
        "net": "mlp:hidden=8,layers=1",
        "groups": {},
    }
    newer = changed(
        training__classifier={"epochs": 2, "batch_size": 50}, statistics={"dimensions": 4}
    )
    cell = only_cell({**few, "statistics": True}, newer, A={"method": "fedavg"})
    (clients,) = cell.client_sets
    train_clients(clients, tmp_path, "cpu")
    upload = read_uploads([clients], tmp_path)[0].upload
    assert upload.local_steps == 2 * 2  # a hundred images
    assert dict(upload.parts["statistics"].spec.options)["dimensions"] == 4
    assert (
        Costs("cpu").clients(clients).seconds
        < Costs("cpu").clients(replace(clients, defaults=PINNED)).seconds
    )
    rounds = only_cell({**few, "rounds": 2, "sample": 0.05}, newer, A={"method": "fedavg"})
    run_cell(rounds, tmp_path, "cpu", keep_runs=True)
    (run,) = (tmp_path / "runs").glob("*/run.json")
    assert json.loads(run.read_text())["training"]["epochs"] == 2
    other = changed(training={"cvae_large_lr": 0.25})
    with pytest.raises(SettingsError, match="in rounds CVAEs can only train by today's defaults"):
        run_cell(
            only_cell({**few, "rounds": 2, "net": "mlp,cvae-small"}, other, A={"method": "fedmho"}),
            tmp_path,
            "cpu",
        )


def test_report_reads_folder_of_first_release(tmp_path):
    """It has no word about them in what it remembers of its recipes."""
    tables = {"title": "t", "source": "s", "methods": {"A": {"method": "fedavg"}}}
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "old.json").write_text(json.dumps(tables))
    (tmp_path / "recipes" / "own.json").write_text(json.dumps({**tables, "defaults": CURRENT}))
    assert [recipe.defaults.name for recipe in recipes_in(tmp_path)] == [FIRST, CURRENT]
