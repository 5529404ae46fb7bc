"""Printing: tables, progress with time left, errors in one block, and ``--json`` for machines."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from attar.errors import AttarError

if TYPE_CHECKING:  # it loads torch
    from attar.running import ProgressReport, Watch

FOLDED = 24  # letters to which the widest column of a table may be folded
BETWEEN = 3  # between two columns of a table
PIPE_WIDTH = 120  # of output that is not a terminal: rich would cut tables at 80
QUIET_SECONDS = 1.0  # no progress is printed for what takes less
BEAT_SECONDS = 1.0  # between two looks whether a line is due
MOST_RISE = 1.1  # of the time left that is shown
LOG_SECONDS = 10.0  # between two lines of progress where there is no terminal
_QUIET = ContextVar("quiet", default=False)  # the flag --quiet


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    # Names come from other people and are shown as they are: [red] and :smile: mean nothing.
    return Console(
        stderr=stderr, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False
    )


def emit(record: Any, show: Callable[[], object], *, json: bool) -> None:
    """Print the outcome of a verb.

    Args:
        record: For machines: what JSON can hold.
        show: Prints the same for people.
        json: Whether to print the record.
    """
    if json:
        show_json(record)
    else:
        show()


def show_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Print a table.

    Args:
        title: Above it.
        columns: Their headings.
        rows: A value for each column; texts are shown without markup.
        right: The columns that are aligned on the right: those of numbers.
    """
    if not fits(columns, rows, folded=True):
        _show_blocks(title, columns, rows)
        return
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    _console().print(table)


def fits(columns: Sequence[str], rows: Sequence[Sequence[object]], *, folded: bool = False) -> bool:
    """Whether a table has room in the window.

    Args:
        columns: Their headings.
        rows: A value for each column.
        folded: Whether the widest column may be folded, down to ``FOLDED`` letters.
    """
    widths = [
        max(cell_len(str(cell)) for cell in (head, *cells))
        for head, *cells in zip(columns, *rows, strict=True)
    ]
    if folded and widths:
        widest = max(widths)
        widths[widths.index(widest)] = min(widest, FOLDED)
    return sum(widths) + BETWEEN * len(widths) <= _console().width


def _show_blocks(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table for a window that is too narrow: a block for each row, a line for each cell."""
    console = _console()
    console.print(Text(title, style="bold"))
    for first, *rest in rows:
        console.print(Text(f"{first}", style="bold"))
        for column, cell in zip(columns[1:], rest, strict=True):
            if str(cell):
                console.print(f"  {column}: {cell}" if column else f"  {cell}")


def show_pairs(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names in bold, each with its value."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        pad_edge=False,
    )
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    _console().print(table)


def say(text: str = "") -> None:
    """Print a line on standard output."""
    _console().print(text)


def note(text: str) -> None:
    """Print a line about work under way, on standard error."""
    _console(stderr=True).print(text)


def show_command(text: str) -> None:
    """Print a command line to copy: never wrapped."""
    sys.stdout.write(f"\n    {text}\n")


def show_error(error: AttarError) -> None:
    """Print what is wrong, where, and how to fix it, in one block on standard error."""
    body = Text(error.what)
    for problem in error.problems:
        body.append(f"\n  - {problem}")
    if error.fix:
        body.append("\n\nTo fix it: ", style="bold")
        body.append(error.fix)
    console = _console(stderr=True)
    console.print(
        Panel(
            body,
            title=error.title,
            title_align="left",
            border_style="red",
        )
    )


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Show no progress while the context is open, if ``quiet``."""
    token = _QUIET.set(quiet)
    try:
        yield
    finally:
        _QUIET.reset(token)


def shows_progress(*, quiet: bool = False) -> bool:
    """Whether ``progress(quiet=quiet)`` would show anything."""
    return not (quiet or _QUIET.get())


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Watch]:
    """Show the progress of a run while the context is open.

    On a terminal that is a bar with the time left, elsewhere a line every ``LOG_SECONDS``.

    Args:
        what: What is running.
        quiet: Whether to show nothing.

    Yields:
        A watcher, to be called with each ``ProgressReport``.
    """
    console = _console(stderr=True)
    if quiet or _QUIET.get():
        yield lambda report: None
    elif console.is_terminal:
        with _bar(console) as bar:
            left = TimeLeft()
            task = bar.add_task(what, total=1.0, note=left.words(None))

            def draw(report: ProgressReport) -> None:
                bar.update(task, completed=report.done, note=_note(report, left))

            yield draw
    else:
        with _plain_lines(console, what) as watch:
            yield watch


@contextmanager
def fetching(*, quiet: bool = False) -> Iterator[Any]:
    """Show the progress of fetching and decoding data while the context is open.

    Yields:
        ``progress(what, done, total)`` for data sources; None where nothing is shown.
    """
    console = _console(stderr=True)
    if quiet or _QUIET.get() or not console.is_terminal:
        yield None
        return
    with _bar(console) as bar:
        tasks: dict[str, Any] = {}

        def draw(what: str, done: int, total: int) -> None:
            task = tasks.setdefault(what, None) or bar.add_task(what, total=1.0, note="")
            tasks[what] = task
            bar.update(task, completed=done / total if total else 0.0)

        yield draw


def _bar(console: Console) -> Progress:
    what, note = (
        TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}")
    )
    columns = (what, BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), note)
    return Progress(*columns, console=console, transient=True)


class TimeLeft:
    """The time left in words, which never rise by more than a tenth.

    Where the run turns out to be longer than that, the words are a bound: ``more than 7 min left``.
    """

    def __init__(self) -> None:
        self._most = math.inf

    def words(self, seconds: float | None) -> str:
        """An estimate in words."""
        if seconds is None:
            return "measuring…"
        shown = min(seconds, self._most)
        self._most = min(self._most, MOST_RISE * shown)
        more = "more than " if seconds > shown else ""
        return f"{more}{human_seconds(shown)} left"


def _note(report: ProgressReport, left: TimeLeft) -> str:
    metrics = " ".join(f"{name} {value:.4g}" for name, value in report.metrics.items())
    words = left.words(report.seconds_left)
    return f"{report.phase} {report.step}/{report.steps}  {words}  {metrics}".rstrip()


@contextmanager
def _plain_lines(console: Console, what: str) -> Iterator[Watch]:
    """A watcher that prints lines for logs: after ``QUIET_SECONDS`` the first, then one every
    ``LOG_SECONDS``, also during a long step, and one at the end.
    """
    begun = time.monotonic()
    left = TimeLeft()
    line = f"{what}: 0%  {left.words(None)}"
    last: float | None = None  # when the last line was printed
    ended = threading.Event()
    one_by_one = threading.Lock()

    def log(report: ProgressReport) -> None:
        nonlocal last, line
        line = f"{what}: {100 * report.done:.0f}%  {_note(report, left)}"
        if last is not None and report.done >= 1:
            last = time.monotonic()
            console.print(line)
        else:
            print_if_due()

    def print_if_due() -> None:
        nonlocal last
        with one_by_one:
            now = time.monotonic()
            due = now - begun > QUIET_SECONDS if last is None else now - last > LOG_SECONDS
            if due:
                last = now
                console.print(line)

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            print_if_due()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield log
    finally:
        ended.set()
        thread.join()


def human_seconds(seconds: float) -> str:
    """A duration as text: ``8.3 s``, ``75 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
