"""Messages about mistakes in verbs, options and files, and Ctrl-C pressed more than once."""

import os
import subprocess
import sys

import numpy as np
import pytest
from commands import run
from PIL import Image

from attar.cli.app import VERBS
from attar.cli.arguments import read_canonical_images
from attar.errors import BundleError, DataError, SettingsError
from attar.methods import find_method
from attar.models import save_model
from attar.testing import tiny_upload
from attar.uploads import read_bundles, write_bundle


def stderr_of(*arguments, cwd):
    """What a command with a mistake prints on stderr, in one line without its frame."""
    done = run(*arguments, cwd=cwd, status=2)
    assert done.stderr.startswith("╭─ error ─")
    assert done.stdout == ""
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.fixture
def place(tmp_path):
    """Two uploads and a model folder."""
    for client in ("ann", "bob"):
        write_bundle(tmp_path / f"{client}.attar", tiny_upload(client))
    part = tiny_upload("ann").parts["classifier"]
    save_model(tmp_path / "fused", part, card="# A model\n")
    return tmp_path


# --- words that the parser does not know ----------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("trian", "train"), ("Fuse", "fuse"), ("evaluate", "eval"), ("predikt", "predict")],
)
def test_parse_command_suggests_verb(tmp_path, typed, meant):
    stderr = stderr_of(typed, "--data", "folder:berlin", cwd=tmp_path)
    assert f"There is no verb {typed!r}: did you mean {meant!r}?" in stderr
    assert all(verb in stderr for verb in VERBS)
    assert "Perhaps you meant" not in stderr  # the options of five verbs


@pytest.mark.parametrize("typed", [[], ["xyzzy"], ["help"]], ids=str)
def test_parse_command_lists_verbs(tmp_path, typed):
    stderr = stderr_of(*typed, cwd=tmp_path)
    assert "did you mean" not in stderr
    assert "the verbs are demo, ls" in stderr


UNKNOWN = [
    ("train photos", "'photos' is not an option of attar train.",
     "images are named with --data folder:photos"),
    ("train fashion-mini", "'fashion-mini' is not an option of",
     "images are named with --data fashion-mini"),
    ("train folder:x", "'folder:x' is not an option of", "images are named with --data folder:x"),
    ("train photos/cat.png", "is not an option of attar train.",
     "images are named with --data folder:photos "),
    ("train digits.npz", "is not an option of attar train.",
     "images are named with --data npz:digits.npz"),
    ("train parts.json", "is not an option of attar train.",
     "a partition is named with --partition parts.json"),
    ("train epochs=3", "'epochs=3' is not an option of attar train.", "write --epochs 3"),
    ("train --data folder:x y", "'y' is not an option of attar train.",
     "To fix it: `attar train --help` names its options"),
    ("fuse a.attar --method fedmho --set epochs=2 samples=300",
     "'samples=300' is not an option of attar fuse.",
     "each setting needs a --set of its own: --set samples=300"),
    ("fuse a.attar --set epochs=2 b.attar", "'b.attar' is not an option of attar fuse.",
     "name the files first"),
    ("fuse a.attar --methd dense", "'--methd' is not an option of attar fuse.",
     "did you mean --method?"),
    ("fuse a.attar --methd=dense", "'--methd=dense' is not an option of attar fuse.",
     "did you mean --method?"),
    ("train --nothing-like-it 3", "'--nothing-like-it' is not an option of attar train.",
     "To fix it: `attar train --help`"),
    ("train a b=1 --lrr 3",
     "Unknown arguments of attar train: - 'a' is not an option of attar train - 'b=1' is not an "
     "option of "
     "attar train - '--lrr' is not an option of attar train", "did you mean --lr?"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "what", "fix"), UNKNOWN, ids=lambda item: str(item)[:40])
