"""Methods and nets of other packages: what is good is there, what is broken stands in a warning
and stops nobody else.
"""

import re
import sys
from pathlib import Path

import pytest

from attar import methods
from attar.cli import main
from attar.cli.output import listing
from attar.core import ModelSpec
from attar.errors import SettingsError, SpecError
from attar.fusion import fuse
from attar.internal import plugins
from attar.methods import METHODS, class_problems, find_method
from attar.methods.feddf import FedDF
from attar.nets import registry
from attar.nets.registry import NETS, find
from attar.testing import tiny_upload, tiny_world
from attar.uploads import write_bundle

ROOT = Path(__file__).parents[2]
GOOD = '''
from dataclasses import dataclass
from typing import ClassVar
from attar import Needs, Result, State

@dataclass(frozen=True)
class First:
    """The first client's model (Nobody, 2031)."""

    paper: ClassVar[str] = "Nobody, 2031"
    cost: ClassVar[str] = "nothing"
    place: int = 0

    @property
    def needs(self):
        return Needs()

    def prepare(self, uploads, server):
        return uploads

    def start(self, context):
        return State()

    def phases(self, context):
        return []

    def result(self, context, state):
        return Result({"first": context[self.place].parts["classifier"]})
'''
NET = """
from torch import nn
from attar.nets.plain import Plain
from attar.nets.registry import register

@register({name!r}, "Mine.")
def mine(input_shape, num_classes, width{typed} = 8):
    return Plain(nn.Flatten(), input_shape[0] * input_shape[1] * input_shape[2], num_classes)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install("bad", "methods", "name = module:Class", module=text)``: a package on the path;
    all is forgotten afterwards.
    """
    registered, modules = (dict(METHODS), dict(NETS)), set(sys.modules)
    plugins.load_point.cache_clear()

    def put(package, group, points, **texts):
        folder = tmp_path / package
        info = folder / f"{package}-0.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(f"[attar.{group}]\n{points}\n")
        for module, text in texts.items():
            (folder / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(folder)

    yield put
    for known, before in zip((METHODS, NETS), registered, strict=True):
        known.clear()
        known.update(before)
    for module in set(sys.modules) - modules:
        if str(tmp_path) in str(sys.modules[module].__dict__.get("__file__")):
            del sys.modules[module]
    plugins.load_point.cache_clear()


def test_find_method_of_a_plugin(install):
    install("good", "methods", "first = goodfirst:First", goodfirst=GOOD)
    assert methods.load_plugins() == {}
    assert methods.load_plugins() == {}
    world = tiny_world()
    assert fuse(world.uploads, find_method("first")(), world.server).finished
    (row,) = [row for row in listing.list_methods() if row["name"] == "first"]
    assert (row["summary"], row["paper"]) == ("The first client's model.", "Nobody, 2031")


LACKING = {
    "import": (
        "import nowhere_to_be_found",
        "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    ),
    "syntax": ("def", "cannot be loaded: SyntaxError: "),
    "exits": ("import sys\nsys.exit('usage')", "cannot be loaded: SystemExit: usage"),
    "no such class": (
        "class Other: pass",
        "cannot be loaded: AttributeError: module 'brokenone' has no attribute 'First'",
    ),
    "no class": ("First = 3", "cannot be used: it is 3, not a class"),
    "no method": ("class First: pass", "cannot be used: its class variable `paper` is missing"),
    "no paper": (
        GOOD.replace("    paper:", "    also:"),
        "cannot be used: its class variable `paper` is missing: a line of text$",
    ),
    "no docstring": (re.sub(r'    """.*"""\n', "", GOOD), "cannot be used: it has no docstring"),
    "mutable": (GOOD.replace("(frozen=True)", ""), "cannot be used: it is no frozen dataclass"),
    "no default": (
        GOOD.replace("place: int = 0", "place: int"),
        r"cannot be used: fields without a default .*: place",
    ),
    "unknown type": (
        GOOD.replace("place: int", "place: 'Place'"),
        "it cannot be made .*: NameError: name 'Place' is not defined",
    ),
    "raises": (
        GOOD.replace("return Needs()", "return 1 / 0"),
        "asked what it needs: ZeroDivisionError: division by zero",
    ),
    "no needs": (GOOD.replace("Needs()", "{}"), "its `needs` is {}, not Needs"),
    "unknown capability": (
        GOOD.replace("Needs()", "Needs(each=('attention',))"),
        "'attention', which attar does not know",
    ),
}


@pytest.mark.parametrize(("text", "said"), LACKING.values(), ids=LACKING)
def test_find_method_refuses_a_broken_plugin(install, text, said):
    install("good", "methods", "first = goodfirst:First", goodfirst=GOOD)
    install("bad", "methods", "broken = brokenone:First", brokenone=text)
    refusals = methods.load_plugins()
    assert list(refusals) == ["broken"]
    assert refusals["broken"].startswith("package bad 0.1 offers method 'broken', which ")
    assert re.search(said, refusals["broken"])
    assert "broken" not in [row["name"] for row in listing.list_methods()]
    assert find_method("first").__name__ == "First"
    for _ in range(2):
        with pytest.raises(
            SettingsError, match=r"Package bad 0.1 offers method 'broken', which cannot be"
        ) as caught:
            find_method("broken")
        assert "uninstall" in str(caught.value.fix)
    with pytest.raises(
        SettingsError, match=r"There is no method called 'firsst'. Did you mean 'first'"
    ):
        find_method("firsst")


def test_load_plugins_keeps_built_in_names(install):
    install(
        "bad", "methods", "feddf = secondfirst:First\nother = secondfirst:First", secondfirst=GOOD
    )
    assert methods.load_plugins() == {
        "feddf": "packages attar and bad 0.1 offer method 'feddf': attar's is used"
    }
    assert find_method("feddf") is FedDF
    assert find_method("other").__name__ == "First"


def test_load_plugins_names_both_packages_of_one_name(install):
    for package in ("one", "two"):
        install(package, "methods", f"first = {package}first:First", **{f"{package}first": GOOD})
    (refusal,) = methods.load_plugins().values()
    assert re.fullmatch(
        r"packages (one|two) 0\.1 and (one|two) 0\.1 offer method 'first': none .* uninstall all but one",
        refusal,
    )
    with pytest.raises(SettingsError, match=r"Packages .* uninstall all but one"):
        find_method("first")


def test_load_plugins_keeps_a_name_of_a_script(install, monkeypatch):
    monkeypatch.setitem(METHODS, "first", FedDF)
    install("good", "methods", "first = goodfirst:First", goodfirst=GOOD)
    assert methods.load_plugins()["first"].endswith(
        "cannot be used: the name is taken by attar.methods.feddf.FedDF"
    )


def test_plan_goes_on_when_a_plugin_fails(install):
    install(
        "bad",
        "methods",
        "first = failing:First",
        failing=GOOD.replace("return uploads", "return server.public.labels.sum()"),
    )
    world = tiny_world()
    methods.load_plugins()
    rows = {
        row["method"]: row
        for row in listing.estimate_methods(
            world.uploads, world.server, {"fedavg": METHODS["fedavg"]()}
        )
    }
    assert rows["fedavg"]["fits"]
    keep = {name: METHODS[name] for name in ("fedavg", "first")}
    METHODS.clear()
    METHODS.update(keep)
    rows = {row["method"]: row for row in listing.estimate_methods(world.uploads, world.server)}
    assert rows["fedavg"]["fits"]
    (reason,) = rows["first"]["why_not"]
    assert reason.startswith(
        "the method itself fails: AttributeError: 'NoneType' object has no attribute 'sum'"
    )
    with pytest.raises(AttributeError):
        listing.estimate_methods(world.uploads, world.server, {"first": METHODS["first"]()})


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_class_problems_of_built_in_methods(kind):
    assert class_problems(kind) == []


# --- nets -----------------------------------------------------------------------------------------


def test_find_net_of_a_plugin(install):
    install("good", "nets", "mine = goodnet", goodnet=NET.format(name="mine", typed=": int"))
    assert find("mine").summary == "Mine."
    assert registry.load_plugins() == {}
    assert ModelSpec.parse("mine:width=3").build((1, 4, 4), 2, 0).get_parameter(
        "head.weight"
    ).shape == (2, 16)


def test_load_plugins_takes_a_built_in_builder_under_another_name(install):
    text = "from attar.nets.registry import NETS, register\nregister('mine', 'Mine.')(NETS['lenet5'].build)"
    install("good", "nets", "mine = goodnet", goodnet=text)
    assert find("mine").summary == "Mine."
    assert registry.load_plugins() == {}


NETS_LACKING = {
    "import": ("import nowhere_to_be_found", "cannot be loaded: ModuleNotFoundError"),
    "registers nothing": (
        "class Mine: pass",
        r"cannot be used: it registered no net of that name .*register\('mine'",
    ),
    "another name": (
        NET.format(name="other", typed=": int"),
        "cannot be used: it registered no net of that name",
    ),
    "a name of ours": (
        NET.format(name="lenet5", typed=": int"),
        "cannot be loaded: SpecError: The net name 'lenet5' is registered",
    ),
    "no type": (
        NET.format(name="mine", typed=""),
        "cannot be loaded: SpecError: Net 'mine' has options without a type: width",
    ),
}


@pytest.mark.parametrize(("text", "said"), NETS_LACKING.values(), ids=NETS_LACKING)
def test_find_net_refuses_a_broken_plugin(install, text, said):
    install("bad", "nets", "mine = badnet", badnet=text)
    for _ in range(2):
        with pytest.raises(SpecError, match=f"Package bad 0.1 offers net 'mine', which {said}"):
            find("mine")
    assert list(registry.load_plugins()) == ["mine"]
    assert "mine" not in [row["name"] for row in listing.list_nets()]
    with pytest.raises(SpecError, match=r"There is no net called 'lenet6'. Did you mean 'lenet5'"):
        find("lenet6")


def test_load_plugins_does_not_load_a_net_of_a_built_in_name(install):
    install("bad", "nets", "lenet5 = badnet", badnet="raise SystemExit(3)")
    assert registry.load_plugins() == {
        "lenet5": "packages attar and bad 0.1 offer net 'lenet5': attar's is used"
    }


def test_register_as_documented(install):
    page = (ROOT / "docs" / "add-a-method.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if '"twoconv"' in block]
    install("mine", "nets", "twoconv = mynets", mynets=block)
    assert registry.load_plugins() == {}
    for shape in ((3, 32, 32), (1, 28, 28)):
        net = ModelSpec.parse("twoconv:width=16").build(shape, 10, 0)
        assert net(net.get_parameter("head.weight").new_zeros(2, *shape)).shape == (2, 10)


# --- what people see ------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [[], ["--json"]], ids=["people", "machine"])
@pytest.mark.parametrize("what", ["methods", "nets"])
def test_ls_warns_about_plugins(install, capsys, monkeypatch, what, machine):
    monkeypatch.setenv("COLUMNS", "200")
    install("bad", what, "broken = brokenone:First", brokenone="import nowhere_to_be_found")
    assert main(["ls", what, *machine]) == 0
    out, err = capsys.readouterr()
    word = what.removesuffix("s")
    assert (
        f"warning: package bad 0.1 offers {word} 'broken', which cannot be loaded: ModuleNotFoundError: No module"
        in err
    )
    assert "broken" not in out
    assert "fedavg" in out or "lenet5" in out


def test_fuse_dry_run_warns_about_plugins(install, capsys, tmp_path):
    install("bad", "methods", "broken = nowhere_at_all:Broken")
    for name in "ab":
        write_bundle(tmp_path / f"{name}.attar", tiny_upload(name))
    files = [str(tmp_path / "a.attar"), str(tmp_path / "b.attar")]
    assert main(["fuse", *files, "--dry-run", "--json"]) == 0
    assert "warning: package bad 0.1 offers method 'broken'" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["fuse", *files, "--dry-run", "--method", "fedavg", "--json"]) == 0
    assert "broken" not in capsys.readouterr().err


def test_ls_data_has_no_plugins(capsys):
    assert main(["ls", "data"]) == 0
    assert "warning" not in capsys.readouterr().err
