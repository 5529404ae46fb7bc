"""The page of each method: its headings, and a table of settings that agrees with the code."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from attar.methods import METHODS
from attar.settings import configure

PAGES = Path(__file__).parents[2] / "docs" / "methods"
HEADINGS = ["Idea", "Algorithm", "Settings", "Departures", "Results"]
SIDE_BY_SIDE = ["dense", "co-boosting", "fedhydra", "fedmho", "fedkem", "fedmitr", "accord"]
COLUMNS = ["Setting", "Default", "Symbol", "Meaning"]


def flat_settings(config: Any) -> Iterator[tuple[str, object]]:
    """Yield name and default of every setting as ``--set`` knows them, a group field by field."""
    for field in fields(config):
        if not field.init:
            continue
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from flat_settings(value)
        else:
            yield field.metadata.get("flag", field.name), value


def page_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def headings_of(page: str, level: int) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    return re.findall(rf"^{'#' * level} (.+)$", prose, re.M)


def section_of(page: str, heading: str) -> str:
    """The text under a heading of the second level."""
    (_, after) = page.split(f"\n## {heading}\n", 1)
    return after.split("\n## ", 1)[0]


def first_table_of(section: str) -> list[list[str]]:
    """The rows of the first table, its head included and its rule left out."""
    lines = section[section.index("\n|") :].lstrip("\n").splitlines()
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return [rows[0], *rows[2:]]


def settings_of(page: str) -> dict[str, str]:
    """Setting -> default, as the page's table has them."""
    (head, *rows) = first_table_of(section_of(page, "Settings"))
    assert head == COLUMNS
    found = {}
    for setting, default, _symbol, meaning in rows:
        assert meaning, f"{setting}: no meaning"
        assert setting.strip("`") not in found, f"{setting} stands there twice"
        found[setting.strip("`")] = default.strip("`")
    return found


def as_typed(text: str) -> str:
    """A default as one types it after ``--set``: 8/255 is a number to readers alone."""
    return str(float(Fraction(text))) if re.fullmatch(r"\d+/\d+", text) else text


def test_every_method_has_a_page() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(METHODS)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_headings_of_page(name: str) -> None:
    page = page_of(name)
    assert len(headings_of(page, 1)) == 1
    assert page.startswith(f"# {headings_of(page, 1)[0]}\n")
    assert headings_of(page, 2) == HEADINGS
    under_title = page.split("\n## ", 1)[0]
    assert f"\n`{name}`" in under_title, "no name on the command line"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_settings_of_page(name: str) -> None:
    shown = settings_of(page_of(name))
    declared = dict(flat_settings(METHODS[name]()))
    assert sorted(shown) == sorted(declared)
    typed = {setting: as_typed(text) for setting, text in shown.items()}
    parsed = dict(flat_settings(configure(METHODS[name], typed, of=name)))
    assert parsed == declared


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_algorithm_of_page_beside_epoch(name: str) -> None:
    """The box and ``epoch`` stand side by side; the build of the site fails without the code."""
    section = section_of(page_of(name), "Algorithm")
    (columns,) = re.findall(r"^::::\{container\} side-by-side\n(.*?)^::::$", section, re.S | re.M)
    box, code = columns.split(":::{container} code-box\n")
    assert box.startswith(":::{container} paper-box\n")
    assert re.search(r"^1\. ", box, re.M), "the box has numbered steps"
    assert f":pyobject: {METHODS[name].__name__}.epoch\n" in code
    assert "{literalinclude} ../../src/attar/methods/" in code
