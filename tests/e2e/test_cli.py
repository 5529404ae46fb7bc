"""The command line as people use it, on files alone; by separate processes where that is the
point.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import run, run_apart, run_json, start
from PIL import Image

import attar
from attar.cli import demo
from attar.cli.output import listing
from attar.testing import tiny_upload

QUICK = (
    *("--defaults", "plain", "--epochs", "2", "--batch-size", "64"),
    *("--optimiser", "adam", "--lr", "0.002"),
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A partition of fashion-mini and three uploads of three architectures."""
    home = tmp_path_factory.mktemp("federation")
    run_apart(
        "partition",
        "fashion-mini",
        "--rule",
        "dirichlet:0.5",
        "--clients",
        3,
        "--hold-out",
        0.2,
        "--out",
        "parts.json",
        cwd=home,
    )
    done = run_apart(
        "train",
        "--partition",
        "parts.json",
        "--net",
        "lenet5,mlp:hidden=32,cnn-mho",
        *QUICK,
        "--json",
        cwd=home,
    )
    trained = json.loads(done.stdout)
    assert [one["parts"]["classifier"]["net"] for one in trained] == [
        "lenet5",
        "mlp:hidden=32",
        "cnn-mho",
    ]
    assert all(one["own_images"] > 0.15 for one in trained), "better than guessing one of ten"
    return home


def uploads(home):
    return sorted((home / "uploads").glob("*.attar"))


@pytest.fixture(scope="module")
def decoders(federation):
    """The same three clients as weak ones, under other names: three decoders."""
    trained = run_json(
        "train",
        "--partition",
        "parts.json",
        "--kind",
        "cvae",
        "--epochs",
        2,
        "--out",
        "weak",
        cwd=federation,
    )
    assert [set(one["parts"]) for one in trained] == [{"decoder"}] * 3
    assert [one["trained"] for one in trained] == [True] * 3
    assert [one["own_images"] for one in trained] == [None] * 3
    return sorted((federation / "weak").glob("*.attar"))


def test_inspect_reveals_decoder(federation, decoders):
    shown = run("inspect", decoders[0], cwd=federation).stdout.replace("\n", " ")
    assert "whoever holds it can draw any number of pictures of each class" in shown
    assert "nothing of the encoder" in shown
    (described,) = run_json("inspect", decoders[0], cwd=federation)
    assert described["parts"]["decoder"]["net"] == "cvae-small-decoder"
    assert described["parts"]["decoder"]["parameters"] == 12 * 256 + 256 + 256 * 784 + 784


def test_fuse_decoders_by_fedcvae(federation, decoders, tmp_path):
    quick = (
        "--set",
        "samples=600",
        "--set",
        "epochs=2",
        "--student",
        "lenet5",
        "--data",
        "fashion-mini",
    )
    record = run_json(
        "fuse",
        *decoders,
        "--method",
        "fedcvae",
        *quick,
        "--out",
        tmp_path / "fused",
        cwd=federation,
    )
    assert record["accuracy"] > 0.3
    assert (tmp_path / "fused" / "synthetic.png").exists()
    refused = run(
        "fuse", *decoders, "--method", "dense", "--out", tmp_path / "x", cwd=federation, status=2
    ).stderr
    words = " ".join(refused.replace("│", " ").split())
    assert (
        "clients client-0, client-1, client-2 must send a classifier (they sent a decoder)" in words
    )
    rows = {row["method"]: row for row in run_json("fuse", *decoders, "--dry-run", cwd=federation)}
    assert [name for name, row in rows.items() if row["fits"]] == ["fedcvae"]
    assert rows["fedmho"]["why_not"] == ["at least 1 client(s) must send a classifier, 0 did"]


def test_fuse_by_fedmho(federation, decoders, tmp_path):
    mixed = (*uploads(federation)[:2], decoders[2])
    record = run_json(
        "fuse", *mixed, "--method", "fedmho", "--set", "samples=600", "--set", "epochs=3",
         "--student", "lenet5",
        "--data", "fashion-mini", "--evaluate-every", 1, "--out", tmp_path / "fused",
         cwd=federation,
    )  # fmt: skip
    assert list(record["steps"]) == [
        "generate",
        "ask clients",
        "initialise",
        "ask initial model",
        "train",
    ]
    assert record["settings"]["remember"] == "sd"
    curve = [point["accuracy"] for point in record["history"] if point["phase"] == "train"]
    assert len(curve) == 3
    assert curve[-1] == record["accuracy"] > 0.3
    assert {path.stem for path in (tmp_path / "fused").glob("*.png")} >= {
        "synthetic-before-filter",
        "synthetic-after-filter",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kind", "cvae", "--net", "lenet5"], "lenet5 is a classifier"),
        (["--kind", "classifier", "--net", "cvae-small"], "cvae-small is a cvae"),
        (["--net", "cvae-small-decoder"], "cvae-small-decoder is a decoder"),
        (["--kind", "cvae", "--sam", "0.1"], "a CVAE has none"),
        (["--client", "0-7"], "has no client '0-7'"),
    ],
)
def test_train_refuses_flags(federation, arguments, told):
    done = run(
        "train",
        "--partition",
        "parts.json",
        *arguments,
        "--out",
        "nowhere",
        cwd=federation,
        status=2,
    )
    assert told in " ".join(done.stderr.replace("│", " ").split())


