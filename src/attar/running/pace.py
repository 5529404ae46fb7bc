"""The pace of a run: work done, time used, and an estimate of the time left.

A phase announces the work of each of its steps. What a unit of it takes is not the same in all
phases: passes through other nets, other batches. So each phase has a rate of its own: measured in
its steps, or before them in a trial (``attar.fusion.estimate``). Where neither is there, a phase
that was measured lends its rate, once it is a fair part of the whole.
"""

import math
import time
from collections.abc import Sequence
from itertools import accumulate

from attar.core import Phase, State

FAIR_PART = 0.1  # of all announced work: a phase with less says little about the others
WARM_STEPS = 2  # from so many on, the first step of a phase, which sets things up, is left out
FEWEST = 3  # steps from which a slope is read


class StepTimes:
    """The times of a phase's steps, and what they say about steps to come.

    A step of work w takes a + b w: an epoch of ``dense`` has generator steps, which are the same in
    every epoch (a), and the images of a pool that grows (b). Least squares find b. As long as they
    are uncertain, b stays near the announced proportion, where a is 0.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[float, float]] = []  # work, seconds

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, work: float, seconds: float) -> None:
        """Note a step."""
        self._steps.append((work, seconds))

    @property
    def _warm(self) -> list[tuple[float, float]]:
        return self._steps[1:] if len(self._steps) >= WARM_STEPS else self._steps

    @property
    def rate(self) -> float | None:
        """Seconds for a unit of work; None without a measure."""
        work = sum(step_work for step_work, _ in self._warm)
        return sum(seconds for _, seconds in self._warm) / work if work > 0 else None

    def predict(self, steps: int, work: float) -> float | None:
        """Seconds for so many further steps with this work in all; None without a measure."""
        rate = self.rate
        if rate is None:
            return None
        known = self._warm
        mean_work = sum(step_work for step_work, _ in known) / len(known)
        mean_seconds = rate * mean_work
        slope = self._slope(known, mean_work, mean_seconds)
        return max(0.0, steps * (mean_seconds - slope * mean_work) + work * slope)

    def _slope(
        self, known: Sequence[tuple[float, float]], mean_work: float, mean_seconds: float
    ) -> float:
        """b: between the announced proportion and least squares, by how sure these are."""
        proportion = mean_seconds / mean_work
        spread = sum((work - mean_work) ** 2 for work, _ in known)
        if len(known) < FEWEST or spread <= 1e-12 * mean_work**2:
            return proportion
        fitted = (
            sum((work - mean_work) * (seconds - mean_seconds) for work, seconds in known) / spread
        )
        errors = sum(
            (seconds - mean_seconds - fitted * (work - mean_work)) ** 2 for work, seconds in known
        )
        variance = errors / (len(known) - 2) / spread  # of the fitted slope
        trust = proportion**2 / (proportion**2 + variance) if proportion else 1.0
        # A step takes no negative time, however little work it has.
        return max(0.0, proportion + trust * (fitted - proportion))


class Pace:
    """The pace of a run: work done, time used, time left.

    Args:
        phases: All phases of the run.
        state: Where it stands.
        expected: Seconds for a unit of each phase's work, from a trial; None: unknown.
    """

    def __init__(
        self, phases: Sequence[Phase], state: State, expected: Sequence[float] | None = None
    ) -> None:
        self._begun = time.monotonic()
        self._last_step = self._last_watch = self._last_save = self._begun
        self._expected = expected
        # Work of each phase from each of its steps to its end.
        self._left = [
            [*accumulate(reversed([phase.work(step) for step in range(phase.steps)])), 0.0]
            for phase in phases
        ]
        for left in self._left:
            left[:-1] = reversed(left[:-1])
        self._all = sum(left[0] for left in self._left) or 1.0
        self._times = [StepTimes() for _ in phases]
        self._at = (state.phase, state.step)
        self._phases = phases
        self.longest_step = 0.0

    def advance(self, phase: Phase, state: State) -> None:
        """Note that a step is done."""
        now = time.monotonic()
        took = now - self._last_step
        self.longest_step = max(self.longest_step, took)
        self._times[state.phase].add(phase.work(state.step - 1), took)
        self._last_step = now
        self._at = (state.phase, state.step)

    def _remaining(self, place: int) -> tuple[int, float]:
        """Steps and work of a phase that are left."""
        phase, step = self._at
        steps = self._phases[place].steps
        done = 0 if place > phase else min(step, steps) if place == phase else steps
        return steps - done, self._left[place][done]

    @property
    def elapsed(self) -> float:
        """Seconds since the run began or went on."""
        return time.monotonic() - self._begun

    @property
    def share(self) -> float:
        """The part of all announced work that is done, 0 to 1."""
        left = [self._remaining(place) for place in range(len(self._phases))]
        if not any(steps for steps, _ in left):
            return 1.0
        return max(0.0, 1.0 - sum(work for _, work in left) / self._all)

    @property
    def seconds_left(self) -> float | None:
        """The expected time to the end; None while there is nothing to judge by."""
        lent = self._lent_rate()
        total = 0.0
        for place, times in enumerate(self._times):
            steps, work = self._remaining(place)
            if not steps:
                continue
            seconds = times.predict(steps, work)
            if self._expected is not None and len(times) < WARM_STEPS:
                # A few steps and the trial are equally good witnesses.
                trial = self._expected[place] * work
                seconds = trial if seconds is None else math.sqrt(trial * seconds)
            if seconds is None and lent is not None:
                seconds = lent * work
            if seconds is None:
                return None
            total += seconds
        return total

    def _lent_rate(self) -> float | None:
        """Seconds for a unit of work in the largest phase that was measured; None while all of
        these are small.
        """
        measured = [place for place, times in enumerate(self._times) if len(times)]
        if not measured:
            return None
        largest = max(measured, key=lambda place: self._left[place][0])
        if self._left[largest][0] < FAIR_PART * self._all:
            return None
        return self._times[largest].rate

    def time_to_watch(self, phase: Phase, state: State, every: float) -> bool:
        """Whether the progress is due to be told: at the end of a phase, and from time to time."""
        if state.step < phase.steps and self._last_step - self._last_watch < every:
            return False
        self._last_watch = self._last_step
        return True

    def time_to_save(self, every: float) -> bool:
        """Whether a checkpoint is due."""
        if self._last_step - self._last_save < every:
            return False
        self._last_save = self._last_step
        return True
