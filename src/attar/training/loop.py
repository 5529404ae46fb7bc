"""Local training from beginning to end: progress, checkpoints, deadline, diverged losses."""

import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DivergedError, OutOfTime, RunError, SettingsError, Stopped
from attar.running import WATCH_SECONDS, Driver, OnPoint, Watch, restore_state, save_state
from attar.training.clients import ClientData
from attar.training.options import LocalTraining
from attar.training.statistics import StatisticsSettings, add_statistics
from attar.training.step import TrainingState
from attar.uploads import all_finite

History = list[dict[str, Any]]


class LocalStack(Protocol):
    """Clients that train together: classifiers, autoencoders, or pairs of networks."""

    @property
    def clients(self) -> Sequence[ClientData]:
        """Who trains."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """The architecture."""
        ...

    @property
    def preprocess(self) -> Preprocess:
        """How images reach the net."""
        ...

    @property
    def training(self) -> LocalTraining:
        """The hyper-parameters."""
        ...

    @property
    def seed(self) -> int:
        """Decides everything that is random."""
        ...

    @property
    def device(self) -> str:
        """Where they train."""
        ...

    def start(self) -> TrainingState:
        """Return the state before the first step."""
        ...

    def phases(self) -> Sequence[Phase]:
        """Return what to do with the state; a step is an epoch."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the outcome, but the images, the seed and the clients."""
        ...

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Return the accuracy of clients on the images that they hold out, by name."""
        ...

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """Return what each client sends, in the order of ``clients``.

        Args:
            state: After training.
            withhold_counts: Whether to leave out the number of images of each class.
        """
        ...

    def next_client_states(
        self, state: TrainingState, uploads: Sequence[Upload]
    ) -> dict[str, dict[str, Part]]:
        """Return the parts that each client stores for the next round, by client."""
        ...


# --- one stack, and several -----------------------------------------------------------------------


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
    save_client_state: Callable[[dict[str, dict[str, Part]]], None] | None = None,
    on_point: OnPoint | None = None,
) -> tuple[list[Upload], dict[str, float]]:
    """Train one stack to the end.

    Args:
        stack: Who trains, and how.
        checkpoint: A file for unfinished training. Where it exists, training continues from it; it
            is removed at the end. None: nothing is saved.
        watch: Called with a ``ProgressReport`` a few times a second.
        precision: "fp32", "tf32" or "bf16".
        watch_seconds: Time between two calls of ``watch``.
        checkpoint_seconds: Time between two checkpoints.
        minutes: After so many, what is done is saved and training ends: half-trained clients are
            never sent. None: no limit.
        withhold_counts: Whether to leave the number of images of each class out of the uploads.
        statistics: How feature statistics are measured, which are sent along where a client holds
            enough images. None: they are not sent.
        save_client_state: Called with the parts that each client stores, by client.
        on_point: Called with the metrics of each epoch that is recorded.

    Returns:
        The uploads in the order of the stack's clients, and the accuracy of each client on the
        images that it holds out.

    Raises:
        RunError: The checkpoint cannot be read, or belongs to another training.
        DivergedError: A loss is NaN or infinite.
        OutOfTime: The minutes are over.
        Stopped: By Ctrl-C.
    """
    run = _StackRun(
        stack=stack,
        checkpoint=checkpoint,
        watch=watch,
        precision=precision,
        watch_seconds=watch_seconds,
        checkpoint_seconds=checkpoint_seconds,
        minutes=minutes,
        on_point=on_point,
    )
    state = run.finish()
    uploads = stack.uploads(state, withhold_counts=withhold_counts)
    if statistics is not None:
        owners = {client.name: client for client in stack.clients}
        uploads = [
            add_statistics(upload, owners[upload.client], statistics, stack.device)
            for upload in uploads
        ]
    if save_client_state is not None:
        save_client_state(stack.next_client_states(state, uploads))
    run.remove_checkpoint()
    return uploads, stack.validation(state)


def train_stacks(
    stacks: Sequence[LocalStack],
    *,
    checkpoint: Path | None = None,
    watch: Watch | None = None,
    precision: str = "fp32",
    minutes: float | None = None,
    withhold_counts: bool = False,
    history: History | None = None,
) -> dict[str, Upload]:
    """Train several stacks to the end, one after the other.

    Args:
        stacks: Who trains, and how.
        checkpoint: A folder for unfinished training, with a file for each stack. Where they exist,
            training continues from them; they are removed when all stacks are done.
        watch: Called with a ``ProgressReport`` a few times a second, whose phase names the net;
            the time left is that of the stack.
        precision: "fp32", "tf32" or "bf16".
        minutes: For all stacks together; see ``train_stack``.
        withhold_counts: Whether to leave the number of images of each class out of the uploads.
        history: A list that the loss of each epoch is appended to.

    Returns:
        The uploads by client.

    Raises:
        SettingsError: ``watch`` does not take one argument.
        RunError, DivergedError, OutOfTime, Stopped: As ``train_stack`` says.
    """
    _check_watch(watch)
    begun = time.monotonic()
    uploads: dict[str, Upload] = {}
    runs = []
    for number, stack in enumerate(stacks):
        file = None if checkpoint is None else checkpoint / f"stack-{number}.training"
        left = None if minutes is None else minutes - (time.monotonic() - begun) / 60
        run = _StackRun(stack, file, watch, precision, minutes=left, title=f"train {stack.spec}")
        state = run.finish(history)
        if len(stacks) > 1:
            run.save(state)  # a later stack may be interrupted
        runs.append(run)
        for upload in stack.uploads(state, withhold_counts=withhold_counts):
            uploads[upload.client] = upload
    for run in runs:
        run.remove_checkpoint()
    return uploads


@dataclass(frozen=True)
class _StackRun:
    """One stack on its way through the driver; ``train_stack`` says what everything is."""

    stack: LocalStack
    checkpoint: Path | None
    watch: Watch | None
    precision: str
    watch_seconds: float = WATCH_SECONDS
    checkpoint_seconds: float = 30.0
    minutes: float | None = None
    title: str | None = None  # of the phase, in place of its own name
    on_point: OnPoint | None = None

    def finish(self, history: History | None = None) -> TrainingState:
        """Train to the end, from the checkpoint where there is one; return the last state."""
        stack = self.stack
        state = stack.start()
        self._restore(state)
        driver = Driver(
            seed=stack.seed,
            device=stack.device,
            precision=self.precision,
            watch=self.watch,
            minutes=self.minutes,
            checkpoint_seconds=self.checkpoint_seconds,
            watch_seconds=self.watch_seconds,
            on_point=self.on_point,
        )
        phases = [
            replace(_guard(stack, phase), name=self.title or phase.name) for phase in stack.phases()
        ]
        save = None if self.checkpoint is None else lambda: self.save(state)
        rows: History = [] if history is None else history
        try:
            ending = driver.run(phases, state, history=rows, save=save)
        except DivergedError:
            # nothing to continue from, and it would be in the way of other settings
            self.remove_checkpoint()
            raise
        if ending != "finished":
            again = "run the same command again"
            fix = again if self.checkpoint is None else f"{again}: it continues from here"
            done = f"after {state.step} of {stack.training.epochs} epochs."
            if ending == "stopped":
                raise Stopped(f"Stopped by Ctrl-C {done}", fix=fix)
            raise OutOfTime(f"Out of time {done}", fix=fix)
        return state

    def _restore(self, state: TrainingState) -> None:
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        saved = restore_state(self.checkpoint, state, self.stack.device)
        if saved["training"] != describe_training(self.stack, self.precision):
            raise RunError(
                f"{self.checkpoint} belongs to a training with other settings.",
                fix="repeat the first command to continue it, or delete that file",
            )

    def save(self, state: TrainingState) -> None:
        """Write the checkpoint, if there is to be one."""
        if self.checkpoint is not None:
            notes = {"training": describe_training(self.stack, self.precision)}
            save_state(self.checkpoint, state, notes)

    def remove_checkpoint(self) -> None:
        """Delete the checkpoint, if there is one."""
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)


def _check_watch(watch: Watch | None) -> None:
    """Raise where ``watch`` cannot be called with one argument: up to 0.1 it took three."""
    if watch is None:
        return
    try:
        inspect.signature(watch).bind(object())
    except ValueError:  # it has no signature to look at
        return
    except TypeError:
        raise SettingsError(
            "watch takes one argument, a ProgressReport with phase, step and metrics.",
            fix="write watch=lambda report: ..., or collect every epoch's loss by history=[]",
        ) from None


def _guard(stack: LocalStack, phase: Phase) -> Phase:
    """Return the phase with steps that raise where a loss is not finite."""

    def step(state: TrainingState) -> Metrics:
        metrics = phase.step(state)
        if not all(math.isfinite(value) for value in metrics.values()):
            lost = [upload.client for upload in stack.uploads(state) if not _is_finite(upload)]
            epochs = stack.training.epochs
            raise DivergedError(
                f"Training of {stack.spec} diverged in epoch {state.step + 1} of {epochs}: "
                "its loss is NaN or infinite.",
                problems=[f"client {name}: its weights are NaN or infinite" for name in lost],
                fix=f"use a smaller learning rate than {stack.training.lr:g}, "
                "or bound the gradients (clip = 1)",
            )
        return metrics

    return replace(phase, step=step)


def _is_finite(upload: Upload) -> bool:
    return all(all_finite(value) for part in upload.parts.values() for value in part.state.values())


# --- descriptions ---------------------------------------------------------------------------------


def describe_training(stack: LocalStack, precision: str) -> Any:
    """Return everything that decides the outcome but the images, as JSON would give it back."""
    clients = [
        {
            "name": client.name,
            "labels": client.labels.bincount(minlength=len(client.classes)).tolist(),
        }
        for client in stack.clients
    ]
    description = {
        "clients": clients,
        "preprocess": asdict(stack.preprocess),
        "seed": stack.seed,
        "precision": precision,
        **stack.describe(),
    }
    return json.loads(json.dumps(description))


def expected_uploads(stack: LocalStack, *, withhold_counts: bool = False) -> list[Upload]:
    """Return what a training will send, with nets that have learned nothing yet.

    Args:
        stack: Who will train, and how.
        withhold_counts: Whether the number of images of each class will be left out.
    """
    training = stack.training
    expected = []
    for upload in stack.uploads(stack.start(), withhold_counts=withhold_counts):
        batches = math.ceil(upload.num_examples / training.batch_size)
        expected.append(replace(upload, local_steps=training.epochs * batches))
    return expected


def upload_differences(upload: Upload, expected: Upload) -> list[str]:
    """Return in what an upload differs from an expected one; weights are not compared."""
    pairs: dict[str, tuple[object, object]] = {"client": (upload.client, expected.client)}
    for name, part in expected.parts.items():
        present = upload.parts.get(name)
        pairs[name] = (None if present is None else str(present.spec), str(part.spec))
        pairs["classes"] = (None if present is None else present.classes, part.classes)
    pairs["images"] = (upload.num_examples, expected.num_examples)
    pairs["images of each class"] = (upload.label_counts, expected.label_counts)
    pairs["local steps"] = (upload.local_steps, expected.local_steps)
    return [
        f"{name}: {_shorten(have)} in place of {_shorten(want)}"
        for name, (have, want) in pairs.items()
        if have != want
    ]


def _shorten(value: object) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value[:12])) if isinstance(value, tuple) else str(value)