def test_partition_writes_file_and_picture(federation):
    file = json.loads((federation / "parts.json").read_text())
    assert file["source"] == "fashion-mini"
    assert (federation / "parts.svg").read_text().startswith("<svg")


def test_train_again_keeps_uploads(federation):
    before = [path.stat().st_mtime_ns for path in uploads(federation)]
    again = run_json(
        "train",
        "--partition",
        "parts.json",
        "--net",
        "lenet5,mlp:hidden=32,cnn-mho",
        *QUICK,
        cwd=federation,
    )
    assert [one["trained"] for one in again] == [False] * 3
    assert [path.stat().st_mtime_ns for path in uploads(federation)] == before


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--net", "mlp:hidden=32"], "classifier: lenet5 in place of mlp:hidden=32"),
        (["--net", "lenet5,mlp:hidden=32,cnn-mho", "--batch-size", "32"], "local steps:"),
        (["--net", "lenet5,mlp:hidden=32,cnn-mho", "--withhold-counts"], "in place of none"),
        (["--net", "lenet5,mlp:hidden=32,cnn-mho", "--lr", "-1"], "lr"),
        (
            ["--net", "lenet5,mlp:hidden=32,cnn-mho", "--lr", "0.5", "--seed", "3"],
            "seed: 0 in place of 3; lr:",
        ),
        (["--net", "lenet5,mlp:hidden=32,cnn-mho", "--statistics"], "statistics: None in place of"),
    ],
)
def test_train_refuses_uploads_of_other_settings(federation, changed, told):
    before = [path.read_bytes() for path in uploads(federation)]
    done = run("train", "--partition", "parts.json", *QUICK, *changed, cwd=federation, status=2)
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert [path.read_bytes() for path in uploads(federation)] == before


def test_train_refuses_upload_of_other_images(tmp_path):
    """As many of each class, drawn otherwise. A file that came from elsewhere is kept, and that
    nobody knows more of it is said.
    """
    draws = np.random.default_rng(0)
    for name, place in ((name, place) for name in ("a", "b") for place in range(4)):
        (tmp_path / "mine" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (8, 8), np.uint8)).save(
            tmp_path / "mine" / name / f"{place}.png"
        )
    words = (
        "train",
        "--data",
        "folder:mine",
        "--client",
        "ann",
        "--net",
        "mlp:hidden=4",
        "--epochs",
        1,
        "--out",
        "ann.attar",
    )
    shown = run(*words, cwd=tmp_path).stdout
    assert " %" in shown, "of its own images"
    assert "validation" not in shown
    assert "kept" in run(*words, cwd=tmp_path).stdout
    for file in (tmp_path / "mine" / "a").iterdir():
        Image.fromarray(draws.integers(0, 256, (8, 8), np.uint8)).save(file)
    told = run(*words, cwd=tmp_path, status=2).stderr
    assert "ann.attar: trained on other images" in " ".join(told.replace("│", " ").split())
    (tmp_path / ".ann.trained").unlink()
    shown = " ".join(run(*words, cwd=tmp_path).stdout.split())
    assert "No training metadata beside these uploads" in shown
    assert "ann.attar" in shown


def test_train_requires_attar_ending(tmp_path):
    done = run(
        "train", "--data", "fashion-mini", "--net", "mlp", "--out", "a.pt", cwd=tmp_path, status=2
    )
    assert "--out a.attar" in done.stderr


def test_train_checks_names_first(tmp_path, monkeypatch):
    monkeypatch.setattr("attar.cli.train.train_stack", None)  # nobody gets there
    done = run(
        "train",
        "--data",
        "fashion-mini",
        "--client",
        "Köln",
        "--net",
        "mlp",
        "--out",
        "k.attar",
        cwd=tmp_path,
        status=2,
    )
    assert "client 'Köln': its name must be 1 to 64 letters a to z" in " ".join(
        done.stderr.replace("│", " ").split()
    )
    (tmp_path / "file").write_text("")
    run(
        "train",
        "--data",
        "fashion-mini",
        "--client",
        "k",
        "--net",
        "mlp",
        "--out",
        "file/k.attar",
        cwd=tmp_path,
        status=2,
    )


