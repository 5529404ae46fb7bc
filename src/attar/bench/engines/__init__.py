"""Where work runs: in this process, in several on this machine, or on a Ray cluster. The records
are the same.
"""

from typing import Literal

from attar.bench.engines.engine import Engine
from attar.bench.engines.inline import Inline
from attar.bench.engines.processes import Processes

EngineName = Literal["inline", "processes", "ray"]

__all__ = ["Engine", "EngineName", "Inline", "Processes", "open_engine"]


def open_engine(name: EngineName, workers: int, ray_address: str | None = None) -> Engine:
    if name == "ray":
        from attar.bench.engines.ray import Ray  # an extra

        return Ray(workers, ray_address)
    return Processes(workers) if name == "processes" else Inline()
