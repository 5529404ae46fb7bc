"""How a run is driven: its steps, progress, time limit, checkpoints, options and folder."""

from attar.running.budget import Budget
from attar.running.checkpoint import read_notes, remove_checkpoint, restore_state, save_state
from attar.running.driver import (
    WATCH_SECONDS,
    Driver,
    Ending,
    OnPoint,
    ProgressReport,
    Watch,
    as_numbers,
    check_steps,
)
from attar.running.folder import RunFolder
from attar.running.options import Evaluate, OnEvaluation, RunOptions, merge_options, refuse_keywords

__all__ = [
    "WATCH_SECONDS",
    "Budget",
    "Driver",
    "Ending",
    "Evaluate",
    "OnEvaluation",
    "OnPoint",
    "ProgressReport",
    "RunFolder",
    "RunOptions",
    "Watch",
    "as_numbers",
    "check_steps",
    "merge_options",
    "read_notes",
    "refuse_keywords",
    "remove_checkpoint",
    "restore_state",
    "save_state",
]
