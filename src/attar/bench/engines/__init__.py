"""Where jobs run: in this process, in several on this machine, or on a Ray cluster.

The records are the same.
"""

from typing import Literal

from attar.bench.engines.engine import Engine, Job, JobResult
from attar.bench.engines.inline import Inline
from attar.bench.engines.processes import Processes

EngineName = Literal["inline", "processes", "ray"]

__all__ = ["Engine", "EngineName", "Inline", "Job", "JobResult", "Processes", "open_engine"]


def open_engine(name: EngineName, workers: int, ray_address: str | None = None) -> Engine:
    """Start an engine.

    Args:
        name: Which one.
        workers: How many jobs run at once; ``inline`` runs one.
        ray_address: A Ray cluster; None: one is started here.

    Raises:
        SettingsError: Ray is not installed.
    """
    if name == "ray":
        from attar.bench.engines.ray import Ray  # an extra

        return Ray(workers, ray_address)
    return Processes(workers) if name == "processes" else Inline()
