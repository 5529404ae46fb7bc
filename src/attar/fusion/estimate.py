"""What a fusion will cost on this machine: a few of its real steps, timed and scaled by the work
that its phases announce.
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
from attar.fusion.execute import start_prepared
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
# and of large nets as many as make this many products on their way through all clients. A GPU
# would not be busy with so few.
FEW_IMAGES, FEW_PRODUCTS = 16, 10_000_000_000
# Settings of methods that make the images of their batches.
MAKES_IMAGES = {"generator_steps", "inversion_steps"}


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to cost.

    Attributes:
        seconds: For the whole run.
        memory: Bytes; of the GPU where there is one.
        rates: Seconds for a unit of each phase's work.
    """

    seconds: float
    memory: int
    rates: tuple[float, ...] = ()


def estimate(method: AnyMethod, uploads: Sequence[Upload], server: Server) -> Estimate:
    """Estimate what a fusion costs on this machine.

    The first steps of every phase of a short trial are timed; the ``work`` that the method's own
    phases announce says how much more there is.

    Args:
        method: With its settings.
        uploads: What it would fuse; it must be able to.
        server: With the device on which it would run.
    """
    cuda = torch.device(server.device).type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(server.device)
    else:
        _reset_peak_memory()
    images = FEW_IMAGES if cuda else affordable_images(uploads)
    trial = shorten(method, images)
    scale = 1.0
    if not cuda:
        trial, scale = shrink_batches(trial, images)
    begun = time.perf_counter()
    run = start_prepared(trial, trial.prepare(uploads, server))
    seconds = time.perf_counter() - begun
    memory = _peak_memory()
    context = run.context
    if SHARED_OUT & flatten(method).keys():
        context = method.prepare(uploads, server)
    rates = []
    for short, whole in zip(run.phases, method.phases(context), strict=True):
        run.state.step = 0
        work = sum(whole.work(step) for step in range(whole.steps))
        rates.append(scale * _seconds_per_work(short, run.state, server))
        seconds += rates[-1] * work
        run.state.phase += 1
    if cuda:
        return Estimate(seconds, torch.cuda.max_memory_allocated(server.device), tuple(rates))
    # What the steps take grows with their images.
    memory += round(scale * max(0, _peak_memory() - memory))
    return Estimate(seconds, memory, tuple(rates))


def shorten(method: AnyMethod, images: int = FEW_IMAGES) -> AnyMethod:
    """The method with less inside each step. Its ``work`` counts that, so the scale stays right.

    Args:
        method: With its settings.
        images: In a batch of the trial, at most ``FEW_IMAGES``.
    """
    bounds = {
        name: number * images // FEW_IMAGES if name in SHARED_OUT else number
        for name, number in INNER.items()
    }
    fewer = {
        name: min(bounds[name], value) for name, value in flatten(method).items() if name in INNER
    }
    return replace(method, **fewer)  # type: ignore[type-var]


def affordable_images(uploads: Sequence[Upload]) -> int:
    """Images in a batch of a trial on a CPU: fewer, the larger the clients' nets are."""
    parts = [upload.parts["classifier"] for upload in uploads if "classifier" in upload.parts]
    products = sum(
        _products(part.spec, part.preprocess.input_shape, len(part.classes)) for part in parts
    )
    return max(2, min(FEW_IMAGES, FEW_PRODUCTS // max(1, products)))


@cache  # called for every method and every client
def _products(spec: ModelSpec, shape: Shape, classes: int) -> int:
    return multiply_accumulates(spec.skeleton(shape, classes), shape)


def shrink_batches(method: AnyMethod, images: int) -> tuple[AnyMethod, float]:
    """Give a method that makes its images batch by batch smaller batches.

    Returns:
        The method, and how many times the work of a small batch its own one is.
    """
    if not MAKES_IMAGES & flatten(method).keys():
        return method, 1.0  # an epoch over given images takes as long with small batches
    number = flatten(method)["batch_size"]
    smaller = replace(method, batch_size=min(images, number))  # type: ignore[type-var]
    return smaller, max(1.0, number / images)


def _seconds_per_work(phase: Phase, state: State, server: Server) -> float:
    """Seconds for a unit of a phase's ``work``: the mean of a few steps."""
    driver = Driver(server.seed, server.device, server.precision)
    long_step = LONG_STEP.get(torch.device(server.device).type, LONG_STEP["cuda"])
    begun = time.perf_counter()
    timed_work = 0.0
    for step in range(min(TIMED_STEPS, phase.steps)):
        if step > 0 and time.perf_counter() - begun > long_step:
            break
        if step == 1:  # the first step warms up
            begun = time.perf_counter()
            timed_work = 0.0
        for value in driver.take_step(phase, state).values():
            float(value)  # waits for the device
        timed_work += phase.work(step)
        state.step += 1
    return (time.perf_counter() - begun) / timed_work if timed_work else 0.0


def _reset_peak_memory() -> None:
    """Measure this process's peak anew, where Linux allows it; elsewhere it is that of all trials
    so far.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int:
    """Bytes: Linux counts in kilobytes, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
