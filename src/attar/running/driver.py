"""The loop that takes the steps of phases, for training and fusion alike: progress with time
left, checkpoints, a time limit, Ctrl-C.

Between two steps everything that changes is in the State, so a run can end there and be resumed
later with the same bits. Random numbers that layers draw from torch's global state (dropout) are
seeded for each step, and that state is restored afterwards.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch

from attar.blocks.execution import arithmetic, isolate_randomness, reseed
from attar.core import Metrics, Phase, State
from attar.errors import AttarError, SettingsError
from attar.running.pace import Pace
from attar.seeds import derive

HISTORY_POINTS = 500
WATCH_SECONDS = 0.2
CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class ProgressReport:
    """The progress of a run after a step.

    Attributes:
        phase: Name of the phase.
        step: Steps of this phase that are done.
        steps: All steps of this phase.
        done: Share of the whole run's work that is done, 0 to 1.
        seconds_left: Expected time to the end; None while nothing is done to judge by.
        metrics: The numbers of this step.
    """

    phase: str
    step: int
    steps: int
    done: float
    seconds_left: float | None
    metrics: Mapping[str, float]


Watch = Callable[[ProgressReport], None]
OnPoint = Callable[[Mapping[str, Any]], None]
"""Is given a point of the history: ``phase``, ``step`` and the numbers of the step by name."""
Ending = Literal["finished", "deadline", "stopped"]  # all steps, out of minutes, Ctrl-C


@dataclass(frozen=True)
class Driver:
    """Takes the steps of a run. Of its fields only ``seed`` and ``precision`` change the outcome.

    Attributes:
        seed: Of the random numbers that layers draw from torch's global state.
        device: Where the steps run.
        precision: Arithmetic of the steps: fp32, tf32 or bf16.
        watch: Called with the progress.
        minutes: Time limit; at least one step is taken.
        checkpoint_seconds: Shortest time between two calls of ``save``.
        watch_seconds: Shortest time between two calls of ``watch`` within a phase.
        history_points: About how many metrics of a phase are recorded.
        on_point: Called with each point that is recorded.
        expected: Seconds for a unit of each phase's work, from a trial; None: measured as the run
            goes.
    """

    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    watch: Watch | None = None
    minutes: float | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    watch_seconds: float = WATCH_SECONDS
    history_points: int = HISTORY_POINTS
    on_point: OnPoint | None = None
    expected: Sequence[float] | None = None

    def run(
        self,
        phases: Sequence[Phase],
        state: State,
        *,
        history: list[dict[str, Any]],
        save: Callable[[], None] | None = None,
        after_step: Callable[[Phase], Mapping[str, float]] | None = None,
    ) -> Ending:
        """Take all steps that are left.

        Args:
            phases: All phases of the run.
            state: Says where the run stands; the steps change it.
            history: Metrics are appended to it.
            save: Writes a checkpoint of ``state``. None: the run is not saved.
            after_step: Called after each step with its phase; the numbers that it returns are
                recorded with the step's own.

        Returns:
            Why the run ended.

        Raises:
            SettingsError: A phase has no whole number of steps.
            AttarError: A step returned something else than numbers by name.
        """
        check_steps(phases)
        pace = Pace(phases, state, self.expected)
        first = _next_phase(phases, state)
        if self.watch is not None and self.expected is not None and first is not None:
            told = (first.name, state.step, first.steps, pace.share, pace.seconds_left)
            self.watch(ProgressReport(*told, metrics={}))
        with _catch_interrupts() as interrupts:
            while (phase := _next_phase(phases, state)) is not None:
                try:
                    with interrupts.in_step():
                        self._step(phase, state, pace, history, after_step)
                except KeyboardInterrupt:
                    if not interrupts.any:
                        raise  # not by Ctrl-C: the code of the step raised it
                    # The step was broken off, so the state is not saved: the last checkpoint
                    # stays.
                    return "stopped"
                late = (
                    self.minutes is not None
                    and pace.elapsed + pace.longest_step > 60 * self.minutes
                )
                if pace.share < 1 and (interrupts.any or late):
                    if save is not None:
                        save()
                    return "stopped" if interrupts.any else "deadline"
                if save is not None and pace.time_to_save(self.checkpoint_seconds):
                    save()
        return "finished"

    def _step(
        self,
        phase: Phase,
        state: State,
        pace: Pace,
        history: list[dict[str, Any]],
        after_step: Callable[[Phase], Mapping[str, float]] | None,
    ) -> None:
        """Take a step, record its metrics and report the progress."""
        metrics = self.take_step(phase, state)
        _check_mapping(phase, metrics)
        state.step += 1
        pace.advance(phase, state)
        extra = {} if after_step is None else after_step(phase)
        if (metrics or extra) and (extra or self._is_recorded(phase, state)):
            numbers = _finite_or_none({**as_numbers(phase, metrics), **extra})
            history.append({"phase": phase.name, "step": state.step, **numbers})
            if self.on_point is not None:
                self.on_point(history[-1])
        if self.watch is not None and pace.time_to_watch(phase, state, self.watch_seconds):
            self.watch(
                ProgressReport(
                    phase=phase.name,
                    step=state.step,
                    steps=phase.steps,
                    done=pace.share,
                    seconds_left=pace.seconds_left,
                    metrics={**as_numbers(phase, metrics), **extra},
                )
            )

    def _is_recorded(self, phase: Phase, state: State) -> bool:
        """Whether the metrics of a step are recorded: about ``history_points`` of a phase, with
        its last.
        """
        every = max(1, phase.steps // self.history_points)
        return state.step == phase.steps or (state.step - 1) % every == 0

    def take_step(self, phase: Phase, state: State) -> Metrics:
        """Take one step with the seed and the arithmetic that it has in a run.

        The step is not counted: ``state.step`` stays as it is.
        """
        with self._step_environment(state):
            return phase.step(state)

    @contextmanager
    def _step_environment(self, state: State) -> Iterator[None]:
        with isolate_randomness(self.device), arithmetic(self.precision, self.device):
            reseed(self.device, derive(self.seed, "step", state.phase, state.step))
            yield


def _next_phase(phases: Sequence[Phase], state: State) -> Phase | None:
    """The phase whose step is next, None at the end; moves ``state`` past finished phases."""
    while state.phase < len(phases) and state.step >= phases[state.phase].steps:
        state.phase += 1
        state.step = 0
    return phases[state.phase] if state.phase < len(phases) else None


def check_steps(phases: Sequence[Phase]) -> None:
    """Check that each phase has a whole number of steps, which a method may have taken from a
    setting.

    Raises:
        SettingsError: Some phase has not; all of them are listed.
    """
    wrong = [
        phase
        for phase in phases
        if not isinstance(phase.steps, int) or isinstance(phase.steps, bool) or phase.steps < 0
    ]
    if wrong:
        raise SettingsError(
            "Phases take a whole number of steps, 0 or more:",
            problems=[f"{phase.name}: {phase.steps!r} steps" for phase in wrong],
            fix="give another number, such as --set steps=100, where a setting says how many",
        )


def _check_mapping(phase: Phase, metrics: object) -> None:
    if not isinstance(metrics, Mapping):  # a forgotten return, which no type checker saw
        raise AttarError(
            f"A step of phase {phase.name!r} returned {_kind(metrics)} in place of its metrics.",
            fix="return a mapping of names to numbers, {} where there is nothing to report",
        )


def as_numbers(phase: Phase, metrics: Metrics) -> dict[str, float]:
    """Convert metrics to numbers.

    Tensors of a GPU are copied only here, so that not every step waits for them.

    Raises:
        AttarError: Some metric is not a single number; all of them are listed.
    """
    _check_mapping(phase, metrics)
    numbers, wrong = {}, []
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            wrong.append(f"{name} is {_kind(value)}")
            continue
        # A RuntimeError is not caught: it is an earlier error of the GPU, which shows where a
        # number is copied from it.
        try:
            numbers[name] = float(value.detach() if isinstance(value, torch.Tensor) else value)
        except (TypeError, ValueError):  # a text, None
            wrong.append(f"{name} is {_kind(value)}")
    if wrong:
        raise AttarError(
            f"Metrics of phase {phase.name!r} that are no single number:",
            problems=wrong,
            fix="report one number each, such as loss.mean().detach()",
        )
    return numbers


def _kind(value: object) -> str:
    """The kind of an unexpected value, for a message."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _finite_or_none(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN and infinity by None: JSON has neither."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class _Interrupts:
    """Handles Ctrl-C. The first is noted until the step ends, the next breaks off the step, and
    none breaks off a save.
    """

    def __init__(self) -> None:
        self.any = False
        self._in_step = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.any and self._in_step:
            raise KeyboardInterrupt
        self.any = True

    @contextmanager
    def in_step(self) -> Iterator[None]:
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False


@contextmanager
def _catch_interrupts() -> Iterator[_Interrupts]:
    """Handle Ctrl-C inside; outside the main thread, where Python allows no handler, do nothing."""
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