def test_parse_command_unknown_arguments(tmp_path, typed, what, fix):
    stderr = stderr_of(*typed.split(), cwd=tmp_path)
    assert what in stderr
    assert fix in stderr
    assert f"`attar {typed.split()[0]} --help` names its options" in stderr


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        ("train --epochs abc", "--epochs abc: expected a whole number."),
        ("train --epochs=1.5", "--epochs 1.5: expected a whole number."),
        ("train --lr fast", "--lr fast: expected a number."),
        ("train --seed x", "--seed x: expected a whole number."),
    ],
)
def test_parse_command_wrong_number(tmp_path, typed, what):
    stderr = stderr_of(*typed.split(), cwd=tmp_path)
    assert what in stderr
    assert "NoneType" not in stderr
    assert f"`attar {typed.split()[0]} --help`" in stderr


def test_parse_command_other_refusals(tmp_path):
    done = run("eval", "model", cwd=tmp_path, status=2)
    assert "Missing from attar eval" in done.stderr
    assert "invalid choice 'x'" in run("train", "--kind", "x", cwd=tmp_path, status=2).stderr


def test_parse_command_help(tmp_path):
    assert "fuse" in run("--help", cwd=tmp_path).stdout
    assert "--checkpoint-seconds" in run("fuse", "--help", cwd=tmp_path).stdout


# --- files and settings ---------------------------------------------------------------------------


def test_read_bundles_unreadable_file(tmp_path, monkeypatch):
    write_bundle(tmp_path / "noread.attar", tiny_upload("ann"))

    def refuse(path, *mode):
        raise PermissionError(13, "Permission denied", str(path))

    # a file mode would not keep out root, who runs tests in containers
    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(BundleError, match=r"noread\.attar: Permission denied") as caught:
        read_bundles([tmp_path / "noread.attar"])
    assert caught.value.fix.startswith("make it readable")
    with pytest.raises(DataError, match=r"x\.png: Permission denied") as caught:
        read_canonical_images([tmp_path / "x.png"], (1, 8, 8))
    assert caught.value.fix.startswith("make the file readable")


def test_fuse_refuses_model_folder(place):
    stderr = stderr_of("fuse", "fused", "ann.attar", "--out", "x", cwd=place)
    assert "fused: this is a model folder, not an upload" in stderr
    assert "leave it out" in stderr
    assert "*.attar" not in stderr
    assert "check the path" in stderr_of(
        "fuse", "none.attar", "none.attar", "--out", "x", cwd=place
    )  # also named twice


def test_predict_refuses_image_as_model(place):
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(place / "cat.PNG")
    stderr = stderr_of("predict", "cat.PNG", "fused", cwd=place)
    assert "cat.PNG is an image, not a model." in stderr
    assert "name the model first: attar predict MODEL IMAGES" in stderr


def test_predict_unreadable_images(place):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16), np.uint8)).save(
        place / "cat.png"
    )
    whole = (place / "cat.png").read_bytes()
    assert run("predict", "fused", "cat.png", cwd=place).stdout.startswith("image,class")
    assert (
        "No image is named. To fix it: name image files, or folders of them, after the model"
        in stderr_of("predict", "fused", cwd=place)
    )
    stderr = stderr_of("predict", "fused", "dog.png", cwd=place)
    assert "dog.png: No such file" in stderr
    assert "check the path" in stderr
    assert "images end in" not in stderr
    (place / "cut.png").write_bytes(whole[: len(whole) // 2])
    stderr = stderr_of("predict", "fused", "cut.png", cwd=place)
    assert "cut.png: " in stderr
    assert "the file is cut off or damaged: get it again" in stderr
    assert "images end in" not in stderr
    (place / "notes.txt").write_text("a cat")
    stderr = stderr_of("predict", "fused", "notes.txt", "dog.png", cwd=place)
    assert "To fix it: images end in .png, .jpg, .jpeg; check the path" in stderr
    (place / "nothing").mkdir()
    assert "There is no image in nothing. To fix it: images end in" in stderr_of(
        "predict", "fused", "nothing", cwd=place
    )


def test_fuse_refuses_settings(place):
    stderr = stderr_of(
        "fuse",
        "ann.attar",
        "bob.attar",
        "--method",
        "dense",
        "--set",
        "epochs",
        "--out",
        "x",
        cwd=place,
    )
    assert (
        "Settings are written key=value: - 'epochs' To fix it: write each with its value, such "
        "as lr=0.1" in stderr
    )
    stderr = stderr_of(
        "fuse", "ann.attar", "bob.attar", "--set", "epochs=3", "--out", "x", cwd=place
    )
    assert "No --method was given, so these would be settings of ensemble:" in stderr
    assert "epochs: method ensemble has no such setting" in stderr
    assert "name the method whose settings these are with --method" in stderr
    run(
        "fuse", "ann.attar", "bob.attar", "--set", "rule=vote", "--out", "votes", cwd=place
    )  # the ensemble's own


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("dence", "dense"), ("DENSE", "dense"), ("FedMHO", "fedmho"), ("boosting", "co-boosting")],
)
def test_find_method_suggests_name(typed, meant):
    with pytest.raises(
        SettingsError, match=f"There is no method called {typed!r}. Did you mean {meant!r}?"
    ):
        find_method(typed)
    with pytest.raises(SettingsError, match=r"called 'xyzzy'\.\n"):
        find_method("xyzzy")


