"""The curves of records as scalars for TensorBoard (extra ``tensorboard``), one run for each
cell.
"""

from pathlib import Path

from attar.bench.records import FINISHED, Record
from attar.errors import SettingsError


class TensorBoardWriter:
    """Writes event files that ``tensorboard --logdir DIR`` shows.

    Args:
        folder: Gets a folder for each record.

    Raises:
        SettingsError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingsError(
                "--tensorboard needs TensorBoard.", fix="pip install 'attar[tensorboard]'"
            ) from None
        self._folder = folder
        self._writer = SummaryWriter

    def add(self, record: Record) -> None:
        """Write the curves of a finished run; records of failed runs have none."""
        if record["ending"] != FINISHED:
            return
        writer = self._writer(str(self._folder / record["name"]))
        try:
            for point in [*record["history"], *record["curve"]]:
                for name, value in point.items():
                    if name not in ("phase", "step") and value is not None:
                        writer.add_scalar(f"{point['phase']}/{name}", value, point["step"])
            writer.add_scalar("final/accuracy", record["accuracy"], 0)
        finally:
            writer.close()