def test_inspect_shows_revelations(federation):
    shown = run("inspect", *uploads(federation), cwd=federation).stdout
    assert "mlp:hidden=32" in shown
    assert "how many of each class" in shown
    described = run_json("inspect", *uploads(federation), cwd=federation)
    assert sum(one["num_examples"] for one in described) == 4800


def test_train_withhold_counts(federation, tmp_path):
    withheld = tmp_path / "quiet.attar"
    run("train", "--partition", "parts.json", "--client", 1, "--net", "mlp", "--epochs", 1,
         "--withhold-counts",
        "--validation", 0.2, "--out", withheld, cwd=federation)  # fmt: skip
    assert attar.read_bundle(withheld).label_counts is None
    assert "withheld" in run("inspect", withheld, cwd=tmp_path).stdout
    refused = run(
        "fuse",
        withheld,
        "--method",
        "ensemble",
        "--set",
        "rule=class-share",
        "--out",
        "x",
        cwd=tmp_path,
        status=2,
    )
    assert "client-1 must send label counts" in refused.stderr
    assert not (tmp_path / "x").exists()


def test_fuse_eval_predict(federation, tmp_path):
    record = run_json(
        "fuse", *uploads(federation), "--method", "feddf", "--set", "steps=60", "--student",
         "lenet5",
        "--public", "parts.json", "--data", "fashion-mini", "--evaluate-every", 30, "--out",
         tmp_path / "fused", cwd=federation,
    )  # fmt: skip
    assert record["settings"]["steps"] == 60
    assert record["public"]["labelled"] is False
    assert [point["step"] for point in record["history"] if "accuracy" in point] == [30, 60]
    found = run_json("eval", tmp_path / "fused", "--data", "fashion-mini", cwd=federation)
    assert found["accuracy"] == pytest.approx(record["accuracy"])
    assert found["accuracy"] > 0.3
    alone = run_json(
        "eval", uploads(federation)[0], "--data", "fashion-mini", "--split", "all", cwd=federation
    )
    assert alone["num_images"] == 7000

    data = attar.load_data("fashion-mini")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, image in enumerate(data.test.images[:4]):
        Image.fromarray(image[:, :, 0]).save(pictures / f"{number}.png")
    run("predict", tmp_path / "fused", pictures, "-o", tmp_path / "out.csv", cwd=federation)
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert rows[0] == "image,class,probability"
    assert len(rows) == 5
    assert all(row.split(",")[1] in data.classes for row in rows[1:])


def test_fuse_dry_run(federation, tmp_path):
    files = [
        tmp_path / f"{net.partition(':')[0]}.attar"
        for net in ("lenet5", "mlp:hidden=32", "cnn-mho")
    ]
    for path in files:
        attar.write_bundle(path, tiny_upload(path.stem, path.stem))
    planned = run_json("fuse", *files, "--dry-run", "--public", "parts.json", cwd=federation)
    rows = {row["method"]: row for row in planned}
    assert rows["ensemble"]["fits"]
    assert [row["place"] for row in planned if row["fits"]] == list(
        range(1, sum(row["fits"] for row in planned) + 1)
    ), "in the order of recommendation"
    assert planned[0]["method"] == "accord"
    assert not planned[-1]["fits"]
    assert not rows["fedavg"]["fits"]
    assert "3 x" not in rows["fedavg"]["why_not"][0]
    assert "lenet5" in rows["fedavg"]["why_not"][0]
    assert rows["feddf"]["fits"]  # the held-out images of parts.json
    assert rows["feddf"]["seconds"] > 0
    assert rows["feddf"]["memory_bytes"] > 0
    asked = ("--dry-run", "--method", "feddf", "--public", "parts.json")
    (short,) = run_json("fuse", *files, *asked, "--set", "steps=1", cwd=federation)
    assert short["method"] == "feddf"
    assert short["seconds"] < rows["feddf"]["seconds"] / 2


