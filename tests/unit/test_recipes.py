"""Recipes: each of the repository's can be read; all mistakes of one are in one error."""

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from attar.bench.availability import find_missing
from attar.bench.grid import cells_of, check_settings, parse_filters
from attar.bench.inherit import recipe_name, recipe_tables, with_settings
from attar.bench.oracles import CENTRAL, LOCAL
from attar.bench.parse import parse_recipe, read_recipe
from attar.bench.provenance import strip_words
from attar.bench.recipe import Federation, Published, with_seeds
from attar.bench.releases import release_names
from attar.bench.versions import SOURCE_HASHES
from attar.errors import SettingsError

HOME = Path(__file__).parents[2] / "recipes"
QUEUE = HOME / "queue.toml"
RECIPES = sorted(path for path in HOME.rglob("*.toml") if path != QUEUE)
KEYS = json.loads((Path(__file__).parents[1] / "golden" / "keys.json").read_text())
SMALL = {
    "title": "small",
    "source": "nowhere",
    "axes": {
        "alpha": [0.1, 0.5],
        "set": {"A": {"data": "fashion-mini", "width": 8}, "B": {"data": "mnist"}},
    },
    "federation": {"rule": "dirichlet:{alpha}", "training": {"epochs": "{alpha}"}},
    "methods": {
        "FedAvg": {"method": "fedavg"},
        "DENSE": {"method": "dense", "set": {"epochs": 3}, "only": {"set": "A"}},
    },
    "published": {
        "columns": ["set", "alpha", "FedAvg", "DENSE"],
        "rows": [["A", 0.1, "12.5±0.5", 30], ["B", 0.5, 7, ""]],
    },
}


def digest_of_keys(cells):
    """Of the keys of all runs and of the clients that they need."""
    lines = [
        " ".join([cell.row.label, str(cell.seed), cell.key, *(one.key for one in cell.client_sets)])
        for cell in cells
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "path", RECIPES, ids=lambda path: path.relative_to(HOME).with_suffix("").as_posix()
)
def test_recipe_file(path):
    recipe = read_recipe(path)
    cells = cells_of(recipe)
    assert cells
    assert recipe.defaults.name in release_names()
    for cell in cells:
        assert all(reason.strip() for reason in cell.missing)
        known = not any(reason.startswith("method ") for reason in cell.missing)
        if known and cell.row.method not in (LOCAL, CENTRAL):
            cell.method()  # settings that the method does not have would raise
    check_settings(cells)
    keys = {(cell.key, cell.row.output) for cell in cells}
    assert len(keys) <= len(cells)
    if recipe.name in KEYS:  # those of release 0.1
        assert digest_of_keys(cells) == KEYS[recipe.name], (
            f"The keys of {recipe.name} have changed: its records and trained clients are not "
            "found any more. If the recipe itself was changed, and is meant to have other runs, "
            f"write {digest_of_keys(cells)} into tests/golden/keys.json."
        )
    command, time, source = path.read_text().splitlines()[:3]
    assert command.startswith(f"# attar bench recipes/{path.relative_to(HOME).as_posix()}")
    assert re.search(r"minutes|hours", time)
    assert source.startswith("# Source: ")


def test_recipes_cover_papers():
    found = {recipe_name(path) for path in RECIPES}
    wanted = {f"coboosting/table{n}" for n in (*range(1, 8), *range(9, 20))} | {
        f"coboosting/figure{n}" for n in range(1, 6)
    }
    wanted |= (
        {f"fedhydra/table{n}" for n in range(1, 13)}
        | {f"fedhydra/figure{n}" for n in range(3, 13)}
        | {"fedhydra/appendix-f"}
    )
    wanted |= {f"fedmho/table{n}" for n in range(4, 12)} | {
        f"fedmho/figure{n}" for n in (2, *range(5, 10))
    }
    wanted |= {f"fedmitr/table{n}" for n in range(1, 12)} | {
        f"fedmitr/figure{n}" for n in (1, 3, 4)
    }
    wanted |= {f"fedkem/figure{n}" for n in range(4, 8)} | {"smoke"}
    assert wanted <= found


