"""What a fusion will cost here: a few of its real steps, timed and scaled by the work that its
phases announce.
"""

import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from attar.core import AnyMethod, ModelSpec, Phase, Server, State, Upload
from attar.nets.cost import multiply_accumulates
from attar.nets.registry import Shape
from attar.running import Driver
from attar.settings import flatten

TIMED_STEPS = 3
# Seconds: beside a step of this length the warm-up is small, and one is enough. A GPU sets up
# libraries and kernels first.
LONG_STEP = {"cpu": 0.1, "cuda": 1.0}
# What a step repeats inside, and how little of it a trial needs: the phases' ``work`` counts it.
INNER = {
    "generator_steps": 1,
    "inversion_steps": 1,
    "guess_steps": 1,
    "samples": 256,
    "drawn": 256,
    "sketches_of_epoch": 16,
}
SHARED_OUT = {"samples", "drawn"}  # while a method prepares; inner steps only matter later
# On a CPU a step takes as long as its images do, so in a trial a batch has few: at most this many,
# and of large nets as many as
# make this many products on their way through all clients. A GPU would not be busy with so few.
FEW_IMAGES, FEW_PRODUCTS = 16, 10_000_000_000
MAKES_IMAGES = {
    "generator_steps",
    "inversion_steps",
}  # fields of methods whose batches are made, not given


@dataclass(frozen=True)
class Estimate:
    """Expected seconds for the whole run, and the memory that it takes (of the GPU where there
    is one).
    """

    seconds: float
    memory: int


def estimate(method: AnyMethod, uploads: Sequence[Upload], server: Server) -> Estimate:
    """Time the first steps of every phase of a short trial; the method's own phases say how much
    more work there is.
    """
    cuda = torch.device(server.device).type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(server.device)
    else:
        _forget_peak()
    few = FEW_IMAGES if cuda else _few_images(uploads)
    trial, larger = (
        (_trial(method, few), 1.0) if cuda else _with_few_images(_trial(method, few), few)
    )
    begun = time.perf_counter()
    context = trial.prepare(uploads, server)
    state = trial.start(context)
    seconds, nets = time.perf_counter() - begun, _peak_memory()
    phases = method.phases(
        method.prepare(uploads, server) if SHARED_OUT & set(_inner(method)) else context
    )
    for short, whole in zip(trial.phases(context), phases, strict=True):
        state.step = 0
        seconds += (
            larger
            * _seconds_per_work(short, state, server)
            * sum(whole.work(step) for step in range(whole.steps))
        )
        state.phase += 1
    if cuda:
        return Estimate(seconds, torch.cuda.max_memory_allocated(server.device))
    return Estimate(
        seconds, nets + round(larger * max(0, _peak_memory() - nets))
    )  # what steps take grows with their images


def _trial(method: AnyMethod, few: int = FEW_IMAGES) -> AnyMethod:
    """The method with less inside each step: its ``work`` counts that, so the scale stays right."""
    little = {
        name: number * few // FEW_IMAGES if name in SHARED_OUT else number
        for name, number in INNER.items()
    }
    return replace(
        method, **{name: min(little[name], flatten(method)[name]) for name in _inner(method)}
    )  # type: ignore[type-var]


def _few_images(uploads: Sequence[Upload]) -> int:
    parts = [upload.parts["classifier"] for upload in uploads if "classifier" in upload.parts]
    products = sum(
        _products(part.spec, part.preprocess.input_shape, len(part.classes)) for part in parts
    )
    return max(2, min(FEW_IMAGES, FEW_PRODUCTS // max(1, products)))


@cache  # asked for every method, of every client
def _products(spec: ModelSpec, shape: Shape, classes: int) -> int:
    return multiply_accumulates(spec.skeleton(shape, classes), shape)


def _with_few_images(method: AnyMethod, few: int) -> tuple[AnyMethod, float]:
    """A method that makes its images batch by batch, with smaller batches, and how many times
    the work its own are.
    """
    if not MAKES_IMAGES & flatten(method).keys():
        return method, 1.0  # an epoch over given images takes as long with small batches
    number = flatten(method)["batch_size"]
    return replace(method, batch_size=min(few, number)), max(1.0, number / few)  # type: ignore[type-var]


def _inner(method: AnyMethod) -> list[str]:
    return [name for name in flatten(method) if name in INNER]


def _seconds_per_work(phase: Phase, state: State, server: Server) -> float:
    driver = Driver(server.seed, server.device, server.precision)
    long_step = LONG_STEP.get(torch.device(server.device).type, LONG_STEP["cuda"])
    begun, timed_work = time.perf_counter(), 0.0
    for step in range(min(TIMED_STEPS, phase.steps)):
        if step > 0 and time.perf_counter() - begun > long_step:
            break
        if step == 1:  # the first step warms up
            begun, timed_work = time.perf_counter(), 0.0
        with driver.surroundings(state):
            for value in phase.step(state).values():
                float(value)  # waits for the device
        timed_work += phase.work(step)
        state.step += 1
    return (time.perf_counter() - begun) / timed_work if timed_work else 0.0


def _forget_peak() -> None:
    """Count this process's peak anew, where Linux lets it; elsewhere it is that of all trials so
    far.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int:
    """Bytes: Linux counts in kilobytes, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
