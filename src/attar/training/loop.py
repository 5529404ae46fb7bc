"""Local training that can be interrupted: the driver's progress and checkpoints around one stack
of clients.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DivergedError, OutOfTime, RunError, Stopped
from attar.running import WATCH_SECONDS, Driver, Watch, restore_state, save_state
from attar.training.clients import ClientData
from attar.training.options import LocalTraining
from attar.training.statistics import StatisticsSettings, with_statistics
from attar.training.step import TrainingState
from attar.uploads import all_finite


class LocalStack(Protocol):
    """Clients that train together, classifiers or autoencoders."""

    @property
    def clients(self) -> Sequence[ClientData]: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def preprocess(self) -> Preprocess: ...
    @property
    def training(self) -> LocalTraining: ...
    @property
    def seed(self) -> int: ...
    @property
    def device(self) -> str: ...

    def start(self) -> TrainingState: ...
    def phases(self) -> Sequence[Phase]: ...
    def describe(self) -> dict[str, Any]: ...
    def validation(self, state: TrainingState) -> dict[str, float]: ...
    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]: ...
    def homes(
        self, state: TrainingState, uploads: Sequence[Upload]
    ) -> dict[str, dict[str, Part]]: ...


def train_stack(
    stack: LocalStack,
    *,
    checkpoint: Path | None = None,
    watch: Watch | None = None,
    watch_seconds: float = WATCH_SECONDS,
    precision: str = "fp32",
    checkpoint_seconds: float = 30.0,
    minutes: float | None = None,
    withhold_counts: bool = False,
    statistics: StatisticsSettings | None = None,
    keep: Callable[[dict[str, dict[str, Part]]], None] | None = None,
) -> tuple[list[Upload], dict[str, float]]:
    """Train one stack to the end; its uploads, and the accuracy of each client on the images it
    kept back.

    A checkpoint of the same training is gone on with; one of another training is refused. It is
    removed at the end. What is not done after ``minutes`` is saved, and raises ``OutOfTime``:
    half-trained clients are never sent. With ``statistics`` those of each classifier's features
    travel along, where a client holds enough images. ``keep`` is handed what stays at each
    client's home, where the training leaves something there.
    """
    state = stack.start()
    wanted = described(stack, precision)
    if (
        checkpoint is not None
        and checkpoint.exists()
        and restore_state(checkpoint, state, stack.device)["training"] != wanted
    ):
        raise RunError(
            f"{checkpoint} belongs to a training with other settings.",
            fix="repeat the first command to go on with it, or delete that file",
        )
    save: Callable[[], None] | None = None
    if checkpoint is not None:

        def save() -> None:
            save_state(checkpoint, state, {"training": wanted})

    driver = Driver(
        seed=stack.seed,
        device=stack.device,
        precision=precision,
        watch=watch,
        minutes=minutes,
        checkpoint_seconds=checkpoint_seconds,
        watch_seconds=watch_seconds,
    )
    history: list[dict[str, Any]] = []
    try:
        ending = driver.run(
            [_guarded(stack, phase) for phase in stack.phases()], state, history=history, save=save
        )
    except DivergedError:
        if (
            checkpoint is not None
        ):  # nobody wants to go on from there, and it would be in the way of other settings
            checkpoint.unlink(missing_ok=True)
        raise
    if ending != "finished":
        fix = (
            "run the same command again: it goes on from here"
            if checkpoint
            else "run the same command again"
        )
        why, error = (
            ("Stopped by Ctrl-C", Stopped) if ending == "stopped" else ("Out of time", OutOfTime)
        )
        raise error(f"{why} after {state.step} of {stack.training.epochs} epochs.", fix=fix)
    uploads = stack.uploads(state, withhold_counts=withhold_counts)
    if statistics is not None:
        owners = {client.name: client for client in stack.clients}
        uploads = [
            with_statistics(upload, owners[upload.client], statistics, stack.device)
            for upload in uploads
        ]
    if keep is not None:
        keep(stack.homes(state, uploads))
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return uploads, stack.validation(state)


def promise(stack: LocalStack, *, withhold_counts: bool = False) -> list[Upload]:
    """What a training will send, of nets that have learned nothing yet: what lies in its place
    can be compared with it.
    """
    training, uploads = (
        stack.training,
        stack.uploads(stack.start(), withhold_counts=withhold_counts),
    )
    batches = [math.ceil(upload.num_examples / training.batch_size) for upload in uploads]
    return [
        replace(upload, local_steps=training.epochs * each)
        for upload, each in zip(uploads, batches, strict=True)
    ]


def unlike(found: Upload, wanted: Upload) -> list[str]:
    """In what an upload differs from a promised one; of its weights nothing can be said."""
    told: dict[str, tuple[object, object]] = {"client": (found.client, wanted.client)}
    for name, part in wanted.parts.items():
        own = found.parts.get(name)
        told[name] = (None if own is None else str(own.spec), str(part.spec))
        told["classes"] = (None if own is None else own.classes, part.classes)
    told["images"] = (found.num_examples, wanted.num_examples)
    told["images of each class"] = (found.label_counts, wanted.label_counts)
    told["local steps"] = (found.local_steps, wanted.local_steps)
    return [
        f"{what}: {_brief(have)} in place of {_brief(want)}"
        for what, (have, want) in told.items()
        if have != want
    ]


def _brief(value: object) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value[:12])) if isinstance(value, tuple) else str(value)


def _guarded(stack: LocalStack, phase: Phase) -> Phase:
    """The phase, whose steps are an error once a loss is no number any more: no later epoch
    would mend that.
    """

    def step(state: TrainingState) -> Metrics:
        metrics = phase.step(state)
        if not all(math.isfinite(value) for value in metrics.values()):
            lost = [upload.client for upload in stack.uploads(state) if not _sound(upload)]
            raise DivergedError(
                f"Training of {stack.spec} diverged in epoch {state.step + 1} of {stack.training.epochs}: its loss is no number.",
                problems=[f"client {name}: its weights are no numbers any more" for name in lost],
                fix=f"use a smaller learning rate than {stack.training.lr:g}, or bound the gradients (clip = 1)",
            )
        return metrics

    return replace(phase, step=step)


def _sound(upload: Upload) -> bool:
    return all(all_finite(value) for part in upload.parts.values() for value in part.state.values())


def described(stack: LocalStack, precision: str) -> Any:
    """Everything that decides the outcome but the images, as JSON would give it back."""
    clients = [
        {
            "name": client.name,
            "labels": client.labels.bincount(minlength=len(client.classes)).tolist(),
        }
        for client in stack.clients
    ]
    described = {
        "clients": clients,
        "preprocess": asdict(stack.preprocess),
        "seed": stack.seed,
        "precision": precision,
        **stack.describe(),
    }
    return json.loads(json.dumps(described))