def test_cells_of_lists_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTAR_DATA", str(tmp_path))  # no data but what is shipped
    assert not any(cell.missing for cell in cells_of(read_recipe(HOME / "smoke.toml")))
    lacking = {
        reason
        for cell in cells_of(read_recipe(HOME / "coboosting" / "table1.toml"))
        for reason in cell.missing
    }
    assert lacking == {
        f"data set {name}" for name in ("mnist", "fashion-mnist", "svhn", "cifar10", "cifar100")
    }
    lacking = {
        reason
        for cell in cells_of(read_recipe(HOME / "fedhydra" / "table12.toml"))
        for reason in cell.missing
    }
    assert "method ot" in lacking
    lacking = {
        reason
        for cell in cells_of(read_recipe(HOME / "fedmitr" / "table1.toml"))
        for reason in cell.missing
    }
    assert "weights weights/deit-tiny-imagenet1k" in lacking


def test_points_fill_axes():
    recipe = parse_recipe(SMALL, "small")
    (avg, dense) = recipe.rows
    points = list(recipe.points(avg))
    assert [point.labels for point in points] == [
        {"alpha": a, "set": s} for a in ("0.1", "0.5") for s in ("A", "B")
    ]
    assert [point.federation.data for point in points[:2]] == ["fashion-mini", "mnist"]
    assert points[0].federation.rule == "dirichlet:0.1"
    assert points[0].federation.training == {"epochs": 0.1}
    assert len(list(recipe.points(dense))) == 2


def test_cells_of_has_published_numbers():
    recipe = parse_recipe(SMALL, "small")
    cells = {(cell.row.label, *cell.labels.values()): cell.published for cell in cells_of(recipe)}
    assert cells["FedAvg", "0.1", "A"] == Published(12.5, 0.5)
    assert cells["DENSE", "0.1", "A"] == Published(30.0)
    assert cells["FedAvg", "0.5", "B"] == Published(7.0)
    assert cells["FedAvg", "0.1", "B"] is None


def test_cells_of_has_published_numbers_by_seed():
    tables = {
        **SMALL,
        "seeds": [0, 1],
        "published": {"columns": ["set", "alpha", "seed", "FedAvg"], "rows": [["A", 0.1, 1, 5]]},
    }
    recipe = parse_recipe(tables, "small")
    found = {
        cell.seed: cell.published
        for cell in cells_of(
            recipe, filters=parse_filters([recipe], ["alpha=0.1", "set=A", "method=FedAvg"])
        )
    }
    assert found == {0: None, 1: Published(5.0)}


def test_parse_filters_selects_cells():
    recipe = with_seeds(parse_recipe(SMALL, "small"), 3)
    assert recipe.seeds == (0, 1, 2)
    assert len(cells_of(recipe)) == 18
    assert len(cells_of(recipe, filters=parse_filters([recipe], ["set=A", "seed=1"]))) == 4
    assert (
        len(
            cells_of(
                recipe,
                filters=parse_filters([recipe], ["method=FedAvg", "method=DENSE", "alpha=0.1"]),
            )
        )
        == 9
    )
    with pytest.raises(SettingsError) as raised:
        parse_filters([recipe], ["beta=1", "set=C"])
    assert len(raised.value.problems) == 2


def test_parse_filters_of_several_recipes():
    """A row of one recipe beside a row of another; an axis that only one of them has narrows
    that one alone.
    """
    here = parse_recipe(SMALL, "here")
    changed = {
        "axes": {},
        "federation": {"data": "mnist"},
        "methods": {"FedAvg": {"method": "fedavg"}},
        "published": {},
    }
    there = parse_recipe({**SMALL, **changed}, "there")
    wanted = parse_filters([here, there], ["method=DENSE", "method=FedAvg", "alpha=0.1", "seed=0"])
    assert {(cell.row.label, cell.labels["alpha"]) for cell in cells_of(here, filters=wanted)} == {
        ("FedAvg", "0.1"),
        ("DENSE", "0.1"),
    }
    assert {cell.row.label for cell in cells_of(there, filters=wanted)} == {"FedAvg"}
    assert cells_of(there, filters=parse_filters([here, there], ["method=DENSE"])) == []
    with pytest.raises(SettingsError, match="here, there"):
        parse_filters([here, there], ["method=Nobody"])


