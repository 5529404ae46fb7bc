"""Pictures of a run: heat maps, sheets of images, bars."""

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from PIL import Image

from attar.bench import FINISHED, cells_of, compare_rows, parse_filters, parse_recipe
from attar.bench.paired import t_quantile
from attar.cli import main
from attar.core import Result
from attar.errors import SettingsError
from attar.fusion import fuse
from attar.methods import METHODS
from attar.models import draw_sheet, list_pictures
from attar.models.gallery import GAP
from attar.models.heatmap import draw_heat_map
from attar.report import Bar, draw_bars
from attar.testing import CLASSES, SMALL_DECODERS, SMALL_NETS, tiny_world

SVG = "{http://www.w3.org/2000/svg}"
HOME = Path(__file__).parents[2]


def test_heat_map_cells_and_colours():
    table = torch.tensor([[0.0, 1.0, 0.5], [0.25, 0.0, 2.0]])
    root = ET.fromstring(draw_heat_map(table, ["a<b", "c"], CLASSES, "U & more"))
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert len(cells) == 6
    titles = {cell.find(f"{SVG}title").text: cell.get("fill") for cell in cells}
    assert titles["c, bar: 2"] == "#1f5493"
    assert titles["a<b, ring: 0"] == "#eff4fa"


def test_heat_map_of_zeros():
    ET.fromstring(draw_heat_map(torch.zeros(2, 3), ["a", "b"], CLASSES, "nothing yet"))


def written(table):
    root = ET.fromstring(draw_heat_map(table, ["a", "b"], CLASSES[:2], "t"))
    boxes = [
        rect.find(f"{SVG}title").text.split(": ")[1]
        for rect in root.iter(f"{SVG}rect")
        if len(rect)
    ]
    return boxes, [
        text.text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"
    ]


@pytest.mark.parametrize(
    ("table", "told", "inside"),
    [
        ([[0.0, 60.0], [3.0, 12345.0]], ["0", "3", "60", "12,345"], ["0", "3", "60", "12,345"]),
        ([[0.0, 60.0], [2.5, 3.0]], ["0", "2.5", "60", "3"], ["0.00", "2.50", "60", "3.00"]),
        ([[0.0, 2e6], [1.0, 3.0]], ["0", "1", "2,000,000", "3"], ["0", "1", "2e+06", "3"]),
    ],
)
def test_heat_map_formats_numbers(table, told, inside):
    assert written(torch.tensor(table)) == (told, inside)


def test_gallery_places_images():
    images = torch.stack([torch.full((1, 64, 64), value) for value in (0.0, 0.2, 0.4, 0.6, 1.0)])
    sheet = Image.open(io.BytesIO(draw_sheet(images)))
    assert sheet.size == (3 * 64 + 4 * GAP, 2 * 64 + 3 * GAP)
    step = 64 + GAP
    seen = [
        sheet.getpixel((GAP + 10 + column * step, GAP + 10 + row * step))[0]
        for row in (0, 1)
        for column in (0, 1, 2)
    ]
    assert seen == [0, 51, 102, 153, 255, 255]  # the sixth place is empty: white


def test_gallery_keeps_rows_and_columns():
    images = torch.stack(
        [torch.full((2, 1, 64, 64), value) for value in (0.0, 0.4, 1.0)]
    )  # three rows of two
    sheet = Image.open(io.BytesIO(draw_sheet(images)))
    assert sheet.size == (2 * 64 + 3 * GAP, 3 * 64 + 4 * GAP)
    assert [sheet.getpixel((GAP + 10, GAP + 10 + row * (64 + GAP)))[0] for row in range(3)] == [
        0,
        102,
        255,
    ]


def test_draw_bars_fits_long_label():
    label = "client-0, alone, vit-tiny:depth=2,patch=7"
    root = ET.fromstring(draw_bars([Bar(label, 0.5, "client")], "Accuracy"))
    (text,) = [found for found in root.iter(f"{SVG}text") if found.text == label]
    assert float(text.get("x")) >= 7 * len(label), "at 13 pixels a letter is about 7 wide"


def test_draw_bars_lengths_and_best_client():
    root = ET.fromstring(draw_bars([Bar("x", 0.25, "client"), Bar("y", 0.5, "fused")], "Accuracy"))
    lengths = [float(rect.get("width")) for rect in root.iter(f"{SVG}rect")][1:]
    assert lengths[1] == 2 * lengths[0]
    words = "".join(root.itertext())
    assert "best client alone" in words
    assert "a client's own netfused" in words.replace("\n", "")  # the legend


