"""The report page: everything in it, nothing outside it, and in a browser every chart is drawn."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from chromium import PAPER, Chromium, browser, look_at

from attar.bench.grid import cells_of
from attar.bench.parse import parse_recipe
from attar.bench.records import FORMAT
from attar.errors import RunError
from attar.models import draw_sheet
from attar.report.charts import CHARTS
from attar.report.facts import facts_of
from attar.report.page import page_of, write_report

CLASSES = ["T-shirt", "<b>Bag</b>", "Coat"]
TABLES = {
    "title": "A table & more",
    "source": "nowhere",
    "seeds": [0, 1],
    "axes": {"alpha": [0.1, 0.5]},
    "federation": {"rule": "dirichlet:{alpha}", "clients": 2},
    "methods": {"FedAvg": {"method": "fedavg"}, "DENSE": {"method": "dense"},
     "Hydra": {"method": "fedhydra"},
                "all": {"method": "central"}},
    "published": {"columns": ["alpha", "FedAvg", "DENSE"], "rows": [[0.1, 40, "50.5±1.0"], [0.5,
     60, 70]]},
}  # fmt: skip
RECIPE = parse_recipe(TABLES, "small")
ROUNDS = {
    row: [
        {"round": n, "accuracy": n / most, "bytes_up": size, "bytes_down": size} for n in (1, 2, 3)
    ]
    for row, most, size in (("FedAvg", 4, 9000), ("Hydra", 5, 500))
}


def record(cell, accuracy, **changed):
    curve = (
        [{"phase": "distil", "step": n, "accuracy": accuracy - 0.1 / n} for n in (1, 2, 3)]
        if cell.row.label != "FedAvg"
        else []
    )
    clients = [
        {"client": f"client-{n}", "bytes": 1000 * (n + 1),
         "sha256": f"{cell.federation.rule}{cell.seed}{n}", "accuracy": 0.3 + n / 10,
         "label_counts": [5, n, 7], "num_examples": 12 + n, "parts": {}}
        for n in (0, 1)
    ]  # fmt: skip
    model = {
        "accuracy": accuracy,
        "per_class": [0.5, None, 1.0],
        "confusion": [[5, 1, 0], [0, 0, 0], [1, 2, 9]],
    }
    return {
        "format": FORMAT, "recipe": "small", "row": cell.row.label, "labels": dict(cell.labels),
         "key": cell.key, "name": cell.name,
        "method": cell.row.method, "settings": {"epochs": 3}, "federation": {"data": "d",
         "rule": cell.federation.rule},
        "seed": cell.seed, "precision": "fp32", "device": "cpu", "versions": {"attar": "0",
         "torch": "2"}, "commit": "abc",
        "ending": "finished", "seconds": 3.5, "seconds_by_phase": {"distil": 3.0},
         "bytes_up": 3000, "bytes_down": 0,
        "accuracy": accuracy, "best_on_test": accuracy, "curve": curve,
         "models": {"student": model}, "clients": clients,
        "ensemble_accuracy": 0.6, "classes": CLASSES,
         "oracle": "the images of all clients" if cell.row.label == "all" else None,
        "arrays": {"weights": [0.2, 0.8], "guidance": [[0.1, 0.2, 0.7], [0.9, 0.8,
         0.3]]} if cell.row.label == "Hydra" else {},
        "gallery": {"file": f"{cell.name}.png", "steps": [1,
         3]} if cell.row.label == "DENSE" else None, **changed,
    }  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    import torch

    home = tmp_path_factory.mktemp("page")
    (home / "records").mkdir()
    for number, cell in enumerate(cells_of(RECIPE)):
        if (cell.row.label, cell.seed) == ("DENSE", 1) or (
            cell.row.label,
            cell.labels["alpha"],
        ) == ("all", "0.5"):
            continue
        made = record(cell, 0.4 + number / 100, rounds=ROUNDS.get(cell.row.label, []))
        (home / "records" / f"{cell.name}.json").write_text(json.dumps(made))
        if made["gallery"]:
            (home / "records" / f"{cell.name}.png").write_bytes(
                draw_sheet(torch.rand(2, 4, 1, 8, 8))
            )
    return write_report(home, home / "report.html", [RECIPE])


def first_screen_of(records, recipes=()):
    """The first section of a page, as text without tags; hidden views are left out."""
    text = page_of(facts_of(records, recipes, Path("/nonexistent")), "some")
    section = text[text.index('<section id="best">') :]
    section = section[: section.index("</section>")]
    shown = re.sub(r'<div class="view" id="view-\d+" hidden>.*?</figure></div>', "", section)
    return " ".join(re.sub(r"<[^>]*>", " ", shown).split())


def test_page_begins_with_the_best_model():
    cells = [cell for cell in cells_of(RECIPE, "fp32") if cell.labels["alpha"] == "0.1"]
    accuracies = {"FedAvg": 0.35, "DENSE": 0.52, "Hydra": 0.61, "all": 0.8}
    records = [record(cell, accuracies[cell.row.label] + cell.seed / 100) for cell in cells]
    text = first_screen_of(records, [RECIPE])
    assert "Hydra is the most accurate fused model. It is 9.0 points ahead of DENSE." in text
    assert "Best fused model 61.5 % Hydra" in text
    assert "Best single client 40.0 % the fused model is 21.5 points above" in text
    assert "Central training 80.5 % the fused model is 19.0 points below" in text
    bars = text[text.index("accuracy, %") :]
    order = [bars.index(name) for name in ("Hydra", "DENSE", "FedAvg")]
    assert order == sorted(order)
    assert "61.5 ± 0.7" in bars
    assert "Central training, one net on the images of all clients: 80.5 %" in bars


def test_page_says_what_is_missing_and_what_is_not_proven():
    cell = next(cell for cell in cells_of(RECIPE, "fp32") if cell.row.label == "DENSE")
    other = next(cell for cell in cells_of(RECIPE, "fp32") if cell.row.label == "Hydra")
    text = first_screen_of([record(cell, 0.38), record(other, 0.37)])
    assert "It is not better than the best single client." in text
    assert "1.0 points ahead of Hydra, in a single run: a few points can be chance." in text
    assert "Central training – not run" in text
    clients = [{**client, "accuracy": None} for client in record(cell, 0.38)["clients"]]
    assert "Best single client – not measured" in first_screen_of(
        [record(cell, 0.38, clients=clients)]
    )
    assert "Nothing was measured yet." in first_screen_of([])


def test_page_takes_a_small_lead_for_none():
    cells = [cell for cell in cells_of(RECIPE, "fp32") if cell.labels["alpha"] == "0.1"]
    spread = {"FedAvg": (0.5, 0.6), "DENSE": (0.52, 0.6), "Hydra": (0.3, 0.3), "all": (0.9, 0.9)}
    records = [record(cell, spread[cell.row.label][cell.seed]) for cell in cells]
    assert "1.0 points ahead of FedAvg, which is less than the spread of the seeds." in (
        first_screen_of(records, [RECIPE])
    )


def test_page_shows_the_mean_over_all_places_first():
    accuracies = {"FedAvg": (0.35, 0.75), "DENSE": (0.4, 0.6), "Hydra": (0.3, 0.62)}
    records = [
        record(cell, accuracies[cell.row.label][cell.labels["alpha"] == "0.5"])
        for cell in cells_of(RECIPE, "fp32")
        if cell.row.label in accuracies
        and (cell.row.label, cell.labels["alpha"]) != ("Hydra", "0.1")
    ]
    text = first_screen_of(records, [RECIPE])
    assert "FedAvg is the most accurate fused model. In the mean it is 5.0 points ahead" in text
    assert "leads at 1 of 2 places" in text
    assert "mean over 2 places" in text
    assert "Not run at every place: Hydra." in text


def test_page_compares_the_precision_of_the_most_runs():
    """A run more in another precision does not take a row out of the mean over all places."""
    cells = [cell for cell in cells_of(RECIPE, "tf32") if cell.row.label in ("DENSE", "Hydra")]
    records = [record(cell, 0.5, precision="tf32") for cell in cells]
    extra = next(cell for cell in cells_of(RECIPE, "fp32") if cell.row.label == "DENSE")
    text = first_screen_of([*records, record(extra, 0.9)], [RECIPE])
    assert "DENSE and Hydra are the most accurate fused models" in text
    assert "Not run at every place: DENSE (fp32)." in text


def test_page_prints_wide_tables_in_pieces():
    tables = {**TABLES, "axes": {"alpha": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}, "published": {}}
    recipe = parse_recipe({name: tables[name] for name in tables if tables[name]}, "wide")
    records = [record(cell, 0.5) for cell in cells_of(recipe, "fp32")]
    text = page_of(facts_of(records, [recipe], Path("/nonexistent")), "wide")
    heads = [part.split("</thead>")[0].count("alpha") for part in text.split("<thead>")]
    assert [number for number in heads if number][-3:] == [7, 5, 2]


def test_page_has_no_chart_without_data():
    cell = next(cell for cell in cells_of(RECIPE, "fp32") if cell.row.label == "FedAvg")
    text = page_of(facts_of([record(cell, 0.5, commit="unknown")], [], Path("/nonexistent")), "one")
    outline = Outline(text)
    assert {"best", "clients", "classes", "partition", "confusion"} <= set(outline.names)
    absent = {"curves", "heterogeneity", "weights", "table", "gallery", "bytes", "headline"}
    assert not absent & set(outline.names)
    footer = text[text.index("<footer>") :]
    for chart in CHARTS:
        assert (f"<li>{chart.title}: " in footer) == (chart.name in absent), chart.name
    assert "commit" not in text[text.index('class="summary"') : text.index("<nav")]


class Outline(HTMLParser):
    """Tags, addresses and identifiers of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.addresses, self.names = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.addresses += [given[key] for key in ("src", "href") if key in given]
        self.names += [given["id"]] if "id" in given else []
        if tag not in ("meta", "br", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_page_hides_many_commits(tmp_path):
    def top(number):
        home = tmp_path / str(number)
        (home / "records").mkdir(parents=True)
        for place, cell in enumerate(cells_of(RECIPE)):
            made = record(cell, 0.5, commit=f"{place % number:012x}")
            (home / "records" / f"{cell.name}.json").write_text(json.dumps(made))
        text = write_report(home, home / "report.html", [RECIPE]).read_text()
        assert not Outline(text).wrong
        return text[text.index('class="summary"') : text.index("<nav")]

    assert "commit 000000000002" in top(3)
    many = top(4)
    assert "4 commits</p>" in many
    assert "<p>000000000000 · 000000000001 · 000000000002 · 000000000003</p></details>" in many
    assert "commit 0" not in many


def test_page_is_self_contained(page):
    outline = Outline(page.read_text())
    assert not outline.wrong
    assert not outline.open
    assert all(address.startswith("#") for address in outline.addresses)
    assert {address[1:] for address in outline.addresses} <= set(outline.names)
    assert {chart.name for chart in CHARTS} <= set(outline.names)
    assert page.stat().st_size < 800_000


def test_page_has_table_without_script(page):
    text = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.S)
    assert "A table &amp; more" in text
    assert "paper 50.5 ± 1.0" in text
    assert "sees the images of all clients" in text
    assert re.search(r'<span class="difference (above|below)">[+-]\d+\.\d</span>', text)
    assert "<b>Bag</b>" not in text


