"""--config FILE.toml: flags from a file, and runs that are repeated from their own folder."""

import tomllib

import pytest
from commands import run

from attar.cli.app import VERBS
from attar.cli.parse import flags_of, parse_command
from attar.testing import tiny_upload
from attar.uploads import write_bundle

PUBLIC = "sketches?number=64&size=32&channels=3"


@pytest.fixture
def place(tmp_path):
    for client in ("ann", "bob"):
        write_bundle(tmp_path / f"{client}.attar", tiny_upload(client))
    return tmp_path


def error_of(*words, cwd):
    done = run(*words, cwd=cwd, status=2)
    return " ".join(done.stderr.replace("│", " ").split())


def test_fuse_repeats_a_run_from_its_folder(place):
    run(
        "fuse", "ann.attar", "bob.attar", "--method", "feddf", "--public", PUBLIC,
        "--set", "steps=5", "--set", "lr=2e-3", "--seed", 3, "--no-robustness", "--out", "fused",
        cwd=place,
    )  # fmt: skip
    written = tomllib.loads((place / "fused" / "command.toml").read_text())
    assert written == {
        "verb": "fuse",
        "files": ["ann.attar", "bob.attar"],
        "method": "feddf",
        "public": PUBLIC,
        "set": ["steps=5", "lr=2e-3"],
        "seed": 3,
        "no-robustness": True,
    }
    run("fuse", "--config", "fused/command.toml", "--out", "again", cwd=place)
    for file in ("model.safetensors", "run.json"):
        assert (place / "again" / file).read_bytes() == (place / "fused" / file).read_bytes()
    again = tomllib.loads((place / "again" / "command.toml").read_text())
    assert again == written
    # what is typed wins, and only over what it names
    run("fuse", "--config", "fused/command.toml", "--out", "other", "--set", "steps=2", cwd=place)
    other = tomllib.loads((place / "other" / "command.toml").read_text())
    assert sorted(other.pop("set")) == ["lr=2e-3", "steps=2"]
    assert other == {key: value for key, value in written.items() if key != "set"}
    assert (place / "other" / "model.safetensors").read_bytes() != (
        place / "fused" / "model.safetensors"
    ).read_bytes()


def test_train_repeats_a_run(place):
    flags = ("--data", "fashion-mini", "--net", "mlp:hidden=8", "--epochs", 1, "--client", "cat")
    run("train", *flags, "--out", "cat.attar", cwd=place)
    run("train", "--config", "cat.command.toml", "--out", "again.attar", "--quiet", cwd=place)
    assert (place / "again.attar").read_bytes() == (place / "cat.attar").read_bytes()


def test_dry_run_writes_no_command(place):
    run(
        "fuse",
        "ann.attar",
        "bob.attar",
        "--out",
        "x",
        "--dry-run",
        "--method",
        "ensemble",
        cwd=place,
    )
    assert not (place / "x").exists()


def words_of(place, text, *typed):
    """What a verb is called with, from a file and typed words."""
    (place / "my.toml").write_text(text)
    return parse_command(["fuse", *typed, "--config", str(place / "my.toml")], VERBS).words


def test_config_joins_file_and_words(place):
    words = words_of(place, 'method = "dense"\nset = {epochs = 3, lr = 0.10}', "a.attar")
    assert words == ("a.attar", "--method=dense", "--set=epochs=3", "--set=lr=0.10")
    files = words_of(place, 'files = ["a.attar"]\nmethod = "dense"', "--method", "feddf")
    assert files == ("a.attar", "--method", "feddf")
    typed = words_of(place, 'files = ["a.attar"]', "b.attar", "--method", "feddf")
    assert typed == ("b.attar", "--method", "feddf")
    listed = words_of(place, 'classes = ["a", "b"]\npublic_labels = true\ncompile = false')
    assert listed == ("--classes=a,b", "--public-labels")
    twice = words_of(place, 'exclude = ["ann"]', "x.attar", "--exclude", "bob", "--exclude=ann")
    assert twice == ("x.attar", "--exclude", "bob", "--exclude=ann")


WRONG = [
    ('methd = "dense"', "methd is no flag: did you mean method?"),
    ("resume = true", "resume belongs to one call: type --resume"),
    ('verb = "train"', "these are flags of `attar train`."),
    ("method = ", "is not a TOML file"),
    ('public-labels = "yes"', "expected true or false"),
    ('seed = "x"', "--seed x: expected a whole number."),
]


@pytest.mark.parametrize(("text", "told"), WRONG, ids=[text for text, _ in WRONG])
def test_config_refuses(place, text, told):
    (place / "my.toml").write_text(text)
    stderr = error_of("fuse", "--config", "my.toml", cwd=place)
    assert told in stderr
    assert "To fix it: " in stderr


def test_config_refuses_missing_file(place):
    assert "none.toml: there is no such file" in error_of(
        "fuse", "--config", "none.toml", cwd=place
    )
    assert "--config takes one file" in error_of("fuse", "--config", cwd=place)


@pytest.mark.parametrize("columns", ["40", "1000"])  # help for a wide window has two columns
@pytest.mark.parametrize("verb", ["train", "pack", "fuse", "federate", "bench"])
def test_flags_of_knows_what_repeats(verb, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    flags = {flag.key: flag for flag in flags_of(verb, VERBS[verb].load())}
    assert flags["json"].switch
    assert not flags["out"].switch
    assert {"fuse": "set", "bench": "only", "federate": "set"}.get(verb, "") in {
        "", *(flag.key for flag in flags.values() if flag.repeats)
    }  # fmt: skip
