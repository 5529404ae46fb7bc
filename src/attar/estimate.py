"""What a fusion will cost here: a few of its real steps, timed."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attar.core import AnyMethod, Phase, Server, State, Upload
from attar.driver import Driver

TIMED_STEPS = 3


@dataclass(frozen=True)
class Estimate:
    """Expected seconds for the whole run, and the memory that it takes (of the GPU where there is one)."""

    seconds: float
    memory: int


def estimate(method: AnyMethod, uploads: Sequence[Upload], server: Server) -> Estimate:
    """Time the first steps of every phase and scale them by the phase's announced work."""
    cuda = torch.device(server.device).type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(server.device)
    begun = time.perf_counter()
    context = method.prepare(uploads, server)
    state = method.start(context)
    seconds = time.perf_counter() - begun
    for phase in method.phases(context):
        state.step = 0
        seconds += _whole_phase(phase, state, server)
        state.phase += 1
    return Estimate(seconds, torch.cuda.max_memory_allocated(server.device) if cuda else _peak_memory())


def _whole_phase(phase: Phase, state: State, server: Server) -> float:
    driver = Driver(server.seed, server.device, server.precision)
    begun, timed_work = time.perf_counter(), 0.0
    for step in range(min(TIMED_STEPS, phase.steps)):
        if step == 1:  # the first step warms up
            begun, timed_work = time.perf_counter(), 0.0
        with driver.surroundings(state):
            for value in phase.step(state).values():
                float(value)  # waits for the device
        timed_work += phase.work(step)
        state.step += 1
    everything = sum(phase.work(step) for step in range(phase.steps))
    return (time.perf_counter() - begun) * everything / timed_work if timed_work else 0.0


def _peak_memory() -> int:
    """Bytes: Linux counts in kilobytes, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
