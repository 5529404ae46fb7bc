"""One run and all its trackers. A tracker that fails is told about once and left out."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attar.errors import Stopped
from attar.internal.plugins import in_a_line
from attar.tracking.kinds import find_factory, parse_tracker
from attar.tracking.tracker import Outcome, TrackedRun, Tracker

Warn = Callable[[str], None]
_LOG = logging.getLogger("attar.tracking")
LONGEST = 250  # characters of a setting


class Tracking:
    """The trackers of one run.

    Args:
        texts: ``KIND:PLACE`` of each.
        run: that begins.
        warn: is called with a sentence about a tracker that fails.
    """

    def __init__(self, texts: Sequence[str], run: TrackedRun, warn: Warn) -> None:
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        self._outcome: Outcome = "finished"
        self._result: dict[str, float] = {}
        for text in texts:
            with self._forgiving(text):
                kind, place = parse_tracker(text)
                self._trackers[text] = find_factory(kind)(place, run)

    def log_point(self, point: Mapping[str, Any]) -> None:
        """Log a point of the driver's history: its phase, its step and metrics."""
        values = _numbers({k: v for k, v in point.items() if k not in ("phase", "step")})
        if values:
            self.log(point["phase"], values, point["step"])

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Log metrics of a step."""
        for text, tracker in list(self._trackers.items()):
            with self._forgiving(text):
                tracker.log(group, values, step)

    def describe_end(self, result: Mapping[str, Any], outcome: Outcome = "finished") -> None:
        """Note how the run ended, for when its context does.

        Args:
            result: numbers of the whole run; others are left out.
            outcome: how it ended.
        """
        self._result |= _numbers(result)
        self._outcome = outcome

    def finish(self, outcome: Outcome | None = None) -> None:
        """End all trackers.

        Args:
            outcome: in place of what was noted.
        """
        for text, tracker in list(self._trackers.items()):
            with self._forgiving(text):
                tracker.finish(outcome or self._outcome, self._result)
        self._trackers.clear()

    @contextmanager
    def _forgiving(self, text: str) -> Iterator[None]:
        """Leave a tracker out that fails, and say so once."""
        try:
            yield
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            self._trackers.pop(text, None)
            self._warn(
                f"warning: the tracker {text} failed ({in_a_line(error)}); the run goes on "
                "without it"
            )


@contextmanager
def track(
    texts: Sequence[str],
    name: str,
    verb: str,
    settings: Mapping[str, Any],
    warn: Warn = _LOG.warning,
) -> Iterator[Tracking]:
    """Track a run while the context is open; it ends the trackers, however the run ends.

    Args:
        texts: ``KIND:PLACE`` of each tracker; none: nothing happens.
        name: of the run.
        verb: that began it.
        settings: what it was begun with.
        warn: is called with a sentence about a tracker that fails, also about one that there is
            not: ``check_trackers`` refuses these before the run.

    Yields:
        What takes the points of the run's history, and how it ends.
    """
    kept = {key: _shorten(value) for key, value in settings.items()}
    tracking = Tracking(texts, TrackedRun(name, verb, kept), warn)
    try:
        yield tracking
    except BaseException as error:
        by_user = isinstance(error, Stopped | KeyboardInterrupt)
        tracking.finish("stopped" if by_user else "failed")
        raise
    tracking.finish()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among some values."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _shorten(value: Any) -> Any:
    """A setting as a number, a truth value or a short text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