def test_train_fuse_eval_image_folder(tmp_path):
    draws = np.random.default_rng(0)
    for name, box in (
        ("tall", (10, 4, 22, 28)),
        ("wide", (4, 10, 28, 22)),
        ("small", (12, 12, 20, 20)),
    ):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(40):
            pixels = draws.integers(0, 90, (32, 32, 3), dtype=np.uint8)
            left, top, right, bottom = box
            pixels[top:bottom, left:right] = 220
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number}.jpg")
    run(
        "partition",
        "folder:pets",
        "--rule",
        "iid",
        "--clients",
        3,
        "--hold-out",
        0.3,
        "--out",
        "parts.json",
        cwd=tmp_path,
    )
    run("train", "--partition", "parts.json", "--net", "lenet5,mlp,cnn-mho", "--epochs", 15,
         "--batch-size", 8,
        "--optimiser", "adam", "--lr", 0.001, cwd=tmp_path)  # fmt: skip
    run("inspect", *uploads(tmp_path), cwd=tmp_path)
    run_apart(
        "fuse",
        *uploads(tmp_path),
        "--method",
        "feddf",
        "--set",
        "steps=150",
        "--public",
        "parts.json",
        "--out",
        "fused",
        cwd=tmp_path,
    )
    found = run_json("eval", "fused", "--data", "folder:pets", cwd=tmp_path)
    assert found["accuracy"] > 0.9
    assert found["classes"] == ["small", "tall", "wide"]


def test_privacy_checks_decoder(tmp_path):
    """Colour images of odd size in a folder; one of them, alone in its class, comes back from
    the decoder.
    """
    draws = np.random.default_rng(0)
    for name, box in (("tall", (10, 4, 22, 32)), ("wide", (4, 10, 34, 22))):
        (tmp_path / "pets" / "train" / name).mkdir(parents=True)
        for number in range(40):
            pixels = draws.integers(0, 90, (36, 38, 3), dtype=np.uint8)
            left, top, right, bottom = box
            pixels[top:bottom, left:right] = 220
            Image.fromarray(pixels).save(tmp_path / "pets" / "train" / name / f"{number}.png")
    (tmp_path / "pets" / "train" / "rare").mkdir()
    alone = draws.integers(0, 256, (9, 19, 3), dtype=np.uint8).repeat(4, 0).repeat(2, 1)
    Image.fromarray(alone).save(tmp_path / "pets" / "train" / "rare" / "0.png")
    (tmp_path / "pets" / "test" / "tall").mkdir(parents=True)
    Image.fromarray(alone).save(tmp_path / "pets" / "test" / "tall" / "0.png")
    (described,) = run_json("train", "--data", "folder:pets", "--client", "ann", "--kind", "cvae",
     "--epochs", 60,
                            "--batch-size", 8, "--lr", 0.003, "--out", "ann.attar",
                             cwd=tmp_path)  # fmt: skip
    assert described["parts"]["decoder"]["input_shape"] == [3, 36, 38]
    assert described["label_counts"] == [1, 40, 40]
    assert "a decoder" in run("inspect", "ann.attar", cwd=tmp_path).stdout
    checked = run_json(
        "privacy",
        "ann.attar",
        "--data",
        "folder:pets",
        "--samples",
        200,
        "--pairs",
        4,
        cwd=tmp_path,
    )
    assert checked["images"] == 81
    assert checked["drawn"]["rare"] == 50
    assert checked["closest"][0]["distance"] <= checked["closest"][-1]["distance"]
    assert "rare" in {pair["nearest_is"] for pair in checked["singled_out"]}
    assert checked["fid"] < checked["fid_noise"]
    for name in ("closest", "singled-out"):
        with Image.open(tmp_path / "privacy" / "ann" / f"{name}.png") as sheet:
            assert sheet.size[0] < sheet.size[1], "two columns: synthetic, real"
    assert (
        json.loads((tmp_path / "privacy" / "ann" / "privacy.json").read_text())["features"]
        == checked["features"]
    )
    shown = run(
        "privacy",
        "ann.attar",
        "--data",
        "folder:pets",
        "--samples",
        50,
        "--out",
        "again",
        cwd=tmp_path,
    ).stdout
    assert "Closest pairs" in shown
    assert shown.split("\n")[1].startswith("may it be sent?"), "the answer stands first"
    assert checked["answer"] in ("yes", "no", "cannot tell")
    Image.fromarray(alone[::-1]).save(
        tmp_path / "pets" / "train" / "rare" / "0.png"
    )  # as many images, another one
    refused = run("privacy", "ann.attar", "--data", "folder:pets", cwd=tmp_path, status=2).stderr
    assert "trained on other images than these" in " ".join(refused.replace("│", " ").split())


def test_privacy_with_partition(federation, decoders):
    found = run_json(
        "privacy",
        decoders[1],
        "--partition",
        "parts.json",
        "--samples",
        50,
        "--pairs",
        2,
        cwd=federation,
    )
    assert found["client"] == "client-1"
    assert len(found["closest"]) == 2


