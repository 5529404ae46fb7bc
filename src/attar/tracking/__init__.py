"""Curves and results of runs in the tools that people watch them with: TensorBoard, MLflow, W&B.

A tracker is named ``KIND:PLACE``. Other packages add kinds by entry points ``attar.trackers``. What
is logged comes from the driver's recorded points, so no method knows of trackers, and one that
fails does not end a run.
"""

from attar.tracking.kinds import check_trackers, list_trackers, refused_trackers, with_whole_paths
from attar.tracking.tracker import Factory, TrackedRun, Tracker
from attar.tracking.tracking import Tracking, track

__all__ = [
    "Factory",
    "TrackedRun",
    "Tracker",
    "Tracking",
    "check_trackers",
    "list_trackers",
    "refused_trackers",
    "track",
    "with_whole_paths",
]
