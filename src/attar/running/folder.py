"""A run folder on disk: what was asked, where it stands, what came out.

run.json                 what decides the outcome; a run is resumed only when it is the same
checkpoint.safetensors   where it stands; goes when the run is finished
config.json, model.safetensors, README.md        the headline model (see models.py)
<name>/                  a model folder for each further model of the result
arrays.safetensors       weights, matrices and sample images of the result, where there are any
<name>.svg, <name>.png   tables of clients and classes as heat maps, sample images as a sheet (report/gallery.py)
record.json              the run as it went: settings, steps, seconds, metrics
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save

from attar.core import Deployable, Result, State
from attar.errors import RunError
from attar.internal.files import remove_partial, write_atomic
from attar.models import Picture, list_pictures, model_card, save_model
from attar.running.checkpoint import remove_checkpoint, restore_state, save_state

Card = Callable[[str, Deployable, Mapping[str, Any], Sequence[Picture]], str]


class RunFolder:
    """One run in one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run = path / "run.json"
        self._checkpoint = path / "checkpoint.safetensors"
        self._record = path / "record.json"

    @property
    def finished(self) -> bool:
        return self._record.exists() and not self._checkpoint.exists()

    def begin(
        self, wanted: Mapping[str, Any], state: State, *, resume: bool, device: str = "cpu"
    ) -> dict[str, Any]:
        """Start the run, or put the checkpoint of the same run back into ``state``; returns the
        checkpoint's notes.
        """
        asked = json.loads(json.dumps(wanted))
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file.", fix="name a folder with --out")
        if resume and self._run.exists():
            self._check_same(asked)
            remove_partial(self.path)
            if self._checkpoint.exists():
                return restore_state(self._checkpoint, state, device)
            if self._record.exists():
                raise RunError(f"The run in {self.path} is finished: there is nothing to resume.")
        elif self._checkpoint.exists() or (self._run.exists() and not self._record.exists()):
            raise RunError(
                f"{self.path} holds an unfinished run.",
                fix="go on with it by --resume, or name another --out folder, or delete this one",
            )
        elif self._run.exists() or (self.path / "config.json").exists():
            raise RunError(
                f"{self.path} holds a finished run.",
                fix="name another --out folder, or delete this one",
            )
        elif (self.path / "README.md").exists():
            raise RunError(
                f"{self.path} has a README.md that the run would overwrite.",
                fix="name another --out folder",
            )
        write_atomic(self._run, json.dumps(asked, indent=2) + "\n")
        return {}

    def save(self, state: State, notes: dict[str, Any]) -> None:
        save_state(self._checkpoint, state, notes)

    def finish(self, result: Result, record: Mapping[str, Any], card: Card = model_card) -> None:
        """Write the models and the record; a finished run needs its checkpoint no more."""
        pictures = list_pictures(result, record)
        for place, (name, model) in enumerate(result.models.items()):
            folder, beside = (self.path, pictures) if place == 0 else (self.path / name, ())
            save_model(folder, model, card=card(name, model, record, beside))
        tensors = {f"arrays/{name}": tensor for name, tensor in result.arrays.items()}
        tensors |= {f"images/{name}": tensor for name, tensor in result.images.items()}
        if tensors:
            packed = {
                name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
            }
            write_atomic(self.path / "arrays.safetensors", save(packed))
        for picture in pictures:
            write_atomic(self.path / picture.file, picture.draw())
        write_atomic(self._record, json.dumps(record, indent=2) + "\n")
        if record["ending"] == "finished":
            remove_checkpoint(self._checkpoint)

    def _check_same(self, asked: dict[str, Any]) -> None:
        try:
            before = json.loads(self._run.read_text())
            if not isinstance(before, dict):
                raise ValueError("it is not a JSON object")
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self._run} cannot be read ({error}).", fix="name another --out folder"
            ) from None
        if before == asked:
            return
        raise RunError(
            f"The run in {self.path} was started otherwise:",
            problems=_differences("", before, asked),
            fix="repeat the first command with --resume, or name another --out folder",
        )


def _differences(where: str, before: Any, now: Any) -> list[str]:
    """What differs, each by its full name: ``settings.lr``, ``clients.bank-3.sha256``."""
    if before == now:
        return []
    old, new = _by_name(before), _by_name(now)
    inside = [
        line
        for key in dict.fromkeys([*old, *new])
        for line in _differences(f"{where}.{key}".lstrip("."), old.get(key), new.get(key))
    ]
    return inside or [f"{where}: was {_brief(before)}, now {_brief(now)}"]


def _by_name(value: Any) -> dict[str, Any]:
    """The entries of a dict, or of a list of clients; nothing of anything else."""
    if isinstance(value, list) and all(
        isinstance(item, dict) and "client" in item for item in value
    ):
        return {item["client"]: item for item in value}
    return value if isinstance(value, dict) else {}


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
