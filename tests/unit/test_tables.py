"""What people read: names as they are written, and what a table must not leave unsaid."""

import json
import subprocess
import sys
from io import StringIO

import numpy as np
import pytest
import torch
from evaluations import evaluate_to
from rich.console import Console
from rich.text import Text

import attar
from attar.cli.output import console, listing, tables
from attar.fusion import fuse, server_for
from attar.internal.text import list_some
from attar.methods import METHODS
from attar.models import describe_data, evaluate
from attar.privacy import describe_upload, list_revelations
from attar.running import ProgressReport
from attar.testing import SMALL_DECODERS, SMALL_NETS, tiny_upload, tiny_world

ODD = [
    "[/b]",
    "[red]x",
    "a[hf]",
    ":cat:",
    "\\[x]",
]  # crash, colour, vanish, become a picture, lose a backslash


def words(shown):
    return " ".join(shown.split())


# --- names are shown as they are ------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD)
def test_show_table_ignores_markup_in_names(name, capsys):
    console.show_table(f"title {name}", (f"head {name}", "n"), [(f"cell {name}", 3)], right=("n",))
    shown = capsys.readouterr().out
    for place in ("title", "head", "cell"):
        assert f"{place} {name}" in shown
    console.show_pairs(f"title {name}", [(f"left {name}", f"right {name}")])
    shown = capsys.readouterr().out
    for place in ("title", "left", "right"):
        assert f"{place} {name}" in shown
    console.say(f"said {name}")
    console.note(f"noted {name}")
    said = capsys.readouterr()
    assert said.out == f"said {name}\n"
    assert said.err == f"noted {name}\n"


def test_show_table_keeps_styled_cell(monkeypatch):
    screen = Console(file=StringIO(), force_terminal=True, color_system="standard", markup=False)
    monkeypatch.setattr(console, "_console", lambda: screen)
    console.show_table("t", ("a",), [(Text("bad", style="red"),)])
    assert "\x1b[31mbad" in screen.file.getvalue()


@pytest.mark.parametrize("name", ODD)
def test_progress_ignores_markup_in_names(name, monkeypatch):
    screen = Console(file=StringIO(), force_terminal=True, color_system=None, width=120)
    monkeypatch.setattr(console, "_console", lambda *, stderr: screen)
    with console.progress(f"train {name}") as watch:
        watch(ProgressReport("fit", 1, 2, 0.5, None, {}))
    assert f"train {name}" in screen.file.getvalue()


def test_show_partition_and_evaluation_ignore_markup(capsys):
    tables.show_partition("[/b]", ["[/i]", "[red]y"], np.ones((2, 2), np.int64), ["[/b]", "[red]x"])
    tables.show_evaluation(
        "t", evaluation(["[/b]", "[red]x"], None), ["[/b]", "[red]x"], "3 images"
    )
    shown = capsys.readouterr().out
    for name in ("[/i]", "[red]y", "[/b]", "[red]x"):
        assert name in shown


def test_show_list_names_extra_to_install(capsys):
    tables.show_list("data", listing.list_data())
    assert "attar[hf]" in capsys.readouterr().out


# --- classes --------------------------------------------------------------------------------------


class First(torch.nn.Module):
    """Always the first class."""

    def forward(self, images):
        return torch.tensor([[1.0, 0.0]]).expand(len(images), 2)


def evaluation(classes, model_classes, labels=(0, 1, 1)):
    pixels = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
    return evaluate(First(), pixels, torch.tensor(labels), classes, model_classes=model_classes)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ((0, 1, 1, 2), "The model does not know coat, Trousers: their 3 images count as wrong."),
        ((0, 1, 1), "The model does not know coat: its 2 images count as wrong."),
        ((0, 2), "The model does not know Trousers: its 1 image counts as wrong."),
        ((0, 0), None),
    ],
)
def test_show_evaluation_unknown_classes(labels, told, capsys):
    classes = ["bag", "coat", "Trousers"]
    tables.show_evaluation(
        "t", evaluation(classes, ["bag", "trousers"], labels), classes, "3 images"
    )
    shown = words(capsys.readouterr().out)
    assert told in shown if told else "does not know" not in shown


