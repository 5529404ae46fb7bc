"""What people see while they wait: the first words, the time left, and nothing with --quiet."""

import time

import pytest

from attar.cli.output import console
from attar.cli.output.console import TimeLeft
from attar.running import ProgressReport


def report(done, left, step=1):
    return ProgressReport("distil", step, 10, done, left, {})


def test_time_left_never_rises_by_more_than_a_tenth():
    """The estimates that fedmho once showed, in minutes."""
    left = TimeLeft()
    words = [left.words(60 * minutes) for minutes in (7, 23, 31, 36, 38, 40, 42)]
    assert words[0] == "7 min left"
    assert words[1:] == ["more than 8 min left"] * 6  # 7 min and a tenth, rounded
    assert left.words(100) == "2 min left"
    assert left.words(112) == "more than 2 min left"


def test_time_left_says_when_it_does_not_know():
    left = TimeLeft()
    assert left.words(None) == "measuring…"
    assert left.words(30) == "30 s left"
    assert left.words(31) == "31 s left"  # within a tenth it may rise
    assert left.words(40) == "more than 33 s left"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(console, "LOG_SECONDS", 0.02)
    monkeypatch.setattr(console, "BEAT_SECONDS", 0.005)


@pytest.fixture
def lines(monkeypatch):
    """The lines that are printed on standard error, in whatever thread."""
    printed = []

    class Printer:
        is_terminal = False

        def print(self, line):
            printed.append(line)

    monkeypatch.setattr(console, "_console", lambda *, stderr=False: Printer())
    return printed


def wait_for(lines, line, times=1):
    """Wait until a line was printed so often."""
    for _ in range(1000):
        if lines.count(line) >= times:
            return
        time.sleep(0.01)
    raise AssertionError(lines)


def test_progress_speaks_before_the_first_step(impatient, lines):
    with console.progress("fuse 3 uploads by dense") as watch:
        wait_for(lines, "fuse 3 uploads by dense: 0%  measuring…")
        watch(report(0.1, 75))
        # during a long step, too
        wait_for(lines, "fuse 3 uploads by dense: 10%  distil 1/10  75 s left", times=2)
        watch(report(1.0, 0, 10))
    assert lines[-1] == "fuse 3 uploads by dense: 100%  distil 10/10  0.0 s left"


def test_progress_quietly(impatient, capsys):
    with console.quietly(True):
        assert not console.shows_progress()
        with console.progress("train") as watch:
            watch(report(0.5, 9))
            watch(report(1.0, 0, 10))
    assert capsys.readouterr().err == ""
    assert console.shows_progress()
    assert not console.shows_progress(quiet=True)