def test_run_folder_synthetic_images(tmp_path):
    world = tiny_world((*SMALL_NETS[:1] * 2, *SMALL_DECODERS))
    fuse(world.uploads, METHODS["fedmho"](samples=60, epochs=1), world.server, out=tmp_path / "run")
    names = {path.stem for path in (tmp_path / "run").glob("*.png")}
    assert names == {"synthetic-before-filter", "synthetic-after-filter", "dropped-by-filter"}
    with Image.open(tmp_path / "run" / "synthetic-after-filter.png") as sheet:
        assert sheet.size == (5 * 64 + 6 * GAP, 3 * 64 + 4 * GAP)  # a row for each class
    assert (tmp_path / "run" / "images-made.svg").exists()


@pytest.mark.parametrize(
    ("method", "nets", "files"),
    [
        (METHODS["fedmho"](samples=60, epochs=1), (*SMALL_NETS[:1] * 2, *SMALL_DECODERS),
         ["synthetic-after-filter.png", "synthetic-before-filter.png", "dropped-by-filter.png",
          "images-made.svg"]),
        (METHODS["fedcvae"](samples=60, epochs=1), SMALL_DECODERS, ["synthetic.png",
         "images-made.svg"]),
        (METHODS["fedcvae"](samples=60, epochs=1, mode="kd", decoder_epochs=1), SMALL_DECODERS,
         ["of-the-server's-decoder.png", "synthetic.png", "images-made.svg"]),
    ],
    ids=["fedmho", "fedcvae", "fedcvae-kd"],
)  # fmt: skip
def test_pictures_of_order(method, nets, files, tmp_path):
    world = tiny_world(nets)
    fused = fuse(world.uploads, method, world.server, out=tmp_path)
    found = list_pictures(fused.result, fused.record)
    assert [one.file for one in found] == files
    assert [one.rows for one in found] == [CLASSES] * (len(files) - 1) + [()], (
        "rows are classes; a table names them itself"
    )
    assert {path.name for path in tmp_path.iterdir() if path.suffix in (".png", ".svg")} == set(
        files
    )


def test_pictures_of_rows_are_classes():
    record = {"clients": [{"client": "a"}], "task": {"classes": CLASSES}}
    sheet = torch.zeros(3, 2, 1, 4, 4)  # three rows, as there are three classes
    images = {
        "somebody else's": sheet,
        "density": sheet,
        "synthetic": sheet[0],
        "synthetic after filter": sheet[:2],
    }
    found = {
        one.file: one
        for one in list_pictures(
            Result({}, {"U": torch.ones(1, 3), "loss": torch.ones(7)}, images), record
        )
    }
    assert list(found) == [
        "synthetic-after-filter.png",
        "synthetic.png",
        "density.png",
        "somebody-else's.png",
        "U.svg",
    ]
    assert {name: one.rows for name, one in found.items() if one.rows} == {
        "synthetic-after-filter.png": CLASSES[:2]
    }
    assert found["somebody-else's.png"].shows == "images: somebody else's"


def test_run_folder_pictures(tmp_path):
    world = tiny_world()
    small = {"epochs": 2, "generator_steps": 2, "batch_size": 8, "noise": 8, "generator_width": 4}
    fuse(world.uploads, METHODS["fedhydra"](**small), world.server, out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").glob("*.svg")} == {
        "guidance.svg",
        "across-clients.svg",
        "across-classes.svg",
    }
    with Image.open(tmp_path / "run" / "synthetic.png") as sheet:
        assert sheet.format == "PNG"
    assert (tmp_path / "run" / "ensemble" / "model.safetensors").exists()


