"""Drives phases of steps, whoever owns them: progress with time left, checkpoints, a deadline,
Ctrl-C.

Between two steps everything that changes is in the State, so a run can end there and go on later
with the same bits. Random numbers that layers draw from torch's global state (dropout) are
seeded per step and never leak out.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch

from attar.blocks.execution import arithmetic
from attar.core import Phase, State
from attar.errors import AttarError, SettingsError
from attar.seeds import derive

POINTS = 500  # metrics kept per phase
TELL_SECONDS = 0.2  # between two words to the watcher


@dataclass(frozen=True)
class Moment:
    """What a watcher is told."""

    phase: str
    step: int
    steps: int
    done: float  # share of the whole run's work, 0 to 1
    seconds_left: float | None
    metrics: Mapping[str, float]


Watch = Callable[[Moment], None]


Ending = Literal["finished", "deadline", "stopped"]  # to the end, out of minutes, Ctrl-C


@dataclass(frozen=True)
class Driver:
    """The circumstances of a run that do not change its outcome, and the seed that does."""

    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    watch: Watch | None = None
    minutes: float | None = None
    checkpoint_seconds: float = 30.0

    def run(
        self,
        phases: Sequence[Phase],
        state: State,
        *,
        history: list[dict[str, Any]],
        save: Callable[[], None] | None = None,
        after_step: Callable[[Phase], Mapping[str, float]] | None = None,
    ) -> Ending:
        """Walk ``state`` through what is left of ``phases``; metrics are appended to ``history``."""
        check_steps(phases)
        pace = _Pace(phases, state)
        with _ctrl_c() as presses:
            while (phase := _current(phases, state)) is not None:
                try:
                    with presses.within_a_step():
                        self._step(phase, state, pace, history, after_step)
                except KeyboardInterrupt:
                    if not presses.heard:
                        # nobody pressed while this ran: whoever raised it means something else
                        raise
                    # in the middle of a step, whose state is no state to save: what was saved last
                    # is kept
                    return "stopped"
                late = (
                    self.minutes is not None
                    and pace.elapsed + pace.longest_step > 60 * self.minutes
                )
                if pace.share < 1 and (presses.heard or late):
                    if save is not None:
                        save()
                    return "stopped" if presses.heard else "deadline"
                if save is not None and pace.time_to_save(self.checkpoint_seconds):
                    save()
        return "finished"

    def _step(
        self,
        phase: Phase,
        state: State,
        pace: "_Pace",
        history: list[dict[str, Any]],
        after_step: Callable[[Phase], Mapping[str, float]] | None,
    ) -> None:
        """One step, and what is measured and told of it."""
        with self.surroundings(state):
            metrics = phase.step(state)
        _check_mapping(phase, metrics)
        state.step += 1
        pace.advance(phase, state)
        extra = {} if after_step is None else after_step(phase)
        if (metrics or extra) and (extra or _is_kept(phase, state)):
            history.append(
                {
                    "phase": phase.name,
                    "step": state.step,
                    **_recorded({**numbers_of(phase, metrics), **extra}),
                }
            )
        if self.watch is not None and pace.time_to_speak(phase, state):
            numbers = {**numbers_of(phase, metrics), **extra}
            self.watch(
                Moment(phase.name, state.step, phase.steps, pace.share, pace.seconds_left, numbers)
            )

    @contextmanager
    def surroundings(self, state: State) -> Iterator[None]:
        cuda = torch.device(self.device).type == "cuda"
        with (
            torch.random.fork_rng(devices=[torch.device(self.device)] if cuda else []),
            arithmetic(self.precision, self.device),
        ):
            seed = derive(self.seed, "step", state.phase, state.step)
            torch.default_generator.manual_seed(seed)
            if cuda:
                with torch.cuda.device(self.device):
                    torch.cuda.manual_seed(seed)
            yield


def _current(phases: Sequence[Phase], state: State) -> Phase | None:
    """The phase whose step is next; moves ``state`` over the ends of phases."""
    while state.phase < len(phases) and state.step >= phases[state.phase].steps:
        state.phase, state.step = state.phase + 1, 0
    return phases[state.phase] if state.phase < len(phases) else None


def _is_kept(phase: Phase, state: State) -> bool:
    """About POINTS metrics of a phase are kept, its last among them."""
    return state.step == phase.steps or (state.step - 1) % max(1, phase.steps // POINTS) == 0


def check_steps(phases: Sequence[Phase]) -> None:
    """Raise where a phase has no whole number of steps: a setting may say how many, and a method
    need not have looked at it.
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
            fix="return a mapping of names to numbers, {} where there is nothing to tell",
        )


def numbers_of(phase: Phase, metrics: Mapping[str, float | torch.Tensor]) -> dict[str, float]:
    """Metrics as numbers. Those of a GPU come over only when this is called, so that not every
    step waits for them.
    """
    _check_mapping(phase, metrics)
    numbers, wrong = {}, []
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            wrong.append(f"{name} is {_kind(value)}")
            continue
        # a RuntimeError is not ours: what went wrong on a GPU comes up where a number is fetched
        # from it
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
    """What stands where something else is expected, in short."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _recorded(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """A loss that ran away is recorded as null: JSON has no word for it."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class _Pace:
    """How fast the run goes: work done, time gone, time left."""

    def __init__(self, phases: Sequence[Phase], state: State) -> None:
        self._begun = self._last_step = self._last_word = self._last_save = time.monotonic()
        self._all = sum(phase.work(step) for phase in phases for step in range(phase.steps)) or 1.0
        finished = [(phase, phase.steps) for phase in phases[: state.phase]]
        finished += [(phase, state.step) for phase in phases[state.phase : state.phase + 1]]
        self._done = self._done_before = sum(
            phase.work(step) for phase, steps in finished for step in range(steps)
        )
        self._steps_left = sum(phase.steps for phase in phases) - sum(
            steps for _, steps in finished
        )
        self.longest_step = 0.0

    def advance(self, phase: Phase, state: State) -> None:
        now = time.monotonic()
        self.longest_step = max(self.longest_step, now - self._last_step)
        self._last_step = now
        self._done += phase.work(state.step - 1)
        self._steps_left -= 1

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    @property
    def share(self) -> float:
        return self._done / self._all if self._steps_left else 1.0

    @property
    def seconds_left(self) -> float | None:
        """None while nothing is done to judge by."""
        done = self._done - self._done_before
        return self.elapsed * max(self._all - self._done, 0.0) / done if done > 0 else None

    def time_to_speak(self, phase: Phase, state: State) -> bool:
        if state.step < phase.steps and self._last_step - self._last_word < TELL_SECONDS:
            return False
        self._last_word = self._last_step
        return True

    def time_to_save(self, every: float) -> bool:
        if self._last_step - self._last_save < every:
            return False
        self._last_save = self._last_step
        return True


class _Presses:
    """Handles Ctrl-C: the first is remembered until the step ends, the next ends the step
    itself, and none ends a save.
    """

    def __init__(self) -> None:
        self.heard = False
        self._stepping = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.heard and self._stepping:
            raise KeyboardInterrupt
        self.heard = True

    @contextmanager
    def within_a_step(self) -> Iterator[None]:
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False


@contextmanager
def _ctrl_c() -> Iterator[_Presses]:
    presses = _Presses()
    if threading.current_thread() is not threading.main_thread():
        yield presses
        return
    before = signal.signal(signal.SIGINT, presses)
    try:
        yield presses
    finally:
        signal.signal(signal.SIGINT, before)