def test_page_marks_numbers_not_run():
    text = page_of(facts_of([], [RECIPE], Path("/nonexistent")), "empty")
    assert "not run" in text


def test_page_hides_places_not_run():
    ran = next(
        cell
        for cell in cells_of(RECIPE, "fp32")
        if cell.labels["alpha"] == "0.5" and cell.row.label == "FedAvg"
    )
    text = page_of(facts_of([record(ran, 0.61)], [RECIPE], Path("/nonexistent")), "some")
    shown, rows, hidden = re.split(
        r"<details><summary>(?:Rows not run: 3|1 more, not run)</summary>", text
    )
    assert ">alpha 0.5</th>" in shown
    assert "61.0" in shown
    assert ">alpha 0.1</th>" not in shown
    assert 'scope="row">DENSE' not in shown
    assert 'scope="row">DENSE' in rows
    assert ">alpha 0.1</th>" in hidden


def test_facts_of_runs_with_other_settings():
    """They are not taken for the recipe's; two that were told different things are two rows."""
    cell = next(cell for cell in cells_of(RECIPE, "fp32") if cell.row.label == "DENSE")
    own = record(cell, 0.61)
    others = [{**record(cell, accuracy), "key": str(accuracy), "given": {"epochs": epochs}}
              for accuracy, epochs in ((0.5, 10), (0.4, 20), (0.3, 20))]  # fmt: skip
    first, second = facts_of([own, *others], [RECIPE], Path("/nonexistent"))["tables"]
    assert [line["mean"] for line in first["lines"] if line["mean"] is not None] == [61.0]
    assert second["title"] == f"{RECIPE.name}, other settings"
    assert [(line["row"], line["mean"], line["n"]) for line in second["lines"]] == [
        ("DENSE (epochs 10)", 50.0, 1),
        ("DENSE (epochs 20)", 35.0, 2),
    ]
    _, (alone,) = (
        table["lines"]
        for table in facts_of([own, others[0]], [RECIPE], Path("/nonexistent"))["tables"]
    )
    assert alone["row"] == "DENSE (epochs 10)"  # told apart from the recipe's own


