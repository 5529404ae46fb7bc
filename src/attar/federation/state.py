"""Where a federation stands, in memory and as a run folder.

run.json, record.json, the model     as of every run (runs.py)
checkpoint.safetensors               the ledger: which round, who has answered, the records so far; it names the files below
rounds/server-*.attar                what the server has sent in this round and keeps for the next
rounds/upload-*.attar                what has arrived in this round
rounds/inside.safetensors            a stack of clients or a fusion under way
home/CLIENT-*.attar                  what stays at a client between rounds: its deployed model, its control variate, its decoder;
                                     home/CLIENT.attar when the federation is finished

Every file is written once, under a name that has its round; the ledger comes last, and files
that it does not name are deleted.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attar.core import Part, State, Upload
from attar.internal.files import write_atomic
from attar.running import RunFolder, notes_of, remove_checkpoint, restore_state, save_state
from attar.uploads import encode, read_bundle


@dataclass
class Standing:
    """Everything that changes from round to round."""

    round: int = 1  # the one under way
    offers: list[Part] = field(
        default_factory=list
    )  # the model, in every architecture that clients start from
    memory: dict[str, Part] = field(default_factory=dict)  # what the method keeps and sends along
    model: Part | None = None  # the last fused one, where it is a single net
    homes: dict[str, dict[str, Part]] = field(default_factory=dict)
    home_rounds: dict[str, int] = field(default_factory=dict)  # when each home was last changed
    uploads: dict[str, Upload] = field(default_factory=dict)  # of this round
    bytes_up: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    alone: dict[str, str] = field(
        default_factory=dict
    )  # crews that failed as a whole, and why: their clients train one by one
    losses: dict[str, float | None] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    elapsed: float = 0.0

    def take_home(self, client: str, parts: Mapping[str, Part]) -> None:
        self.homes[client] = dict(parts)
        self.home_rounds[client] = self.round

    def next_round(self) -> None:
        self.round += 1
        for passing in (self.uploads, self.bytes_up, self.failed, self.losses, self.alone):
            passing.clear()


PLAIN = ("round", "home_rounds", "bytes_up", "failed", "alone", "losses", "records", "elapsed")


class Ledger:
    """A federation on disk."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._rounds, self._home = path / "rounds", path / "home"
        self._inside = self._rounds / "inside.safetensors"
        self.saved_at = time.monotonic()

    def begin(self, wanted: Mapping[str, Any], *, resume: bool) -> Standing:
        """A new federation, or the one in this folder as it was saved."""
        notes = self.folder.begin(wanted, State(), resume=resume)
        standing = Standing()
        if not notes:
            return standing
        for name in PLAIN:
            setattr(standing, name, notes[name])
        standing.offers = [self._part(name) for name in notes["offers"]]
        standing.memory = {key: self._part(name) for key, name in notes["memory"].items()}
        standing.model = None if notes["model"] is None else self._part(notes["model"])
        standing.homes = {
            client: dict(self._read(self._home / name).parts)
            for client, name in notes["homes"].items()
        }
        standing.uploads = {
            client: self._read(self._rounds / name) for client, name in notes["uploads"].items()
        }
        return standing

    def save(self, standing: Standing) -> None:
        """Write what is new, then the ledger, then forget what it no longer names."""
        number = f"{standing.round:05d}"
        notes: dict[str, Any] = {name: getattr(standing, name) for name in PLAIN}
        offers = {
            f"server-{number}-offer{place}.attar": part
            for place, part in enumerate(standing.offers)
        }
        memory = {key: f"server-{number}-{key}.attar" for key in standing.memory}
        model = None if standing.model is None else f"server-{number}-model.attar"
        notes |= {"offers": list(offers), "memory": memory, "model": model}
        notes["homes"] = {
            client: f"{client}-{standing.home_rounds[client]:05d}.attar"
            for client in standing.homes
        }
        notes["uploads"] = {
            client: f"upload-{number}-{client}.attar" for client in standing.uploads
        }
        parts = {**offers, **{memory[key]: part for key, part in standing.memory.items()}}
        if model is not None and standing.model is not None:
            parts[model] = standing.model
        for name, part in parts.items():
            _write_new(
                self._rounds / name, Upload("server", {"model": part}, 1, round=standing.round)
            )
        for client, home in standing.homes.items():
            _write_new(
                self._home / notes["homes"][client],
                Upload(client, home, 1, round=standing.home_rounds[client]),
            )
        for client, upload in standing.uploads.items():
            _write_new(self._rounds / notes["uploads"][client], upload)
        self.folder.save(State(), notes)
        self._forget({*parts, *notes["uploads"].values()}, set(notes["homes"].values()))
        self.saved_at = time.monotonic()

    def save_inside(self, standing: Standing, stage: str, state: State) -> None:
        """A stage that is under way, beside the ledger that it belongs to."""
        self.save(standing)
        save_state(self._inside, state, {"round": standing.round, "stage": stage})

    def restore_inside(self, standing: Standing, stage: str, state: State, device: str) -> None:
        """Put a stage that was under way back into its fresh state; nothing, where what is there
        is another one's.
        """
        if self._inside.exists() and notes_of(self._inside) == {
            "round": standing.round,
            "stage": stage,
        }:
            restore_state(self._inside, state, device)

    def finish(self, standing: Standing) -> None:
        """Only what stays at the clients' homes stays, under their names."""
        for client, home in standing.homes.items():
            write_atomic(
                self._home / f"{client}.attar",
                encode(Upload(client, home, 1, round=standing.home_rounds[client])),
            )
        self._forget(set(), {f"{client}.attar" for client in standing.homes})
        remove_checkpoint(self._inside)
        if self._rounds.exists():
            self._rounds.rmdir()

    def _forget(self, rounds: set[str], homes: set[str]) -> None:
        for place, named in ((self._rounds, rounds), (self._home, homes)):
            for file in place.glob("*.attar"):
                if file.name not in named:
                    file.unlink()

    def _read(self, path: Path) -> Upload:
        return read_bundle(path)

    def _part(self, name: str) -> Part:
        return self._read(self._rounds / name).parts["model"]


def _write_new(path: Path, upload: Upload) -> None:
    if not path.exists():
        write_atomic(path, encode(upload))
