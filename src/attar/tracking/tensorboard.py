"""TensorBoard: event files that ``tensorboard --logdir DIR`` shows."""

import json
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from attar.tracking.tracker import Outcome, TrackedRun


class TensorBoard:
    """Writes the event files of a run, ``DIR/NAME/``.

    Args:
        place: DIR.
        run: that begins.
    """

    def __init__(self, place: str, run: TrackedRun) -> None:
        self._writer = SummaryWriter(str(Path(place).expanduser() / run.name))
        self._writer.add_text("settings", _as_table({"verb": run.verb, **run.settings}))
        self._writer.flush()

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Write scalars ``GROUP/NAME``."""
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)

    def finish(self, outcome: Outcome, result: Mapping[str, float]) -> None:
        """Write scalars ``final/NAME`` and the outcome as text."""
        for name, value in result.items():
            self._writer.add_scalar(f"final/{name}", value, 0)
        self._writer.add_text("outcome", outcome)
        self._writer.close()


def _as_table(settings: Mapping[str, object]) -> str:
    """Settings as a table in Markdown."""
    rows = [f"| {key} | `{json.dumps(value)}` |" for key, value in settings.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