def test_facts_of_records_without_recipe(page):
    facts = facts_of(
        [json.loads(path.read_text()) for path in sorted((page.parent / "records").glob("*.json"))],
        [],
        page.parent,
    )
    (table,) = facts["tables"]
    assert table["title"] == "small"
    assert {line["row"] for line in table["lines"]} == {"FedAvg", "DENSE", "Hydra", "all"}


def test_facts_of_runs_without_an_axis():
    cell = next(cell for cell in cells_of(RECIPE, "fp32") if cell.row.label == "DENSE")
    old = {**record(cell, 0.5), "key": "old", "labels": {}}
    (table,) = facts_of([old, record(cell, 0.61)], [], Path("/nonexistent"))["tables"]
    assert table["axes"] == {axis: ["–", label] for axis, label in cell.labels.items()}
    assert [(line["mean"], set(line["labels"].values())) for line in table["lines"]] == [
        (50.0, {"–"}),
        (61.0, set(cell.labels.values())),
    ]
    assert "–" in page_of(facts_of([old, record(cell, 0.61)], [], Path("/nonexistent")), "some")


def test_read_records_refuses_other_files(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "x.json").write_text("{}")
    with pytest.raises(RunError, match="no record"):
        write_report(tmp_path, tmp_path / "report.html", [])