def test_report_refuses_folder_without_records(tmp_path, capsys):
    page, recipe = tmp_path / "page.html", tmp_path / "r.toml"
    (tmp_path / "bench" / "recipes").mkdir(parents=True)
    words = ["report", str(tmp_path / "bench"), "-o", str(page)]
    assert main(words) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "There is no record below" in said
    assert "records/*.json" in said
    assert not page.exists()
    recipe.write_text('title = "t"\nsource = "s"\n[methods.A]\nmethod = "fedavg"\n')
    assert (
        main([*words, "--recipe", str(recipe), "--tables", str(tmp_path / "tables")]) == 0
    )  # its table, in which nothing was run
    assert "There is no record below" in " ".join(capsys.readouterr().out.split())
    assert "not run" in (tmp_path / "tables" / "r.csv").read_text()
    assert main([*words, "--recipe", str(recipe), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 0


# --- paired differences ---------------------------------------------------------------------------

TWO_ROWS = parse_recipe(
    {
        "title": "t",
        "source": "s",
        "seeds": [0, 1, 2],
        "axes": {"alpha": [0.1, 0.5]},
        "federation": {"rule": "dirichlet:{alpha}"},
        "methods": {
            "A": {"method": "dense"},
            "its student": {"method": "co-boosting"},
            "its ensemble": {"method": "co-boosting", "output": "ensemble"},
        },
    },
    "t",
)


def records_of(accuracies, precision="fp32", **changed):
    """Records of TWO_ROWS by (label, alpha, seed)."""
    return [
        {
            "key": cell.key,
            "ending": FINISHED,
            "accuracy": accuracies[place],
            "models": {"ensemble": {"accuracy": accuracies[place] + 0.1}},
            **changed,
        }
        for cell in cells_of(TWO_ROWS, precision)
        if (place := (cell.row.label, cell.labels["alpha"], cell.seed)) in accuracies
    ]


def test_compare_rows_by_hand():
    """Differences 4, 2, 6 points: mean 4, deviation 2, and t of 2 degrees of freedom is 4.303."""
    records = records_of(
        {
            ("its student", "0.1", 0): 0.50,
            ("A", "0.1", 0): 0.46,
            ("its student", "0.1", 1): 0.80,
            ("A", "0.1", 1): 0.78,
            ("its student", "0.5", 0): 0.30,
            ("A", "0.5", 0): 0.24,
            ("A", "0.5", 1): 0.99,  # has no partner
        }
    )
    found = compare_rows(TWO_ROWS, records, "its student", "A")
    assert [(pair.labels["alpha"], pair.seed) for pair in found.pairs] == [
        ("0.1", 0),
        ("0.5", 0),
        ("0.1", 1),
    ]
    assert found.differences == pytest.approx([4, 6, 2])
    assert found.mean == pytest.approx(4)
    half = 4.302653 * 2 / 3**0.5
    assert found.interval == pytest.approx((4 - half, 4 + half))
    assert found.wins == 3
    swapped = compare_rows(TWO_ROWS, records, "A", "its student")
    assert (swapped.mean, swapped.wins) == (pytest.approx(-4), 0)
    better = compare_rows(TWO_ROWS, records, "its ensemble", "A")  # 10 points above the student
    assert better.mean == pytest.approx(14)
    filters = parse_filters([TWO_ROWS], ["alpha=0.1", "seed=0"])
    few = compare_rows(TWO_ROWS, records, "its student", "A", filters)
    assert (len(few.pairs), few.mean, few.interval) == (1, pytest.approx(4), None)


def test_compare_rows_pairs_runs_of_one_precision_once():
    places = [("its student", "0.1", 0), ("A", "0.1", 0)]
    mixed = [
        *records_of({places[0]: 0.5}, "fp32"),
        *records_of({places[1]: 0.4}, "bf16"),
    ]
    assert compare_rows(TWO_ROWS, mixed, "its student", "A").pairs == ()
    twice = [
        *records_of({places[0]: 0.5, places[1]: 0.4}, "bf16"),
        *records_of({places[0]: 0.7, places[1]: 0.4}, "tf32"),
    ]
    assert compare_rows(TWO_ROWS, twice, "its student", "A").differences == pytest.approx([30])
    failed = records_of({places[0]: 0.5, places[1]: 0.4}, ending="failed")
    nothing = compare_rows(TWO_ROWS, failed, "its student", "A")
    assert (nothing.pairs, nothing.mean, nothing.interval, nothing.wins) == ((), None, None, 0)


def test_compare_rows_refuses_unknown_rows():
    with pytest.raises(SettingsError) as caught:
        compare_rows(TWO_ROWS, [], "B", "A")
    assert caught.value.problems == ("there is no row 'B'",)
    with pytest.raises(SettingsError):
        compare_rows(TWO_ROWS, [], "A", "A")


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.30265), (5, 2.57058), (29, 2.04523), (200, 1.97190)],
)
def test_t_quantile_of_the_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, rel=1e-5)


def test_report_compares_rows(tmp_path, capsys):
    """The 30 federations in which Co-Boosting and DENSE were run side by side."""
    recipe = HOME / "recipes" / "accord" / "table1.toml"
    words = ["report", str(HOME / "results"), "--recipe", str(recipe), "-o", str(tmp_path / "p")]
    assert main([*words, "--compare", "Co-Boosting", "DENSE", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (len(found["pairs"]), found["wins"]) == (30, 23)
    assert found["mean"] == pytest.approx(3.68, abs=0.005)
    assert found["interval"] == pytest.approx([1.08, 6.28], abs=0.005)
    one = ["--compare", "Co-Boosting", "DENSE", "--only", "seed=0", "--only", "dataset=FMNIST"]
    assert main([*words, *one]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Co-Boosting - DENSE pairs: 5 " in said
    assert main([*words, "--compare", "DENSE", "nobody"]) == 2
    assert "there is no row 'nobody'" in capsys.readouterr().err
    assert main([*words, "--only", "seed=0"]) == 2
    assert "add --compare" in capsys.readouterr().err
