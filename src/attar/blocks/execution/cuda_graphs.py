"""Steps that are recorded once and replayed: on CUDA a step is then one launch instead of hundreds.

A recording repeats the same operations at the same memory addresses. So what a step reads is either
one of its ``inputs``, which are copied to the addresses of the recording, or it belongs to one of
the ``captured`` objects (modules, the pool, a state) and only ever changes in place. The outputs of
a step are overwritten by the next replay: clone what must live longer.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from attar.blocks.execution.precision import autotune_cudnn

Outputs = tuple[Any, ...]
"""The tensors that a piece of work returns; None in place of a missing gradient."""

Work = Callable[..., Outputs]
Recorder = Callable[[Work, Sequence[Tensor]], Work]

MAX_RECORDINGS = 64  # of one runner; each of them keeps its outputs in memory


class Runner(Protocol):
    """How pieces of work run on a device."""

    def __call__(
        self, name: str, work: Work, inputs: Sequence[Tensor], captured: Sequence[object]
    ) -> Outputs:
        """Run ``work(*inputs)``.

        Args:
            name: identifies the work together with ``captured`` and the shapes of the inputs.
            work: from the inputs to tensors.
            inputs: tensors that may be new ones in every call.
            captured: everything else that the work reads or writes.

        Returns:
            The outputs of the work, valid until the same work runs again.
        """


def eager(name: str, work: Work, inputs: Sequence[Tensor], captured: Sequence[object]) -> Outputs:
    """Run the work at once, without a recording: the ``Runner`` for CPUs."""
    return work(*inputs)


class GraphRunner:
    """A ``Runner`` that runs a piece of work eagerly once, then records it, then replays it.

    The first, eager run lets libraries initialise and choose their kernels. Inputs of another shape
    and other captured objects are another recording. After ``MAX_RECORDINGS`` of them, further work
    runs eagerly.

    Args:
        record: from work and example inputs to a function that replays it.
        autotune: search for the fastest kernels; not worth its time for work of many shapes.
    """

    def __init__(self, record: Recorder, *, autotune: bool = True) -> None:
        self._record = record
        self._search: Callable[[], AbstractContextManager[None]] = (
            autotune_cudnn if autotune else nullcontext
        )
        self._recordings: dict[object, Work | None] = {}
        self._captured: list[Sequence[object]] = []  # kept alive: recordings have their addresses

    @property
    def recordings(self) -> int:
        """How many pieces of work have been recorded."""
        return sum(recording is not None for recording in self._recordings.values())

    def __call__(
        self, name: str, work: Work, inputs: Sequence[Tensor], captured: Sequence[object]
    ) -> Outputs:
        """Run, record or replay ``work``; see ``Runner``."""
        key = (name, *map(id, captured), *((tuple(value.shape), value.dtype) for value in inputs))
        if key not in self._recordings:
            if len(self._recordings) == MAX_RECORDINGS:
                return work(*inputs)
            self._recordings[key] = None
            self._captured.append(captured)
            with self._search():
                return work(*inputs)
        recording = self._recordings[key]
        if recording is None:
            with self._search():  # else the kernels that the first run found are not looked up
                recording = self._recordings[key] = self._record(work, inputs)
        return recording(*inputs)


def runner_for(device: str, *, autotune: bool = True) -> Runner:
    """The fastest runner of a device: CUDA graphs on CUDA, ``eager`` elsewhere.

    Args:
        device: such as "cuda".
        autotune: see ``GraphRunner``.
    """
    if torch.device(device).type != "cuda":
        return eager
    return GraphRunner(cuda_graphs(), autotune=autotune)


def cuda_graphs() -> Recorder:
    """A recorder that makes CUDA graphs, which share one memory pool and so are replayed in turn.

    Nothing is executed while a graph is recorded.
    """
    memory = torch.cuda.graph_pool_handle()

    def record(work: Work, inputs: Sequence[Tensor]) -> Work:
        placeholders = [value.detach().clone() for value in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(placeholders[0].device), torch.cuda.graph(graph, pool=memory):
            outputs = work(*placeholders)

        def replay(*values: Tensor) -> Outputs:
            for placeholder, value in zip(placeholders, values, strict=True):
                placeholder.copy_(value)
            graph.replay()
            return outputs

        return replay

    return record


def gradient_step(
    run: Runner,
    name: str,
    optimiser: Optimizer,
    loss_of: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    captured: Sequence[object],
    clip: float | None = None,
) -> Tensor:
    """Take one step of ``optimiser`` down the gradient of ``loss_of(*inputs)``.

    Args:
        run: the runner.
        name: identifies the step for the runner.
        optimiser: holds the weights that are changed.
        loss_of: from the inputs to a scalar.
        inputs: tensors that may be new ones in every call.
        captured: everything else that the loss reads.
        clip: largest norm of the gradient; None: no limit.

    Returns:
        The loss before the step.
    """
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]

    def work(*values: Tensor) -> Outputs:
        loss = loss_of(*values)
        return (loss.detach(), *torch.autograd.grad(loss, weights, allow_unused=True))

    loss, *gradients = run(name, work, inputs, captured)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    if clip is not None:
        clip_grad_norm_(weights, clip)
    optimiser.step()
    return loss.clone()  # type: ignore[no-any-return]
