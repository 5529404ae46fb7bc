"""Steps that are recorded once and played back: on CUDA a step is then one launch instead of
hundreds.

A recording repeats the same operations at the same addresses. So what a step reads is either one
of its ``inputs``, copied to where the recording expects them, or it lies in one of the
``owners`` (modules, the pool, a state) and is only ever changed in place. What it returns is
lent until the same step is played again: who keeps it copies it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from attar.blocks.execution.precision import searching

Outputs = tuple[Tensor | None, ...]
Work = Callable[..., Outputs]
Recorder = Callable[[Work, Sequence[Tensor]], Work]

MOST = 64  # recordings of one run, each of which holds what it returns


class Run(Protocol):
    """Does the work that ``name`` stands for; the owners are everything it reads or writes
    beside its inputs.
    """

    def __call__(
        self, name: str, work: Work, inputs: Sequence[Tensor], owners: Sequence[object]
    ) -> Outputs: ...


def at_once(name: str, work: Work, inputs: Sequence[Tensor], owners: Sequence[object]) -> Outputs:
    """No recording: the slow twin, and the way on a CPU."""
    return work(*inputs)


class Replay:
    """A ``Run`` that does a piece of work plainly the first time, records it the second time and
    plays it back from then on.

    The first time is a real one: libraries set themselves up, kernels are chosen, and nothing
    happens twice. Another shape of the inputs or another owner is another recording; after
    ``MOST`` of them the rest is done plainly.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._recordings: dict[object, Work | None] = {}
        self._owners: list[Sequence[object]] = []  # kept alive: a recording has their addresses

    def __call__(
        self, name: str, work: Work, inputs: Sequence[Tensor], owners: Sequence[object]
    ) -> Outputs:
        key = (name, *map(id, owners), *((tuple(value.shape), value.dtype) for value in inputs))
        if key not in self._recordings:
            if len(self._recordings) == MOST:
                return work(*inputs)
            self._recordings[key] = None
            self._owners.append(owners)
            with searching():
                return work(*inputs)
        recording = self._recordings[key]
        if recording is None:
            with searching():  # or what the first time has found would not be looked up
                recording = self._recordings[key] = self._record(work, inputs)
        return recording(*inputs)


def run_on(device: str) -> Run:
    """How work runs best on ``device``."""
    return Replay(cuda_graphs()) if torch.device(device).type == "cuda" else at_once


def cuda_graphs() -> Recorder:
    """Records work as CUDA graphs (nothing is executed meanwhile). Played one at a time, they
    share the memory they work in.
    """
    memory = torch.cuda.graph_pool_handle()

    def record(work: Work, inputs: Sequence[Tensor]) -> Work:
        held = [value.detach().clone() for value in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(held[0].device), torch.cuda.graph(graph, pool=memory):
            outputs = work(*held)

        def play(*values: Tensor) -> Outputs:
            for place, value in zip(held, values, strict=True):
                place.copy_(value)
            graph.replay()
            return outputs

        return play

    return record


def gradient_step(
    run: Run,
    name: str,
    optimiser: Optimizer,
    loss_of: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    owners: Sequence[object],
    clip: float | None = None,
) -> Tensor:
    """One step of ``optimiser`` down the gradient of ``loss_of(*inputs)``, whose norm may be
    clipped; the loss before it.
    """
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]

    def work(*values: Tensor) -> Outputs:
        loss = loss_of(*values)
        return (loss.detach(), *torch.autograd.grad(loss, weights, allow_unused=True))

    loss, *gradients = run(name, work, inputs, owners)
    assert loss is not None
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    if clip is not None:
        clip_grad_norm_(weights, clip)
    optimiser.step()
    return loss.clone()
