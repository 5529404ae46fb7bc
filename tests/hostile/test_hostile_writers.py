"""Every file that attar writes, with names that strangers chose to be markup, code or formulas."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
import torch
from markdown_it import MarkdownIt

from attar.bench.grid import cells_of
from attar.bench.parse import parse_recipe
from attar.bench.tables import as_csv, table_of
from attar.cli.predict import _as_csv
from attar.data.picture import draw_partition
from attar.deploy import Answer, gallery_page
from attar.fusion import fuse
from attar.internal.text import escape_cell, escape_markdown
from attar.models import federation_card
from attar.models.heatmap import draw_heat_map
from attar.report.bar_chart import Bar, draw_bars
from attar.report.page import page_of
from attar.running import RunOptions
from attar.testing import tiny_upload

pytestmark = pytest.mark.hostile

NAMES = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(3)>",
    "![x](http://127.0.0.1:9/leak.png)",
    "[click](javascript:alert(4))",
    "<http://127.0.0.1:9/auto>",
    "http://127.0.0.1:9/bare",
    "www.example.com/bare",
    "</code>",
    "`code` and ``more``",
    "a | b | c",
    "**bold** _it_ ~~no~~",
    "$x^2$ @everybody :smile:",
    "&lt;b&gt;",
    "back\\slash\\[x]",
    "]]> <![CDATA[ ]]>",
    "' onload='alert(5)",
    '" onload="alert(6)',
)
FORMULAS = (
    "=cmd|'/C calc'!A0",
    "+1+cmd",
    "-2+3",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "＝1+1",
    "=HYPERLINK(1).png",
)


class Outline(HTMLParser):
    """What a browser would make of a page: its elements, its addresses and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.handlers, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href")]
        self.handlers += [key for key, _ in attributes if key.startswith("on")]

    def handle_data(self, data):
        self.text += data


def rendered(markdown):
    outline = Outline(
        MarkdownIt("commonmark").enable("table").enable("strikethrough").render(markdown)
    )
    assert not {"script", "img", "a", "s", "em"} & set(outline.tags), outline.tags
    assert outline.addresses == outline.handlers == []
    return outline


@pytest.mark.parametrize("name", NAMES)
def test_escape_markdown_shows_a_name_as_it_is(name):
    line = rendered(f"Classes: {escape_markdown(name)}.")
    assert line.text.strip() == f"Classes: {name}."
    cell = rendered(f"| a | b |\n|---|---|\n| {escape_markdown(name)} | 7 |")
    assert cell.text.split("\n")[-4:-2] != []
    assert cell.tags.count("td") == 2
    assert name in cell.text
    # GitHub makes links of bare addresses, people of @names and pictures of :names:.
    assert not re.search(r"http://|www\.|(?<!\\)[@$]|(?<!\\):smile", escape_markdown(name))


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    out = tmp_path_factory.mktemp("fused")
    uploads = [tiny_upload(f"client-{number}", "lenet5", NAMES) for number in range(3)]
    fuse(uploads, "ensemble", options=RunOptions(out=out / "x"), robustness=True)
    return out / "x"


def test_model_card_of_fuse(fused):
    card = rendered((fused / "README.md").read_text())
    for name in NAMES:
        assert name in card.text


def test_model_card_of_federate():
    record = {
        "rounds": [1],
        "bytes_up": 1,
        "bytes_down": 1,
        "method": "fedavg",
        "attar": "0",
        "clients": ["a"],
        "task": {"classes": list(NAMES)},
        "accuracies": {},
        "settings": {},
        "plan": {},
        "seed": 0,
        "public": None,
        "remarks": [f"client {name} did not answer" for name in NAMES],
        "ending": "finished",
    }
    part = tiny_upload("a", "lenet5", NAMES).parts["classifier"]
    card = rendered(federation_card("student", part, record))
    for name in NAMES:
        assert card.text.count(name) >= 2


@pytest.mark.parametrize("formula", FORMULAS)
def test_escape_cell_marks_formulas(formula):
    assert escape_cell(formula) == f"'{formula}".replace("\r", " ")
    assert escape_cell("client-0") == "client-0"
    assert escape_cell(-2.5) == -2.5


def test_predictions_table():
    rows = [{"image": name, "class": name, "probability": 0.5} for name in (*FORMULAS, *NAMES)]
    read = list(csv.DictReader(io.StringIO(_as_csv(rows), newline="")))
    assert len(read) == len(rows)
    for before, after in zip(rows, read, strict=True):
        assert after["class"] == after["image"]
        assert after["class"].lstrip("'").lstrip() == before["class"].lstrip("'").lstrip()
        assert after["class"][0] not in "=+-@\t\r＝"


def test_bench_table():
    tables = {
        "title": "t",
        "source": "s",
        "seeds": [0],
        "federation": {"rule": "iid", "clients": 2},
        "methods": {name: {"method": "ensemble"} for name in FORMULAS if "\r" not in name},
    }
    recipe = parse_recipe(tables, "small")
    assert cells_of(recipe)
    read = list(csv.DictReader(io.StringIO(as_csv(recipe, table_of(recipe, [])))))
    assert len(read) == len(FORMULAS) - 1
    for line in read:
        assert line["row"][0] == "'"


def test_gallery_page():
    answers = [Answer(name, ((name, 0.4), ("b", 0.3))) for name in NAMES]
    page = Outline(gallery_page(NAMES[0], answers, note=NAMES[1]))
    assert not {"script", "img", "a"} & set(page.tags)
    assert page.addresses == page.handlers == []
    for name in NAMES:
        assert name in page.text


def test_report_page():
    summary = {
        "runs": 1,
        "of": "run",
        "failed": 0,
        "devices": [],
        "precisions": [],
        "versions": [],
        "commits": [],
    }
    plain_run = {
        "classes": ["a"],
        "row": "b",
        "clients": ["c"],
        "place": "d",
        "bytes": 1,
        "seconds": 0,
        "oracle": None,
        "rounds": [],
        "per_class": [],
        "confusion": None,
        "curve": [],
        "arrays": {},
        "gallery": None,
    }
    facts = {
        "summary": summary,
        "standings": [],
        "tables": [],
        "federations": [],
        "runs": [{**plain_run, "classes": list(NAMES), "row": NAMES[2]}],
    }
    text = page_of(facts, NAMES[0])
    page = Outline(text)
    plain = Outline(
        page_of(
            {**facts, "runs": [plain_run]},
            "title",
        )
    )
    assert page.tags == plain.tags
    start = text.index('id="facts">') + len('id="facts">')
    data = text[start : text.index("</script>", start)]
    assert "<" not in data
    assert json.loads(data)["runs"][0]["classes"] == list(NAMES)


def test_drawings_are_plain_xml():
    drawings = [
        draw_heat_map(torch.rand(len(NAMES), len(NAMES)), NAMES, NAMES, NAMES[0]),
        draw_bars([Bar(name, 0.5, "client") for name in NAMES], NAMES[0]),
        draw_partition(
            torch.ones(2, len(NAMES), dtype=torch.int64).numpy(), NAMES, NAMES[:2], NAMES[0]
        ),
    ]
    for drawing in drawings:
        tags = {
            element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawing).iter()
        }
        assert not {"script", "a", "image", "img", "foreignObject"} & tags
        assert not any(
            key.lower().startswith("on") or key.endswith("href")
            for element in ElementTree.fromstring(drawing).iter()
            for key in element.attrib
        )