def test_privacy_of_a_classifier_is_a_signed_page(federation, tmp_path):
    path = uploads(federation)[0]
    run("keygen", tmp_path / "key", "--client", path.stem, cwd=tmp_path)
    found = run_json(
        "privacy", path, "--partition", "parts.json", "--shadows", 2, "--passes", 400,
        "--sign", tmp_path / "key", "--out", tmp_path / "out", cwd=federation,
    )  # fmt: skip
    assert [one["title"].split()[0] for one in found["findings"]] == ["Differential", "Can", "Can"]
    assert found["answer"] in ("no", "cannot tell"), "there are too few other images for a yes"
    assert [attack["name"] for attack in found["findings"][1]["attacks"]] == [
        "loss threshold",
        "LiRA, offline",
    ]
    page = tmp_path / "out" / "dossier.html"
    assert found["sha256"] in page.read_text()
    assert page.with_name("dossier.html.sig").is_file()


def test_train_with_differential_privacy(tmp_path):
    pytest.importorskip("dp_accounting", reason="attar[dp] is not installed")
    (described,) = run_json(
        "train", "--data", "fashion-mini", "--net", "mlp:hidden=8", "--epochs", 1,
        "--dp-epsilon", 8, "--out", "ann.attar", "--client", "ann", cwd=tmp_path,
    )  # fmt: skip
    claim = described["privacy_claim"]
    assert claim["epsilon"] == 8
    assert claim["steps"] == described["local_steps"]
    assert described["label_counts"] is None
    said = " ".join(run("inspect", "ann.attar", cwd=tmp_path).stdout.split())
    assert "the sender claims (8, 1e-05)-differential privacy" in said
    refused = run(
        "train", "--data", "fashion-mini", "--net", "lenet5", "--statistics", "--dp-epsilon", 8,
        cwd=tmp_path, status=2,
    ).stderr  # fmt: skip
    assert "past the noise" in " ".join(refused.replace("│", " ").split())


def test_keygen_sign_fuse(federation, tmp_path):
    """As three parties and a server would: keys, signatures, a list, a stranger, a stripped
    signature.
    """
    files = [tmp_path / path.name for path in uploads(federation)]
    for path in files:
        path.write_bytes((federation / "uploads" / path.name).read_bytes())
        made = run_json("keygen", f"{path.stem}.key", cwd=tmp_path)
        assert made["client"] == path.stem
        run("sign", path.name, "--key", f"{path.stem}.key", cwd=tmp_path)
    assert (tmp_path / "client-0.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "keys.toml").write_text(
        "".join((tmp_path / f"{path.stem}.pub").read_text() for path in files)
    )
    described = run_json(
        "inspect", *files, "--trusted", "keys.toml", "--require-signatures", cwd=tmp_path
    )
    assert [one["signature"]["standing"] for one in described] == ["trusted"] * 3
    assert "trusted" in run("inspect", *files, "--trusted", "keys.toml", cwd=tmp_path).stdout
    trusted = ("--trusted", "keys.toml", "--require-signatures", "--no-robustness")
    record = run_json("fuse", *files, *trusted, "--out", "fused", cwd=tmp_path)
    assert {one["standing"] for one in record["signatures"].values()} == {"trusted"}
    assert record["robustness"] is None
    (tmp_path / "client-1.attar.sig").unlink()
    run("sign", "client-2.attar", "--key", "client-0.key", cwd=tmp_path)
    refused = " ".join(
        run("fuse", *files, *trusted, "--out", "x", cwd=tmp_path, status=2)
        .stderr.replace("│", " ")
        .split()
    )
    assert "client-1: not signed" in refused
    assert "client-2: signature another client's key" in refused
    assert not (tmp_path / "x").exists()
    run("inspect", *files, "--trusted", "keys.toml", cwd=tmp_path, status=2)
    out = ("--exclude", "client-1", "--exclude", "client-2", "--out", "alone")
    alone = run_json("fuse", *files, *trusted, *out, cwd=tmp_path)
    assert alone["excluded"] == ["client-1", "client-2"]


def test_train_signs(federation, tmp_path):
    run("keygen", "ann.key", "--client", "client-1", cwd=tmp_path)
    run("train", "--partition", federation / "parts.json", "--client", 1, "--net", "mlp",
         "--epochs", 1, "--out", "ann.attar",
        "--sign", "ann.key", cwd=tmp_path)  # fmt: skip
    (described,) = run_json(
        "inspect", "ann.attar", "--trusted", "ann.pub", "--require-signatures", cwd=tmp_path
    )
    assert described["signature"]["standing"] == "trusted"
    told = run(
        "train",
        "--data",
        "fashion-mini",
        "--sign",
        "no.key",
        "--out",
        "x.attar",
        cwd=tmp_path,
        status=2,
    ).stderr
    assert "no.key" in told