def test_libraries_have_licences():
    vendor = Path(page_of.__code__.co_filename).parent / "vendor"
    scripts = {path.name.split(".")[0] for path in vendor.glob("*.js")}
    assert (
        scripts == {path.name.split(".")[0] for path in vendor.glob("*.LICENSE")} == {"d3", "plot"}
    )


ACT = """
const marks =
  ["path", "circle", "rect", "line"].map((name) => "figure svg " + name).join(", ")
  + ", figure img, figure .bars i";
const sections = [...document.querySelectorAll("main section[id]")];
const count = () => Object.fromEntries(
  sections.map((section) => [section.id, section.querySelectorAll(marks).length]));
const lines = () => document.querySelectorAll("#curves figure svg [aria-label=line] path").length;
const before = count(), all = lines(),
  ways = document.querySelectorAll("#bytes figure svg [aria-label=line] path").length;
const box =
  [...document.querySelectorAll("#curves input")].find((input) => input.value === "DENSE");
box.focus();
const focused = document.activeElement === box;
box.click();
const off = lines();
const others =
  [...document.querySelectorAll("input[value=DENSE]")].every((input) => !input.checked);
box.click();
const on = lines();
const picks = [...document.querySelectorAll("select")].map((select) => {
  select.selectedIndex = select.options.length - 1;
  select.dispatchEvent(new Event("change"));
  return select.options.length;
});
const shown =
  [...document.querySelectorAll("#bytes fieldset label")].filter(
    (label) => label.offsetParent !== null);
const offered = shown.map((label) => label.textContent);
const unnamed =
  [...document.querySelectorAll("input, select")].filter(
    (control) => !control.closest("label")).length;
const tables =
  [...document.querySelectorAll("details table")].filter((table) => table.rows.length > 1).length;
const wide = document.documentElement.scrollWidth > window.innerWidth;
const drawn = document.documentElement.dataset.drawn;
return { before, ways, offered, all, off, on, others, focused, picks, after: count(), unnamed,
  tables, wide, drawn };
"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_browser_draws_every_chart(page, width):
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    chromium = Chromium(browser())
    try:
        chromium.open(f"file://{page}", width)
        found = chromium.run(ACT)
        chromium.ask(
            "Emulation.setEmulatedMedia",
            chromium.session,
            features=[{"name": "prefers-color-scheme", "value": "dark"}],
        )
        dark = chromium.run("return getComputedStyle(document.body).backgroundColor;")
        assert chromium.heard("Runtime.exceptionThrown") == []
        assert [
            told
            for told in chromium.heard("Runtime.consoleAPICalled")
            if told["type"] in ("error", "warning")
        ] == []
        assert [
            told for told in chromium.heard("Log.entryAdded") if told["entry"]["level"] == "error"
        ] == []
        asked = {
            event["request"]["url"].split(":")[0]
            for event in chromium.heard("Network.requestWillBeSent")
        }
        assert asked <= {"file", "data"}  # the page itself, and pictures inside it
    finally:
        chromium.close()
    assert found["drawn"] == "yes"
    for chart in CHARTS:
        assert found["before"][chart.name] > 0, chart.name
        assert found["after"][chart.name] > 0, chart.name
    assert found["ways"] == 4  # rounds of two methods and two seeds, as lines over their bytes
    assert found["off"] < found["all"] == found["on"]
    assert found["others"]  # a method that is off in one chart is off in all
    assert found["focused"]  # toggles are reached from the keyboard
    assert min(found["picks"]) >= 1
    # at 0.5, where "all" was not run; the most accurate first
    assert found["offered"] == ["Hydra", "FedAvg", "DENSE"]
    assert found["unnamed"] == 0  # every control has a label
    assert found["tables"] == len(CHARTS)  # every chart can be read as numbers
    assert not found["wide"]  # nothing sticks out on a phone
    assert dark == "rgb(20, 23, 28)"


@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme", "media"),
    [(1200, "light", ""), (1200, "dark", ""), (390, "dark", ""), (PAPER, "dark", "print")],
)
def test_browser_shows_all_of_the_page(page, width, scheme, media):
    """Text has contrast, figures have captions, and nothing sticks out: on paper, too."""
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    found = look_at(f"file://{page}", width, scheme, media)
    assert found["pale"] == []
    assert found["heat"] >= 4.5
    assert found["cut"] == []
    assert found["wide"] <= 0
    assert found["bare"] == []


@pytest.mark.browser
def test_browser_shows_one_place_everywhere(page):
    """The choice at the top changes the bars and every chart."""
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    chromium = Chromium(browser())
    try:
        chromium.open(f"file://{page}", 1200)
        shown = chromium.run("""
        const view = document.getElementById("view");
        view.selectedIndex = view.options.length - 1;
        view.dispatchEvent(new Event("change"));
        const seen = [...document.querySelectorAll(".view")].filter((one) => !one.hidden);
        const which = (name) => document.querySelector(`#${name} .which`).textContent;
        return [view.selectedOptions[0].textContent, seen.map((one) => one.id),
          ["classes", "curves", "bytes", "time", "confusion"].map(which)];
        """)
    finally:
        chromium.close()
    name, views, which = shown
    assert name == "alpha 0.5"
    assert views == ["view-2"]
    assert all("alpha 0.5" in words for words in which), which


@pytest.mark.browser
def test_browser_draws_two_runs_of_one_seed(tmp_path):
    """As with --set: drawn as one, the line went from the end of the first back to the beginning
    of the second.
    """
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    cell = next(cell for cell in cells_of(RECIPE) if cell.row.label == "DENSE")
    (tmp_path / "records").mkdir()
    for number, key in enumerate((cell.key, cell.key[::-1])):
        made = record(cell, 0.4 + number / 10, key=key, name=f"run-{number}", gallery=None)
        (tmp_path / "records" / f"run-{number}.json").write_text(json.dumps(made))
    page = write_report(tmp_path, tmp_path / "report.html", [RECIPE])
    chromium = Chromium(browser())
    try:
        chromium.open(f"file://{page}", 1200)
        lines = chromium.run(
            "return document.querySelectorAll('#curves figure svg [aria-label=line] path').length;"
        )
    finally:
        chromium.close()
    assert lines == 2
