"""The folder of a run: its description, its checkpoint, its models and its record.

run.json                 everything that decides the outcome; only the same run is resumed
checkpoint.safetensors   the state of an unfinished run; deleted when it is finished
config.json, model.safetensors, README.md        the headline model (models/folder.py)
<name>/                  a model folder for each further model of the result
arrays.safetensors       weights, matrices and sample images of the result, where there are any
<name>.svg, <name>.png   tables as heat maps, sample images as a sheet (models/gallery.py)
sums.attar               sums of the clients' features, where the model was made from such
record.json              the run as it went: settings, steps, seconds, metrics
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save

from attar.core import Deployable, KeptSums, Result, State, Upload
from attar.errors import RunError
from attar.internal.files import remove_partial, write_atomic
from attar.models import Picture, list_pictures, model_card, save_model
from attar.running.checkpoint import remove_checkpoint, restore_state, save_state
from attar.uploads import encode, read_digest

Card = Callable[[str, Deployable, Mapping[str, Any], Sequence[Picture]], str]


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run = path / "run.json"
        self._checkpoint = path / "checkpoint.safetensors"
        self._record = path / "record.json"

    @property
    def finished(self) -> bool:
        """Whether the run in this folder has come to its end."""
        return self._record.exists() and not self._checkpoint.exists()

    def begin(
        self, description: Mapping[str, Any], state: State, *, resume: bool, device: str = "cpu"
    ) -> dict[str, Any]:
        """Start a run here, or restore the checkpoint of the same run into ``state``.

        Args:
            description: Everything that decides the outcome, as JSON.
            state: As ``start`` returned it.
            resume: Continue the run that is here; start one where there is none.
            device: For restored tensors.

        Returns:
            The notes of the checkpoint; empty where a run starts.

        Raises:
            RunError: The folder holds another run, an unfinished run without ``resume``, a
                finished run, or files of somebody else.
        """
        asked = json.loads(json.dumps(description))
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
        """Write the checkpoint, with JSON ``notes`` beside the state."""
        save_state(self._checkpoint, state, notes)

    def finish(
        self,
        result: Result,
        record: Mapping[str, Any],
        card: Card = model_card,
        *,
        for_people: bool = True,
    ) -> None:
        """Write the models and the record, and delete the checkpoint of a finished run.

        Args:
            result: Its first model goes into this folder, each further one into one below.
            record: The run as it went.
            card: Makes the text of a model's README.md.
            for_people: Write model cards and pictures, too.
        """
        pictures = list_pictures(result, record) if for_people else []
        sums = [
            {**described, "sha256": self._write_sums(kept, described["file"])}
            for kept, described in zip(result.sums, record.get("sums", ()), strict=True)
        ]
        for place, (name, model) in enumerate(result.models.items()):
            folder = self.path if place == 0 else self.path / name
            beside = pictures if place == 0 else ()
            text = card(name, model, record, beside) if for_people else None
            config = {"sums": sums} if sums and place == 0 else {}
            save_model(folder, model, card=text, config=config)
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

    def _write_sums(self, kept: KeptSums, file: str) -> str:
        """Write sums as the upload of one client, which all clients together are; its sha256."""
        name = f"sum-of-{len(kept.clients)}"
        data = encode(Upload(name, {"sums": kept.part}, kept.num_examples))
        write_atomic(self.path / file, data)
        return read_digest(data)

    def _check_same(self, asked: dict[str, Any]) -> None:
        """Raise a RunError that names each difference to the run that was started here."""
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
    """Name what differs, in full: ``settings.lr``, ``clients.bank-3.sha256``."""
    if before == now:
        return []
    old = _by_name(before)
    new = _by_name(now)
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