def test_parse_recipe_lists_all_problems():
    wrong = {
        "title": "x",
        "colour": 1,
        "axes": {"alpha": []},
        "methods": {
            "A": {"set": {}},
            "B": {"method": "dense", "sets": {}, "only": {"alpha": "0.7"}},
        },
        "published": {"columns": ["nobody", "B"], "rows": [[1], [1, "many"]]},
    }
    with pytest.raises(SettingsError) as raised:
        parse_recipe(wrong, "wrong")
    text = " ".join(raised.value.problems)
    for word in (
        "colour",
        "source is missing",
        "axes.alpha",
        "methods.A",
        "sets",
        "0.7",
        "nobody",
        "line 1",
        "'many'",
    ):
        assert word in text


def test_recipe_tables_extend_another(tmp_path):
    first = ['title = "a"', 'source = "s"', 'notes = "n"', "[federation]", "clients = 7",
             "[methods.X]", 'method = "fedavg"', "[published]", 'columns = ["X"]',
             "rows = [[5]]"]  # fmt: skip
    (tmp_path / "a.toml").write_text("\n".join(first))
    (tmp_path / "b.toml").write_text('extends = "a.toml"\ntitle = "b"\n[federation]\nnet = "mlp"\n')
    merged = recipe_tables(tmp_path / "b.toml")
    assert merged["federation"] == {"clients": 7, "net": "mlp"}
    assert "published" not in merged
    assert "notes" not in merged
    recipe = read_recipe(tmp_path / "b.toml")
    assert (recipe.title, recipe.source, recipe.rows[0].label) == ("b", "s", "X")


@pytest.mark.parametrize("text", ["title = ", "\0", ""])
def test_read_recipe_refuses_other_files(tmp_path, text):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(SettingsError):
        read_recipe(tmp_path / "x.toml")
    with pytest.raises(SettingsError, match="There is no recipe"):
        read_recipe(tmp_path / "y.toml")


def test_cell_key_has_what_decides_outcome():
    def only_cell(**changed):
        tables = {
            "title": "x",
            "source": "s",
            "methods": {"D": {"method": "dense", "set": {"epochs": 3}}},
            **changed,
        }
        return cells_of(parse_recipe(tables, "x"))[0]

    same = only_cell(title="another", notes="words")
    assert same.key == only_cell().key
    assert same.client_sets[0].key == only_cell().client_sets[0].key
    others = [
        only_cell(methods={"D": {"method": "dense", "set": {"epochs": 4}}}),
        only_cell(seeds=[1]),
        only_cell(federation={"net": "mlp"}),
        only_cell(federation={"rule": "iid"}),
        only_cell(federation={"training": {"lr": 0.5}}),
    ]
    assert len({only_cell().key, *(cell.key for cell in others)}) == 6
    trained = [cell.client_sets[0].key for cell in others]
    assert trained[0] == only_cell().client_sets[0].key  # another method has the same clients
    assert len(set(trained)) == 5


def test_cell_key_without_plugins_is_unchanged(monkeypatch):
    """Of records and of clients' folders, as they were before plug-ins had a part in them; but
    for the hash of our own code.
    """
    monkeypatch.setitem(SOURCE_HASHES, 1, ("pinned",))
    methods = {
        "A": {"method": "fedavg"},
        "B": {"method": "feddf", "set": {"steps": 8}, "student": "mlp:hidden=64"},
        "all": {"method": "central"},
    }
    federation = {"rule": "dirichlet:0.5", "clients": 3, "net": "lenet5,cnn1"}
    cells = cells_of(
        parse_recipe(
            {"title": "t", "source": "s", "federation": federation, "methods": methods}, "t"
        )
    )
    trained = "bd113e15c98eab70773e90ff793c5e6a"
    assert {
        cell.row.label: (cell.key, *(one.key for one in cell.client_sets)) for cell in cells
    } == {
        "A": ("9ae5f032acb2f328ec04a9b5bf8cb207", trained),
        "B": ("fa38dca2b0cb10a49b70689df84000c5", trained),
        "all": ("6740d7194fde6f63d2bfff6c427793cd", "634207041a6b94b9716b00d938d3665c"),
    }
    assert not any(cell.plugins or cell.plugin_sources for cell in cells)