def test_fuse_class_map_and_robustness(federation, tmp_path):
    files = uploads(federation)
    names = ("--class-map", "Bag=sack", "--classes", ",".join(
        "sack" if name == "Bag" else name
        for name in reversed(attar.load_data("fashion-mini").classes)))  # fmt: skip
    done = run("fuse", *files, *names, "--out", tmp_path / "fused", cwd=federation)
    assert "Robustness, on" in done.stdout
    assert "agreement" in done.stdout
    record = json.loads((tmp_path / "fused" / "record.json").read_text())
    assert record["class_map"] == {"Bag": "sack"}
    assert record["task"]["classes"][1] == "sack"
    assert [one["client"] for one in record["robustness"]["clients"]] == [
        "client-0",
        "client-1",
        "client-2",
    ]
    assert [one["sha256"] for one in record["clients"]] == [
        one["sha256"] for one in run_json("inspect", *files, cwd=federation)
    ]
    wrong = ("--class-map", "wolf=dog", "--exclude", "client-9")
    for flags, told in (
        (wrong[:2], "no client has a class 'wolf'"),
        (wrong[2:], "no upload of client-9"),
    ):
        refused = run(
            "fuse", *files, *flags, "--out", tmp_path / "x", cwd=federation, status=2
        ).stderr
        assert told in " ".join(refused.replace("│", " ").split())


SMALL = ("generator_steps=2", "batch_size=8", "noise=8", "generator_width=4")
KILLED = {
    "feddf": ("steps=120",),
    "dense": ("epochs=30", *SMALL),
    "f-dafl": ("epochs=30", *SMALL),
    "f-adi": ("epochs=30", "inversion_steps=2", "batch_size=8"),
    "fedftg": ("epochs=60", *SMALL[1:]),
    "co-boosting": ("epochs=20", *SMALL),
    "fedhydra": ("epochs=30", *SMALL),
    "fedcvae": ("samples=200", "epochs=30", "mode=kd", "decoder_epochs=10"),
    "fedmho": ("samples=200", "epochs=30", "initial_epochs=10", "remember=both", "weights=learned"),
}


def _fuse_arguments(federation, out, method):
    sets = [word for setting in KILLED[method] for word in ("--set", setting)]
    weak = sorted((federation / "weak").glob("*.attar"))
    files = {"fedcvae": weak, "fedmho": [*uploads(federation)[:2], weak[2]]}.get(
        method, uploads(federation)
    )
    return [
        "fuse", *files, "--method", method, *sets, "--student", "lenet5", "--public",
         federation / "parts.json",
        "--out", out, "--no-robustness",
    ]  # fmt: skip


def _killed(arguments, out, how, cwd, seconds=120):
    """Begin the run in a process of its own, end it once it has saved a few times: its status,
    and what it said.
    """
    told = out.with_suffix(".stderr")
    process = start(*arguments, "--checkpoint-seconds", 0, cwd=cwd, told=told)
    deadline = time.monotonic() + seconds
    path, saves, before = out / "checkpoint.safetensors", 0, None
    while saves < 8:
        assert process.is_alive(), f"the run ended before it could be killed: {told.read_text()}"
        assert time.monotonic() < deadline, "no checkpoint"
        now = path.stat().st_mtime_ns if path.exists() else None
        saves += now != before
        before = now
        time.sleep(0.002)
    os.kill(process.pid, how)
    process.join(60)
    return process.exitcode, told.read_text()


@pytest.mark.parametrize("method", KILLED)
def test_fuse_resumes_bit_equal(federation, decoders, tmp_path, method):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    run(*_fuse_arguments(federation, straight, method), cwd=federation)
    again = _fuse_arguments(federation, killed, method)
    status, _ = _killed(again, killed, signal.SIGKILL, federation)
    assert status == -signal.SIGKILL
    assert not (killed / "model.safetensors").exists()
    assert "--resume" in run(*again, cwd=federation, status=2).stderr
    again.append("--resume")
    if method == "feddf":  # and stopped by Ctrl-C when it has gone on
        status, told = _killed(again, killed, signal.SIGINT, federation)
        assert status == 130
        assert "--resume" in told
        assert not (killed / "model.safetensors").exists()
    run(*again, cwd=federation)
    assert (killed / "model.safetensors").read_bytes() == (
        straight / "model.safetensors"
    ).read_bytes()
    assert not list(killed.glob("checkpoint.*"))


