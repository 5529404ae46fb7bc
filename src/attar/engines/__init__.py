"""Where work runs: in this process, in several on this machine, or on a Ray cluster. The records are the same."""

from typing import Literal

from attar.engines.engine import Engine
from attar.engines.inline import Inline
from attar.engines.processes import Processes

EngineName = Literal["inline", "processes", "ray"]

__all__ = ["Engine", "EngineName", "Inline", "Processes", "open_engine"]


def open_engine(name: EngineName, workers: int, ray_address: str | None = None) -> Engine:
    if name == "ray":
        from attar.engines.ray import Ray  # an extra

        return Ray(workers, ray_address)
    return Processes(workers) if name == "processes" else Inline()