def test_eval_unknown_classes(tmp_path):
    attar.write_bundle(tmp_path / "a.attar", tiny_upload("a", classes=["bag", "boot"]))
    shape = tiny_upload("a").parts["classifier"].preprocess.input_shape
    images = np.zeros((20, *shape[1:], shape[0]), np.uint8)
    np.savez(tmp_path / "my.npz", x=images, y=np.arange(20) % 2, classes=["bag", "coat"])
    command = [
        sys.executable,
        "-m",
        "attar",
        "eval",
        "a.attar",
        "--data",
        "npz:my.npz",
        "--split",
        "all",
        "--device",
        "cpu",
    ]
    shown, found = (
        subprocess.run(
            [*command, *more], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for more in ([], ["--json"])
    )
    assert "The model does not know coat: its 10 images count as wrong." in shown
    assert "% of 20 images, all of npz:my.npz" in shown
    assert json.loads(found)["unknown"] == ["coat"]


def test_list_some_shortens():
    names = [f"c{number}" for number in range(17)]
    assert list_some(names[:10], 10) == "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9"
    assert list_some(names, 10) == "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 7 more"


def test_show_revelations_names_classes(capsys):
    upload = tiny_upload("berlin", classes=["bag", "boot", "coat"])
    assert list_revelations(upload)[0] == "the name 'berlin' and the 3 class names: bag, boot, coat"
    tables.show_revelations([upload])
    assert "3 class names: bag, boot, coat" in words(capsys.readouterr().out)
    many = tiny_upload("berlin", classes=[f"c{number}" for number in range(17)])
    assert list_revelations(many)[0].endswith("c9 and 7 more")
    assert len(describe_upload(many, 0)["parts"]["classifier"]["classes"]) == 17


# --- after a fusion -------------------------------------------------------------------------------


def test_show_fused_names_classes(tmp_path, capsys):
    uploads = [
        tiny_upload("a", classes=["bag", "boot"]),
        tiny_upload("b", classes=["boot", "coat"]),
    ]
    fused = fuse(uploads, METHODS["ensemble"](), server_for(uploads))
    tables.show_fused(fused, tmp_path, None)
    assert "classes 3: bag, boot, coat" in words(capsys.readouterr().out)


def test_show_fused_and_evaluation_name_image_count(tmp_path, capsys):
    assert describe_data(1, "all of x") == "1 image, all of x"
    where = describe_data(6000, "the test part of folder:own")
    assert where == "6,000 images, the test part of folder:own"
    fused = fuse(
        [tiny_upload("a")], METHODS["ensemble"](), evaluate=evaluate_to(2 / 3), evaluated_on=where
    )
    tables.show_fused(fused, tmp_path, where)
    assert "accuracy 66.67 % of 6,000 images, the test part of folder:own" in words(
        capsys.readouterr().out
    )
    tables.show_evaluation(
        "m", evaluation(["bag", "coat"], None), ["bag", "coat"], describe_data(3, "all of x")
    )
    assert "accuracy 33.33 % of 3 images, all of x" in capsys.readouterr().out.splitlines()


def test_show_fused_lists_image_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    world = tiny_world((*SMALL_NETS[:1] * 2, *SMALL_DECODERS))
    fused = fuse(world.uploads, METHODS["fedmho"](samples=60, epochs=1), world.server, out=tmp_path)
    tables.show_fused(fused, tmp_path, None)
    told = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("pictures")
    )
    first, *more = told.removeprefix("pictures").strip().split(", ")
    assert first == "synthetic-after-filter.png (look at it first)"
    named = [first.split()[0], *more]
    assert sorted(named) == sorted(
        path.name for path in tmp_path.iterdir() if path.suffix in (".png", ".svg")
    )
    tables.show_fused(fuse(world.uploads[:2], METHODS["ensemble"](), world.server), tmp_path, None)
    assert "pictures" not in capsys.readouterr().out
    counted = fuse(world.uploads[:2], METHODS["ensemble"](rule="class-share"), world.server)
    tables.show_fused(counted, tmp_path, None)
    assert "weights.svg\n" in "\n".join(
        line.rstrip() + "\n" for line in capsys.readouterr().out.splitlines()
    )


def report(suspects, *, agreement=0.5, unjudged=None, remarked=""):
    odd = {
        "agreement": agreement,
        "effect": None,
        "trigger": None,
        "weight": None,
        "weight_norm": 1.1,
        "logit_scale": 2.0,
        "entropy": 0.1,
        "unjudged": unjudged,
    }
    clients = [
        {
            "client": name,
            "flags": ["shouts"] if name in suspects else [],
            "remarks": ["is hardly trained"] if name == remarked else [],
            **odd,
        }
        for name in ("a", "b")
    ]
    return {
        "images": 8,
        "source": "noise",
        "clients": clients,
        "suspects": suspects,
        "unjudged": unjudged,
    }


def test_show_robustness_not_judged(capsys):
    why = "it takes 3 classifiers that share 3 classes"
    tables.show_robustness(report([], agreement=None, unjudged=why))
    shown = capsys.readouterr().out
    assert shown == f"Robustness: cannot tell; {why}.\n"
    assert len(shown) <= 80
    tables.show_robustness(report(["b"], agreement=None, unjudged=why))
    flagged = capsys.readouterr().out
    assert "Robustness, on 8 images: noise" in flagged, "who is flagged is shown, judged or not"
    assert "shouts" in flagged
    tables.show_robustness(report([]))
    assert "nothing suspicious" in capsys.readouterr().out
    tables.show_robustness(report([], agreement=None, unjudged=why, remarked="a"))
    assert capsys.readouterr().out.endswith("a: is hardly trained.\n")


def test_show_robustness_remarks_are_no_flags(capsys):
    tables.show_robustness(report([], remarked="b"))
    shown = capsys.readouterr().out
    assert "is hardly trained" in shown
    assert "Look at" not in shown


def test_describe_bounded():
    claim = {"client": "b", "claimed": 10**9, "counted": 60, "times": 16666666.67}
    rows = tables.describe_bounded({"claims": [claim], "weights": {"a": 100.2}})
    assert rows == [
        (
            "not believed",
            "b says it has 1,000,000,000 images, 16,666,667 times the median of the others; "
            "counted as 60 (--trust-counts believes it)",
        ),
        ("weights bounded", "a: divided by up to 100"),
    ]
    assert tables.describe_bounded({}) == []


def test_show_robustness_drops_empty_columns(capsys):
    tables.show_robustness(report([]))
    shown = capsys.readouterr().out
    assert "agreement   weight norm   logit scale   entropy" in shown, "no weight"
    tables.show_robustness(report(["b"], agreement=None, unjudged="too few"))
    assert "agreement" not in capsys.readouterr().out


def test_show_robustness_exclusion_advice(capsys):
    tables.show_robustness(report(["b"]))
    assert (
        "Look at b, and ask before you leave anybody out: this is no proof. The same command with "
        "another --out and --exclude b shows what the model is without."
    ) in words(capsys.readouterr().out)
    tables.show_robustness(report(["a", "b"]))
    shown = words(capsys.readouterr().out)
    assert "Look at a, b: every client is suspicious, so none is." in shown
    assert "--exclude" not in shown
    tables.show_robustness(report([]))
    assert "Look at" not in capsys.readouterr().out