def test_strip_words_keeps_code():
    first = strip_words('"""Words."""\nlr = 1  # why\n')
    assert first == strip_words('"""Other words."""\n\n\nlr = 1\n')
    assert first != strip_words('"""Words."""\nlr = 2\n')


def test_check_settings_lists_problems():
    methods = {
        "D": {"method": "dense", "set": {"epoch": 3}},
        "E": {"method": "fedavg", "federation": {"training": {"lr": "fast"}}},
    }
    with pytest.raises(SettingsError) as raised:
        check_settings(
            cells_of(
                parse_recipe(
                    {**SMALL, "axes": {}, "federation": {}, "methods": methods, "published": {}},
                    "x",
                )
            )
        )
    assert [problem.split(":")[0] for problem in raised.value.problems] == ["D", "E"]


def test_check_settings_of_nets(
    monkeypatch,
):
    federation = {"data": "nowhere", "net": "mlp:hiden=8", "groups": {}}
    methods = {
        "A": {"method": "fedavg"},
        "B": {"method": "dense", "set": {"epoch": 3}, "student": "lenet5:depth"},
    }
    cells = cells_of(
        parse_recipe(
            {**SMALL, "axes": {}, "federation": federation, "methods": methods, "published": {}},
            "x",
        )
    )
    assert {cell.missing for cell in cells} == {("data set nowhere",)}
    with pytest.raises(SettingsError) as raised:
        check_settings(cells)  # also of cells whose data are not here
    first, second, third = raised.value.problems
    assert first == (
        "net mlp:hiden=8: hiden: net mlp has no such setting: did you mean hidden? (settings of "
        "net mlp: hidden, layers)"
    )
    assert second.startswith("net lenet5:depth: 'depth'")
    assert third == "B: epoch: method dense has no such setting: did you mean epochs?"
    assert find_missing("fedavgg", Federation(net="lenet5,mpl:hidden=8"), "ours") == [
        "method fedavgg (did you mean 'fedavg'?)",
        "net lenet5,mpl:hidden=8 (did you mean 'mlp'?)",
        "net ours",
    ]
    assert find_missing("ot", Federation(net="hf:nowhere"), None) == ["method ot", "net hf:nowhere"]

    def broken(name):
        raise SettingsError(
            f"Package kit 1.2 offers method {name!r}, which cannot be loaded: ImportError: no.",
            fix="repair it",
        )

    monkeypatch.setattr("attar.bench.availability.find_method", broken)
    (reason,) = find_missing("kit", Federation(), None)
    assert reason == (
        "method kit (Package kit 1.2 offers method 'kit', which cannot be loaded: ImportError: no)"
    )


def test_check_server_table(tmp_path):
    def recipe(name, server, *methods, extends=None):
        lines = [f'extends = "{extends}.toml"'] if extends else ['title = "t"', 'source = "s"']
        rows = [f'[methods.{method}]\nmethod = "{method}"' for method in methods]
        (tmp_path / f"{name}.toml").write_text("\n".join([*lines, "[server]", *server, *rows]))
        return tmp_path / f"{name}.toml"

    with pytest.raises(SettingsError) as raised:
        read_recipe(recipe("typo", ["stesp = 60", "xyz = 1", "lr = 0.1"], "fedavg", "feddf"))
    assert raised.value.what == "Settings of recipe typo that change nothing:"
    assert raised.value.problems == (
        "server.stesp: no method of the recipe has it; did you mean steps?",
        "server.xyz: no method of the recipe has it",
    )
    assert read_recipe(
        recipe("guest", ["stesp = 60"], "feddf", "of-a-package-that-is-not-here")
    ).server == {"stesp": 60}
    recipe("base", ["generator_steps = 3"], "dense")
    heir = read_recipe(
        recipe("heir", ["steps = 60"], "feddf", extends="base")
    )  # has no generator, and did not ask for one
    assert heir.server == {"generator_steps": 3, "steps": 60}
    (cell,) = cells_of(heir)
    assert cell.settings == {"steps": 60}
    assert read_recipe(recipe("shorter", ["generator_steps = 1"], extends="base")).server == {
        "generator_steps": 1
    }
    with pytest.raises(
        SettingsError, match=r"server\.step: no method of the recipe has it; did you mean steps\?"
    ):
        read_recipe(recipe("wrong", ["step = 60"], "feddf", extends="base"))


