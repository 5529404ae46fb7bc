"""What the lists say of one method or net, tables in narrow windows, and one way of rounding."""

from dataclasses import replace

import numpy as np
import pytest

from attar.bench.tables import Line, cell_text
from attar.cli.output import tables
from attar.cli.output.console import fits, show_table
from attar.cli.output.explain import SYMBOL, _option_meaning, explain, show
from attar.data.dataset import Dataset, Split
from attar.data.npz import read_npz
from attar.fusion import fuse, server_for
from attar.internal.meanings import describe_entries
from attar.methods import METHODS
from attar.nets.registry import NETS
from attar.report.number_tables import _line_json
from attar.report.page import _cell
from attar.settings import settings_of
from attar.testing import tiny_upload


@pytest.mark.parametrize("name", METHODS)
def test_explain_every_setting(name):
    told = explain("methods", name)
    assert [option["name"] for option in told["options"]] == list(settings_of(METHODS[name]))
    for option in told["options"]:
        assert len(option["meaning"]) > SYMBOL, option["name"]
        assert option["values"], option["name"]


def test_explain_net_options():
    for name, entry in NETS.items():
        if entry.kind in ("classifier", "cvae") and not entry.required:
            assert all(_option_meaning(name, option) for option in entry.options), name
    told = explain("nets", "vit-tiny")
    assert [option["name"] for option in told["options"]] == ["patch", "depth", "dropout"]
    assert told["options"][0]["default"] == "4"


def test_explain_values_and_bounds(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    options = {option["name"]: option for option in explain("methods", "dense")["options"]}
    assert options["batch_size"] == {
        "name": "batch_size",
        "default": "128",
        "values": "whole number above 0",
        "meaning": "images in a batch (b)",
    }
    assert options["clip"]["values"] == "number above 0, or none"
    assert options["variant"]["values"] == "paper | authors | co-boosting"
    show(explain("methods", "dense"))
    assert "attar fuse FILES --method dense --set setting=value" in capsys.readouterr().out
    assert explain("data", "folder:DIR")["how"] == "--data folder:DIR"


def test_describe_entries_of_several_lines():
    text = """Do it.

    Args:
        one: the first,
            in two lines.
        two: the second.

    Returns:
        three: no parameter.
    """
    assert describe_entries(text, "Args") == {
        "one": "the first, in two lines.",
        "two": "the second.",
    }
    assert describe_entries(text, "Attributes") == {}


def test_show_fused_names_changed_settings_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    uploads = [tiny_upload("a"), tiny_upload("b")]
    for settings, told in (({"rule": "vote"}, "rule=vote"), ({}, "the defaults")):
        fused = fuse(uploads, METHODS["ensemble"](**settings), server_for(uploads))
        tables.show_fused(fused, tmp_path, None)
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "settings" in line]
        assert line.split(maxsplit=1)[1].strip() == told


# --- tables in narrow windows ---------------------------------------------------------------------


def test_show_partition_never_cuts_names(capsys, monkeypatch):
    classes = [f"a class with a long name {number}" for number in range(12)]
    counts = np.arange(24).reshape(2, 12)
    for width in ("60", "500"):
        monkeypatch.setenv("COLUMNS", width)
        tables.show_partition("who", ["ann", "bob"], counts, classes)
        shown = capsys.readouterr().out
        assert all(name in shown for name in classes)
        assert "…" not in shown


def test_show_table_in_a_narrow_window(capsys, monkeypatch):
    columns, rows = (
        ("client", "net", "images"),
        [("berlin", "resnet20", 1200), ("rome", "mlp", 240)],
    )
    monkeypatch.setenv("COLUMNS", "80")
    assert fits(columns, rows)
    show_table("Clients", columns, rows)
    assert any("berlin" in line and "1200" in line for line in capsys.readouterr().out.splitlines())
    monkeypatch.setenv("COLUMNS", "20")
    assert not fits(columns, rows)
    show_table("Clients", columns, rows)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "Clients", "berlin", "  net: resnet20", "  images: 1200",
        "rome", "  net: mlp", "  images: 240",
    ]  # fmt: skip


# --- one way of rounding --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "accuracies", [(0.1365,), (0.13649,), (0.1364, 0.1365), (0.2984, 0.2985), (0.04949,)]
)
def test_terminal_and_page_round_alike(accuracies):
    percent = tuple(100 * value for value in accuracies)
    line = Line("r", (), "FedDF", "feddf", None, None, percent, percent, (), "")
    terminal = cell_text(line).replace("(", "<small>(").replace(")", ")</small>")
    assert f'<span class="ours">{terminal}</span>' in _cell(_line_json(line))


# --- data -----------------------------------------------------------------------------------------


def test_dataset_repr_is_a_line():
    split = Split(np.zeros((374, 28, 28, 1), np.uint8), np.zeros(374, np.int64))
    data = Dataset("folder:x", ("normal", "covid"), split, split.take([0, 1]), was_cut=True)
    assert repr(data) == (
        "Dataset('folder:x', 2 classes: normal, covid; train: Split(374 images of 28 x 28 x 1); "
        "test: Split(2 images of 28 x 28 x 1), a fifth that was cut off)"
    )
    assert replace(data, was_cut=False).was_cut is False


def test_read_npz_by_the_names_of_medmnist(tmp_path):
    images = np.arange(6 * 64).reshape(6, 8, 8).astype(np.uint8)
    labels = np.array([[0], [1], [0], [1], [0], [1]])
    np.savez(
        tmp_path / "m.npz",
        train_images=images[:3], train_labels=labels[:3],
        val_images=images[3:4], val_labels=labels[3:4],
        test_images=images[4:], test_labels=labels[4:],
    )  # fmt: skip
    data = read_npz(tmp_path / "m.npz", "npz:m.npz")
    assert len(data.train) == 3
    assert len(data.test) == 2
    assert data.test.labels.tolist() == [0, 1]
    assert (data.train.images[..., 0] == images[:3]).all()
