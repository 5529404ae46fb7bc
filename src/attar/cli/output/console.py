"""What people see: tables, progress with time left, errors in one block. Machines read
``--json`` on standard output.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from attar.errors import AttarError
from attar.running import ProgressReport, Watch

PIPE_WIDTH = 120  # a pipe has no width of its own: tables shall not be cut at 80
QUIET_SECONDS = 2.0
LOG_SECONDS = 10.0


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    # Names come from other people: what stands in them is shown as it is, neither [red] nor :smile:
    # mean anything.
    return Console(
        stderr=stderr, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False
    )


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
    """A table; the columns named in ``right`` hold numbers."""
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


def show_pairs(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Names and what they stand for."""
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
    """A line for people, on standard output."""
    _console().print(text)


def note(text: str) -> None:
    """A line about work under way, on standard error."""
    _console(stderr=True).print(text)


def show_command(text: str) -> None:
    """A command line to copy: never wrapped."""
    sys.stdout.write(f"\n    {text}\n")


def show_error(error: AttarError) -> None:
    """What, where and how to fix it, in one block on standard error."""
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
            title="stopped" if error.exit_status == 130 else "error",
            title_align="left",
            border_style="red",
        )
    )


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Watch]:
    """A watcher that draws one line with the time left; on a pipe it writes a plain line now and
    then.
    """
    console = _console(stderr=True)
    if quiet:
        yield lambda moment: None
    elif console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(what, total=1.0, note="")

            def draw(moment: ProgressReport) -> None:
                bar.update(task, completed=moment.done, note=_note(moment))

            yield draw
    else:
        yield _plain_lines(console, what)


@contextmanager
def fetching(*, quiet: bool = False) -> Iterator[Any]:
    """A ``progress(what, done, total)`` for data sources: fetching and decoding."""
    console = _console(stderr=True)
    if quiet or not console.is_terminal:
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


def _note(moment: ProgressReport) -> str:
    metrics = " ".join(f"{name} {value:.4g}" for name, value in moment.metrics.items())
    left = "" if moment.seconds_left is None else f"{human_seconds(moment.seconds_left)} left"
    return f"{moment.phase} {moment.step}/{moment.steps}  {left}  {metrics}".rstrip()


def _plain_lines(console: Console, what: str) -> Watch:
    """For logs: nothing of what takes less than two seconds, then a line every ten seconds, and
    the last word.
    """
    begun = time.monotonic()
    told: float | None = None

    def tell(moment: ProgressReport) -> None:
        nonlocal told
        now = time.monotonic()
        due = (
            now - begun > QUIET_SECONDS
            if told is None
            else now - told > LOG_SECONDS or moment.done >= 1
        )
        if due:
            told = now
            console.print(f"{what}: {100 * moment.done:.0f}%  {_note(moment)}")

    return tell


def human_seconds(seconds: float) -> str:
    """75 -> '1 min 15 s'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