def test_load_clients_requires_one_source(place):
    for verb in (["train"], ["privacy", "ann.attar"]):
        stderr = stderr_of(*verb, cwd=place)
        assert (
            "No training images are named. To fix it: give --data SOURCE or --partition FILE"
            in stderr
        )
        stderr = stderr_of(*verb, "--data", "folder:x", "--partition", "y.json", cwd=place)
        assert "Both --data and --partition are given. To fix it: leave one of them out" in stderr


def test_eval_refuses_unfinished_run(place):
    (place / "run").mkdir()
    (place / "run" / "run.json").write_text("{}")
    stderr = stderr_of("eval", "run", "--data", "folder:x", cwd=place)
    assert "The run in run is unfinished: there is no model in it yet." in stderr
    assert "with --resume" in stderr


# --- Ctrl-C, again and again ----------------------------------------------------------------------

# `attar fuse` whose first step hangs, and Ctrl-C at the very moments that matter, by the process
# itself: nothing hangs on the clock.
IMPATIENT = """
import atexit, signal, sys, threading, time
from contextlib import contextmanager

when = sys.argv.pop(1)
# Also where the tests were started with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def press(moment):
    if moment == when:
        signal.raise_signal(signal.SIGINT)

@atexit.register
def last():
    press("in the last moment")

from attar.cli.output import console
from attar.cli import main
from attar.core import Phase
from attar.methods.feddf import FedDF

def step(state):
    signal.raise_signal(signal.SIGINT)
    if when == "in the step":
        signal.raise_signal(signal.SIGINT)
        time.sleep(1000)
    return {}

@contextmanager
def progress(*_, **__):
    try:
        yield lambda moment: None
    finally:
        press("on the way out")

def show_error(error, original=console.show_error):
    press("before the last word")
    original(error)
    press("after the last word")

def afterwards():
    threading.main_thread().join()  # which waits for this thread by now
    if when == "while threads end":
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

FedDF.phases = lambda self, context: [Phase("hang", 3, step)]
console.progress, console.show_error = progress, show_error
threading.Thread(target=afterwards).start()
sys.exit(main())
"""
MOMENTS = [
    "in the trial",
    "never again",
    "in the step",
    "on the way out",
    "before the last word",
    "after the last word",
    "while threads end",
    "in the last moment",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_main_second_ctrl_c(place, moment):
    typed = ["fuse", "ann.attar", "bob.attar", "--method", "feddf", "--public",
         "sketches?number=16&size=32&channels=3",
             "--out", "run", "--no-robustness"]  # fmt: skip
    if moment != "in the trial":  # that is taken before the run, to tell the time that it takes
        typed.append("--quiet")
    command = [sys.executable, "-c", IMPATIENT, moment, *typed]
    done = subprocess.run(
        command,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("╭─ stopped ─") == 1
    assert "--resume" in done.stderr
    assert done.stderr.rstrip().endswith("╯")  # and not a word after the block
    assert "Traceback" not in done.stderr
    assert (place / "run" / "run.json").exists()
