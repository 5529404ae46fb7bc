"""A queue as a table: the state of each entry, what comes next, and how long the rest takes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attar.bench import BenchResult, Carried, QueuePlan, Work
from attar.cli.output import console
from attar.cli.output.console import human_seconds
from attar.internal.text import human_bytes

NEXT = 3  # cells that are named as the next ones
LEFT = ("part done", "not run", "failed")
STATES = ("recorded", "ran", "part done", "failed", "not run", "missing")


@dataclass(frozen=True)
class QueueTable:
    """A queue before or after a piece of machine time.

    Attributes:
        plan: The queue and what is there of it.
        entries: The cells of each entry as they are now.
        result: What the piece did, or would do.
        simulated: Whether nothing was run.
        carried: What was packed for the next piece; None: nothing was to be.
    """

    plan: QueuePlan
    entries: Sequence[Sequence[Work]]
    result: BenchResult
    simulated: bool = False
    carried: Carried | None = None

    @cached_property
    def left(self) -> list[Work]:
        """Cells that are to run, each once, in the order of the queue."""
        cells: dict[str, Work] = {}
        for works in self.entries:
            for work in works:
                if work.state in LEFT:
                    cells.setdefault(work.cell.key, work)
        return list(cells.values())

    @cached_property
    def missing(self) -> list[str]:
        """What cells without record need and is not here, in words."""
        works = [work for works in self.entries for work in works if work.state == "missing"]
        return sorted({reason for work in works for reason in work.cell.missing})

    @cached_property
    def next_cells(self) -> list[Work]:
        """The cells with which the next piece begins; without a run those of this one."""
        return self.left[:NEXT]

    @cached_property
    def left_seconds(self) -> float:
        """How long what is left takes with these lanes."""
        return self.plan.left_seconds(self.entries)

    @cached_property
    def in_piece(self) -> dict[str, str]:
        """What a piece of which nothing was run yet would do with cells, by key."""
        whole = dict.fromkeys((cell.key for cell in self.result.done), "would end")
        return whole | dict.fromkeys(self.result.part, "would begin")

    @cached_property
    def folders(self) -> dict[str, int]:
        """The bytes of each folder that the next piece needs."""
        names = ("records", "clients", "runs", "measured")
        return {name: _size(self.plan.out / name) for name in names}

    def as_record(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "queue": str(self.plan.queue.path),
            "out": str(self.plan.out),
            "lanes": self.plan.lanes,
            "entries": [
                {
                    "entry": entry.title,
                    "why": entry.why,
                    "cells": [self._cell_record(work) for work in works],
                }
                for entry, works in zip(self.plan.queue.entries, self.entries, strict=True)
            ],
            "run": 0 if self.simulated else len(self.result.done),
            "client_sets_trained": 0 if self.simulated else self.result.trained,
            "failed": self.result.failed,
            "missing": self.missing,
            "left": len(self.left),
            "left_seconds": round(self.left_seconds, 1),
            "next": [_name(work) for work in self.next_cells],
            "seconds": 0.0 if self.simulated else round(self.result.seconds, 1),
            "bytes": self.folders,
            "carried": None if self.carried is None else asdict(self.carried),
        }

    def _cell_record(self, work: Work) -> dict[str, Any]:
        record: dict[str, Any] = {
            "cell": work.cell.title,
            "key": work.cell.key,
            "state": work.state,
            "missing": list(work.cell.missing),
            "expected_seconds": round(work.seconds, 1),
            "used_seconds": round(work.used, 1),
        }
        if self.simulated:
            record["in_this_piece"] = self.in_piece.get(work.cell.key, "")
        return record

    def show(self) -> None:
        """The table, and what is left."""
        columns = ("", "entry", "state", *(["this piece"] if self.simulated else []))
        rows = []
        for number, (entry, works) in enumerate(
            zip(self.plan.queue.entries, self.entries, strict=True), 1
        ):
            states = _count(work.state for work in works)
            piece = [_count(self.in_piece.get(work.cell.key, "") for work in works)]
            expected = sum(work.seconds for work in works)
            used = sum(work.used for work in works)
            times = [human_seconds(value) if value else "" for value in (expected, used)]
            middle = piece if self.simulated else []
            rows.append((number, entry.title, states, *middle, *times))
        console.show_table(
            f"{self.plan.queue.path}", (*columns, "expected", "used"), rows,
            right=("expected", "used"),
        )  # fmt: skip
        self._show_left()

    def _show_left(self) -> None:
        if not self.simulated:
            result = self.result
            console.say(
                f"{len(result.done)} cells run and {result.trained} sets of clients trained in "
                f"{human_seconds(result.seconds)}, {len(result.failed)} failed."
            )
        if self.missing:
            console.say(f"Missing here: {', '.join(self.missing)}.")
        if not self.left:
            console.say("Nothing is left of the queue that could run here.")
            return
        console.say("Next:" if not self.simulated else "First:")
        for work in self.next_cells:
            console.say(f"  {_name(work)}: {human_seconds(work.seconds)}")
        lanes = self.plan.lanes
        console.say(
            f"{len(self.left)} cells are left: {human_seconds(self.left_seconds)} with "
            f"{lanes} lane{'' if lanes == 1 else 's'}."
        )
        self._show_folders()

    def _show_folders(self) -> None:
        sizes = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.folders.items())
        console.say(f"{self.plan.out} is what the next piece needs ({sizes}).")
        if self.carried is not None:
            console.say(f"Packed for the next piece: {human_bytes(self.carried.bytes)}.")
            if self.carried.left_out:
                console.say(f"Too large for it: {', '.join(self.carried.left_out)}.")


def _name(work: Work) -> str:
    return f"{work.cell.recipe}: {work.cell.title}"


def _count(words: Iterable[str]) -> str:
    """``1 recorded, 3 not run``; empty words do not count."""
    counts = Counter(word for word in words if word)
    known = [*STATES, "would end", "would begin"]
    return ", ".join(f"{counts[word]} {word}" for word in known if counts[word])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