def test_fuse_minutes(federation, tmp_path):
    record = run_json(
        "fuse", *uploads(federation), "--method", "feddf", "--set", "steps=1000000", "--public",
         "parts.json",
        "--minutes", 0.03, "--out", tmp_path / "fused", cwd=federation,
    )  # fmt: skip
    assert record["ending"] == "deadline"
    assert (tmp_path / "fused" / "checkpoint.safetensors").exists()
    assert (
        run_json("eval", tmp_path / "fused", "--data", "fashion-mini", cwd=federation)["num_images"]
        == 1000
    )
    assert "Ended early" in (tmp_path / "fused" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["eval", "nowhere", "--data", "fashion-mini"], "There is no model at nowhere"),
        (["partition", "fashion-mini", "--rule", "dirichlet"], "dirichlet"),
        (["partition", "folder:nowhere"], "nowhere"),
        (["train", "--data", "fashion-mini", "--net", "lenet6"], "lenet6"),
        (["train", "--data", "fashion-mini", "--net", "mlp:width=3"], "width"),
        (["train", "--data", "fashion-mini", "--net", "mlp", "--lr", "-1"], "lr"),
        (["train"], "--data SOURCE or --partition FILE"),
        (["partition", "fashion-mini", "--out", "parts.svg"], "both the partition and its picture"),
        (["inspect", "missing.attar", "other.attar"], "other.attar"),
        (["fuse", "missing.attar", "--out", "x"], "missing.attar"),
        (["ls", "nothing"], "nothing"),
    ],
)
def test_main_shows_errors_in_one_block(arguments, told, tmp_path):
    done = run(*arguments, cwd=tmp_path, status=2)
    assert told in done.stderr + done.stdout


def test_fuse_names_all_wrong_settings(federation, tmp_path):
    wrong = ("--set", "stepz=3", "--set", "lr=fast")
    done = run(
        "fuse",
        *uploads(federation),
        "--method",
        "feddf",
        *wrong,
        "--out",
        tmp_path / "x",
        cwd=federation,
        status=2,
    )
    assert "stepz" in done.stderr
    assert "lr = 'fast'" in done.stderr


def test_fuse_refuses_divergence(federation, tmp_path):
    wild = (
        "--method",
        "dense",
        "--set",
        "epochs=2",
        "--set",
        "generator_steps=1",
        "--set",
        "student_lr=1e30",
    )
    done = run(
        "fuse", *uploads(federation), *wild, "--out", tmp_path / "x", cwd=federation, status=2
    )
    assert "Method dense diverged" in done.stderr
    assert not (tmp_path / "x" / "config.json").exists()


def test_fuse_refuses_data_of_other_classes(federation, tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros((12, 28, 28), np.uint8), y=np.arange(12) % 3)
    there = (
        "--method",
        "fedavg",
        "--data",
        f"npz:{tmp_path / 'other.npz'}",
        "--out",
        tmp_path / "x",
    )
    done = run(
        "fuse",
        *[path for path in uploads(federation) if path.stem == "client-0"],
        *there,
        cwd=federation,
        status=2,
    )
    assert "no class in common" in done.stderr
    assert not (tmp_path / "x").exists()


def test_fuse_refuses_student(federation, tmp_path):
    files = uploads(federation)
    done = run(
        "fuse",
        *files,
        "--method",
        "ensemble",
        "--student",
        "mlp",
        "--out",
        tmp_path / "x",
        cwd=federation,
        status=2,
    )
    assert "makes no student" in done.stderr


def test_fuse_unwritable_out(federation, tmp_path):
    (tmp_path / "file").write_text("")
    done = run(
        "partition",
        "fashion-mini",
        "--out",
        tmp_path / "file" / "parts.json",
        cwd=tmp_path,
        status=2,
    )
    assert "file" in "".join(
        done.stderr.replace("│", " ").split()
    )  # a long path is broken anywhere


@pytest.mark.parametrize("what", ["nets", "methods", "data"])
def test_ls(what, tmp_path, monkeypatch):
    rows = run_json("ls", what, cwd=tmp_path)
    assert len(rows) >= 3
    monkeypatch.setattr(
        listing, f"list_{what}", lambda: rows
    )  # counting the arithmetic of all nets takes seconds: once will do
    assert run("ls", what, cwd=tmp_path).stdout.count("\n") > len(rows)


