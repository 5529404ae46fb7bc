"""The corpus of hostile files: each is refused in bounded time and memory, with a message that a
person can read.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hostile

FUZZ = Path(__file__).parents[1] / "fuzz"
SECONDS = 5
MEMORY = (
    300 * 2**20
)  # a header of 16 MiB may hold a million values of a hundred bytes, and is there twice
LETTERS = 4000


@pytest.fixture(scope="module")
def read():
    done = subprocess.run(
        [sys.executable, FUZZ / "corpus.py"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_decode_refuses_every_hostile_file(read):
    assert len(read) > 150
    assert [name for name, found in read.items() if found["told"] is None] == []
    wrong = {
        name: found["told"][:300]
        for name, found in read.items()
        if found["words"] not in found["told"]
    }
    assert wrong == {}


def test_decode_in_bounded_time_and_memory(read):
    assert {
        name: found["seconds"] for name, found in read.items() if found["seconds"] > SECONDS
    } == {}
    assert {name: found["grew"] for name, found in read.items() if found["grew"] > MEMORY} == {}


def test_decode_messages_are_short_and_printable(read):
    assert {
        name: len(found["told"]) for name, found in read.items() if len(found["told"]) > LETTERS
    } == {}
    for name, found in read.items():
        assert all(letter.isprintable() or letter == "\n" for letter in found["told"]), name


def test_bundle_fuzz_finds_nothing():
    done = subprocess.run(
        [
            sys.executable,
            FUZZ / "bundle_fuzz.py",
            "--minutes",
            "0.05",
            "--engine",
            "hypothesis",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["files"] > 20
    assert found["refused"] + found["read"] == found["files"]
    assert found["read"] > 0, (
        "some mutations keep a file good; a fuzzer that never gets there is stuck at the door"
    )
