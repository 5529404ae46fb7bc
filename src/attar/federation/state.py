"""The state of a federation, in memory and as a run folder.

run.json, record.json, the model     as of every run (running/folder.py)
checkpoint.safetensors               the state between two steps: the round, who has answered, the
                                     records so far; it names the files below
rounds/server-*.attar                what the server has sent in this round and keeps for the next
rounds/upload-*.attar                what has arrived in this round
rounds/inside.safetensors            an unfinished training or fusion
home/CLIENT-*.attar                  client state, kept between rounds: a deployed model, a control
                                     variate, a decoder; home/CLIENT.attar in the end

Every file is written once, under a name that has its round. The checkpoint is written last, and
files that it does not name are deleted.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attar.core import Part, State, Upload
from attar.internal.files import write_atomic
from attar.running import RunFolder, read_notes, remove_checkpoint, restore_state, save_state
from attar.uploads import encode, read_bundle


@dataclass
class FederationState:
    """Everything that changes from round to round.

    Attributes:
        round: The round that is under way, from 1.
        start_models: What the clients of each architecture start from.
        memory: What the method keeps from round to round and sends along.
        model: The last fused model, where it is a single net.
        client_state: What each client keeps between rounds.
        client_rounds: The round in which each client's state was last changed.
        uploads: What has arrived in this round.
        bytes_up: Their sizes as files.
        failed: Clients that failed in this round, and why.
        trained_alone: Groups of clients that failed together in this round, and why: their
            clients train one by one.
        losses: The last training loss of each client in this round.
        records: Of the rounds that are finished.
        elapsed: Seconds of the run up to the last checkpoint.
    """

    round: int = 1
    start_models: list[Part] = field(default_factory=list)
    memory: dict[str, Part] = field(default_factory=dict)
    model: Part | None = None
    client_state: dict[str, dict[str, Part]] = field(default_factory=dict)
    client_rounds: dict[str, int] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    trained_alone: dict[str, str] = field(default_factory=dict)
    losses: dict[str, float | None] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    elapsed: float = 0.0

    def update_client_state(self, client: str, parts: Mapping[str, Part]) -> None:
        """Keep what a client has after this round."""
        self.client_state[client] = dict(parts)
        self.client_rounds[client] = self.round

    def begin_next_round(self) -> None:
        """Count the round and forget what belongs to it alone."""
        self.round += 1
        for of_round in (
            self.uploads,
            self.bytes_up,
            self.failed,
            self.losses,
            self.trained_alone,
        ):
            of_round.clear()


# Key in the checkpoint (which keeps the names of attar 0.1) -> field, of all that is plain JSON.
JSON_FIELDS = {
    "round": "round",
    "home_rounds": "client_rounds",
    "bytes_up": "bytes_up",
    "failed": "failed",
    "alone": "trained_alone",
    "losses": "losses",
    "records": "records",
    "elapsed": "elapsed",
}


class FederationFolder:
    """The folder of a federation."""

    def __init__(self, path: Path) -> None:
        self.run_folder = RunFolder(path)
        self.saved_at = time.monotonic()
        self._rounds = path / "rounds"
        self._clients = path / "home"
        self._unfinished = self._rounds / "inside.safetensors"

    def begin(self, description: Mapping[str, Any], *, resume: bool) -> FederationState:
        """Start a federation here, or read the state of the same one.

        Raises:
            RunError: The folder holds something else; see ``RunFolder.begin``.
        """
        notes = self.run_folder.begin(description, State(), resume=resume)
        state = FederationState()
        if not notes:
            return state
        for key, name in JSON_FIELDS.items():
            setattr(state, name, notes[key])
        state.start_models = [self._read_part(name) for name in notes["offers"]]
        state.memory = {key: self._read_part(name) for key, name in notes["memory"].items()}
        state.model = None if notes["model"] is None else self._read_part(notes["model"])
        state.client_state = {
            client: dict(read_bundle(self._clients / name).parts)
            for client, name in notes["homes"].items()
        }
        state.uploads = {
            client: read_bundle(self._rounds / name) for client, name in notes["uploads"].items()
        }
        return state

    def save(self, state: FederationState) -> None:
        """Write the files that are new, then the checkpoint, and delete files that it no longer
        names.
        """
        number = f"{state.round:05d}"
        parts = {
            f"server-{number}-offer{place}.attar": part
            for place, part in enumerate(state.start_models)
        }
        start_models = list(parts)
        memory = {key: f"server-{number}-{key}.attar" for key in state.memory}
        parts |= {memory[key]: part for key, part in state.memory.items()}
        model = None
        if state.model is not None:
            model = f"server-{number}-model.attar"
            parts[model] = state.model
        clients = {
            client: f"{client}-{state.client_rounds[client]:05d}.attar"
            for client in state.client_state
        }
        uploads = {client: f"upload-{number}-{client}.attar" for client in state.uploads}
        for name, part in parts.items():
            upload = Upload("server", {"model": part}, 1, round=state.round)
            _write_new(self._rounds / name, upload)
        for client, name in clients.items():
            _write_new(self._clients / name, _client_bundle(state, client))
        for client, name in uploads.items():
            _write_new(self._rounds / name, state.uploads[client])
        notes = {
            **{key: getattr(state, name) for key, name in JSON_FIELDS.items()},
            "offers": start_models,
            "memory": memory,
            "model": model,
            "homes": clients,
            "uploads": uploads,
        }
        self.run_folder.save(State(), notes)
        self._delete_others({*parts, *uploads.values()}, set(clients.values()))
        self.saved_at = time.monotonic()

    def save_unfinished(self, state: FederationState, stage: str, inner: State) -> None:
        """Save a training or a fusion that is under way, with the state that it belongs to."""
        self.save(state)
        save_state(self._unfinished, inner, {"round": state.round, "stage": stage})

    def restore_unfinished(
        self, state: FederationState, stage: str, inner: State, device: str
    ) -> None:
        """Restore a training or a fusion that was under way into its fresh state; do nothing
        where what was saved is of another stage.
        """
        wanted = {"round": state.round, "stage": stage}
        if self._unfinished.exists() and read_notes(self._unfinished) == wanted:
            restore_state(self._unfinished, inner, device)

    def finish(self, state: FederationState) -> None:
        """Keep the clients' state alone, each under the client's name."""
        for client in state.client_state:
            write_atomic(self._clients / f"{client}.attar", encode(_client_bundle(state, client)))
        self._delete_others(set(), {f"{client}.attar" for client in state.client_state})
        remove_checkpoint(self._unfinished)
        if self._rounds.exists():
            self._rounds.rmdir()

    def _delete_others(self, rounds: set[str], clients: set[str]) -> None:
        """Delete all bundles but those of these names."""
        for folder, names in ((self._rounds, rounds), (self._clients, clients)):
            for file in folder.glob("*.attar"):
                if file.name not in names:
                    file.unlink()

    def _read_part(self, name: str) -> Part:
        return read_bundle(self._rounds / name).parts["model"]


def _client_bundle(state: FederationState, client: str) -> Upload:
    parts = state.client_state[client]
    return Upload(client, parts, 1, round=state.client_rounds[client])


def _write_new(path: Path, upload: Upload) -> None:
    if not path.exists():
        write_atomic(path, encode(upload))