@pytest.mark.parametrize("size", ["small", pytest.param("shipped", marks=pytest.mark.slow)])
def test_demo_methods_beat_best_client(tmp_path, monkeypatch, size):
    """Small: nets that train in a moment, for fewer epochs; the claims are the same.

    Sixteen epochs are too few for what learns from a generator: of it the demo says so, and
    nothing is claimed but that it is there.
    """
    if size == "small":
        for name in demo.GENERATED:
            monkeypatch.setitem(
                demo.SHOWN, name, replace(demo.SHOWN[name], epochs=1, generator_steps=1)
            )
        monkeypatch.setitem(demo.SHOWN, "accord", replace(demo.SHOWN["accord"], sketches=2560))
        monkeypatch.setattr(demo, "NETS", "vit-tiny:patch=14,depth=1,mlp,lenet5,cvae-small,lenet5")
        monkeypatch.setattr(demo, "TRAINING", replace(demo.TRAINING, epochs=10))
        monkeypatch.setitem(demo.SHOWN, "feddf", replace(demo.SHOWN["feddf"], steps=500))
    outcome = run_json("demo", "--out", "demo", "--seed", int(size == "small"), cwd=tmp_path)
    fused = {line["name"]: line["accuracy"] for line in outcome["lines"] if line["kind"] == "fused"}
    few = [line["what"] for line in outcome["lines"] if line["name"] in demo.GENERATED]
    epochs = 1 if size == "small" else demo.SMALL["epochs"]
    assert [what.rpartition(", ")[2] for what in few] == [
        f"{epochs} epochs (by default {n})" for n in (200, 500, 200)
    ]
    for name in demo.GENERATED:
        del fused[name]
    assert len(fused) == 6
    weak = [line for line in outcome["lines"] if line["accuracy"] is None]
    assert [line["what"] for line in weak] == ["sends no classifier but cvae-small-decoder"]
    assert fused["fedmho-sd"] > fused["feddf"], "the weak client has something to say"
    assert min(fused.values()) > outcome["best_client"]
    assert (tmp_path / "demo" / "accuracy.svg").exists()
    assert (tmp_path / "demo" / "partition.svg").exists()
    assert "fedmho-sd" in (tmp_path / "demo" / "report.html").read_text()
    assert (
        attar.load_model(tmp_path / "demo" / "models" / "feddf").classes
        == attar.load_data("fashion-mini").classes
    )
    again = run("demo", "--out", "demo", cwd=tmp_path, status=2)
    assert "not empty" in again.stderr


def test_script_runs():
    """``python -m attar``, the other way in, is how ``run_apart`` runs everything."""
    script = Path(sys.executable).with_name("attar")
    assert (
        "inspect"
        in subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    )


def test_train_says_the_floor_and_the_verdict(tmp_path):
    """Few images: more epochs, said; what was learned, said, in JSON and in the hidden note."""
    draws = np.random.default_rng(0)
    for name, light in (("a", 160), ("b", 90)):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for place in range(30):
            pixels = (light + draws.normal(0, 30, (16, 16))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "mine" / name / f"{place}.png")
    words = ("train", "--data", "folder:mine", "--client", "ann", "--net", "mlp:hidden=8")
    shown = " ".join(run(*words, "--out", "ann.attar", cwd=tmp_path).stdout.split())
    assert "ann: 30 epochs would be 90 steps: training 600 steps (200 epochs)" in shown
    assert "learned" in shown
    note = json.loads((tmp_path / ".ann.trained").read_text())
    assert note["verdict"]["outcome"] == "learned"
    (again,) = run_json(*words, "--out", "ann.attar", cwd=tmp_path)
    assert again["verdict"] == note["verdict"]

    slow = ("--optimiser", "sgd", "--lr", 1e-7, "--epochs", 1, "--out", "slow.attar")
    shown = " ".join(run(*words, *slow, cwd=tmp_path).stdout.split())
    assert "Do not send yet, nothing was learned: ann" in shown
    assert "To change it: leave --optimiser, --lr and --epochs out" in shown
    refused = run(*words, "--epochs", 0, "--out", "none.attar", cwd=tmp_path, status=2).stderr
    assert "--epochs 0: an untrained net would be sent" in " ".join(refused.split())


def test_server_warns_of_one_answer(tmp_path):
    """`inspect` and `fuse` name a net that answers one class to everything, and exclude nobody."""
    for name in ("stuck", "other"):
        upload = tiny_upload(name)
        part = upload.parts["classifier"]
        if name == "stuck":
            state = {key: value * 0 for key, value in part.state.items()}
            state["head.bias"][1] = 5.0
            upload = replace(upload, parts={"classifier": replace(part, state=state)})
        attar.write_bundle(tmp_path / f"{name}.attar", upload)
    files = ("stuck.attar", "other.attar")
    stuck, other = run_json("inspect", *files, cwd=tmp_path)
    assert (stuck["one_answer"]["share"], other["one_answer"]) == (1.0, None)
    shown = " ".join(run("inspect", *files, cwd=tmp_path).stdout.split())
    assert "warning: client stuck answers one class to every image" in shown
    done = run("fuse", *files, "--method", "ensemble", "--out", "fused", cwd=tmp_path)
    assert "client stuck answers one class" in " ".join(done.stderr.split())
    record = run_json("fuse", *files, "--out", "again", cwd=tmp_path)
    assert [one["client"] for one in record["one_answer"]] == ["stuck"]
    assert len(record["clients"]) == 2
