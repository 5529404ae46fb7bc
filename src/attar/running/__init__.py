"""How a run is driven: steps, progress, deadline, checkpoints, its folder."""

from attar.running.checkpoint import notes_of, remove_checkpoint, restore_state, save_state
from attar.running.driver import Driver, Ending, Moment, Watch, check_steps, numbers_of
from attar.running.folder import RunFolder

__all__ = [
    "Driver",
    "Ending",
    "Moment",
    "RunFolder",
    "Watch",
    "check_steps",
    "notes_of",
    "numbers_of",
    "remove_checkpoint",
    "restore_state",
    "save_state",
]