def test_recipes_are_plain_toml():
    for path in RECIPES:
        tomllib.loads(path.read_text())


def test_with_settings_replaces_settings():
    tables = {**SMALL, "server": {"epochs": 9, "batch_size": 7}}
    recipe = parse_recipe(with_settings(tables, {"epochs": 2, "clip": 5}, {"lr": 0.5}), "small")
    cells = {cell.row.label: cell for cell in cells_of(recipe)}
    assert cells["FedAvg"].settings == {}  # it has none of them
    assert dict(cells["DENSE"].settings) == {"epochs": 2, "clip": 5, "batch_size": 7}
    assert cells["DENSE"].method().epochs == 2
    assert set(cells["FedAvg"].federation.training) == {"epochs", "lr"}
    assert cells["FedAvg"].federation.training["lr"] == 0.5
    assert {cell.key for cell in cells_of(recipe)}.isdisjoint(
        cell.key for cell in cells_of(parse_recipe(tables, "small"))
    )
    same = with_settings(tables, {"epochs": 3, "batch_size": 7}, {})
    assert {cell.key for cell in cells_of(parse_recipe(same, "small"))} == {
        cell.key for cell in cells_of(parse_recipe(tables, "small"))
    }
    strong, weak = {"net": "vgg9", "training": {"epochs": 3}}, {"net": "cvae-small"}
    grouped = with_settings(
        {"federation": {"groups": {"strong": strong, "weak": weak}}}, {}, {"epochs": 1}
    )
    assert grouped["federation"]["groups"] == {
        "strong": {"net": "vgg9", "training": {"epochs": 1}},
        "weak": weak,
    }


def test_with_settings_refuses_unknown():
    with pytest.raises(SettingsError) as raised:
        with_settings(SMALL, {"epoch": 1, "xyz": "x", "clip": 1}, {})
    first, second = raised.value.problems
    assert first == "epoch: no method of the recipe has it; did you mean epochs?"
    assert second == "xyz: no method of the recipe has it"
    assert "generator_lr" in raised.value.fix
    alone = {
        **SMALL,
        "methods": {"own": {"method": "local", "set": {"client": 2}}},
        "published": {},
    }
    recipe = parse_recipe(with_settings(alone, {"client": 1}, {}), "alone")
    assert {cell.settings["client"] for cell in cells_of(recipe)} == {1}


def test_parse_recipe_refuses_unknown_placeholders():
    changed = {"rule": "classes:{D}", "training": {"lr": "{rate}"}}
    methods = {
        "FedAvg": {"method": "fedavg"},
        "DENSE": {"method": "dense", "set": {"epochs": "{width}"}, "student": "{net}"},
    }
    with pytest.raises(SettingsError) as raised:
        parse_recipe({**SMALL, "federation": changed, "methods": methods, "published": {}}, "small")
    text = "\n".join(raised.value.problems)
    for row, name in [("FedAvg", "D"), ("FedAvg", "rate"), ("DENSE", "D"), ("DENSE", "net")]:
        assert f"methods.{row}: {{{name}}} stands for nothing; there are alpha, set" in text
    bare = {
        "title": "x",
        "source": "s",
        "federation": {"rule": "classes:{D}"},
        "methods": {"A": {"method": "fedavg"}},
    }
    with pytest.raises(SettingsError, match=r"\{D\} stands for nothing; the recipe has no axes"):
        parse_recipe(bare, "x")
    only_a = {"DENSE": {**methods["DENSE"], "student": "mlp"}}
    with pytest.raises(
        SettingsError, match=r"\{width\} stands for nothing"
    ):  # at B, which has none
        parse_recipe({**SMALL, "methods": only_a, "published": {}}, "small")
    only_a["DENSE"] |= {"only": {"set": "A"}}
    assert parse_recipe({**SMALL, "methods": only_a, "published": {}}, "small").rows
