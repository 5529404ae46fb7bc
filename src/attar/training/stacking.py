"""Many clients of one architecture as one program.

Everything carries a leading client axis. Clients are ordered by size, largest first, so that
those who share a batch size at any moment are neighbours: each call works on a slice of the
stack, in place, and nothing is padded or wasted.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from attar.blocks.execution import has_compiled_blocks, heavy_on, laid_out, side_by_side
from attar.nets.cost import example_inputs
from attar.nets.registry import Shape
from attar.training.optimisers import Tensors

Stack = Literal["auto", "always", "never"]

# What the activations kept for one backward pass may take. A constant, not the free memory of the
# day: how clients are
# cut into stacks changes rounding, and a run that goes on elsewhere must go on with the same bits.
ACTIVATION_BYTES = 4 * 2**30


class Call(NamedTuple):
    """One gradient step of clients ``first`` to ``last - 1``, each on ``number`` images from
    position ``start``.
    """

    first: int
    last: int
    start: int
    number: int


def plan(sizes: Sequence[int], batch_size: int, width: int) -> Iterator[Call]:
    """The calls of one epoch for clients sorted by size, largest first, at most ``width`` of
    them in one call.
    """
    if width == 1:  # one client after the other keeps its weights in the cache
        for client, size in enumerate(sizes):
            for start in range(0, size, batch_size):
                yield Call(client, client + 1, start, min(batch_size, size - start))
        return
    for start in range(0, max(sizes), batch_size):
        active = [client for client, size in enumerate(sizes) if size > start]
        for number, group in groupby(
            active, key=lambda client: min(batch_size, sizes[client] - start)
        ):
            members = list(group)
            for first in range(members[0], members[-1] + 1, width):
                yield Call(first, min(first + width, members[-1] + 1), start, number)


def width(
    stack: Stack, net: nn.Module, clients: int, batch_size: int, shape: Shape, device: str
) -> int:
    """How many clients share a call.

    "auto" stacks on an accelerator, where one program saves launches. On a CPU it stacks nets
    without convolutions: measured over whole epochs with batches of 128, 10 mlp train 1.2 times
    as fast stacked as in the loop, but 10 lenet5 only 0.7 and 5 cnn5 0.8 times as fast, since
    convolutions with many weights run there as slower grouped ones.
    """
    convolves = any(param.ndim > 2 for param in net.parameters())
    if stack == "never" or (stack == "auto" and device.startswith("cpu") and convolves):
        return 1
    return max(1, min(clients, ACTIVATION_BYTES // (batch_size * activation_bytes(net, shape))))


def activation_bytes(net: nn.Module, shape: Shape) -> int:
    """What autograd keeps of one image on its way through ``net`` (on the CPU), found by one
    pass with two of them.
    """
    weights = {param.untyped_storage().data_ptr() for param in net.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()  # a tensor kept by two layers counts once
        return tensor

    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with (
        torch.random.fork_rng(devices=[]),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        functional_call(net, buffers, example_inputs(net, shape, batch=2))
    return max(1, sum(kept.values()) // 2)


def gradients(
    net: nn.Module, params: Tensors, buffers: Tensors, images: Tensor, labels: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Each client's mean cross entropy (K,) on its images (K, B, ...), and the gradients of its
    own parameters.

    The clients do not touch each other, so the gradient of the summed losses is each client's
    own. ``buffers`` (running statistics) are moved on in place. A single client runs without
    vmap.
    """

    def cross_entropy(leaves: Tensors) -> Tensor:
        logits: Tensor = forward(net, leaves, buffers, images)
        return (
            F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            .view(labels.shape)
            .mean(1)
        )

    return gradients_of(cross_entropy, params)


def gradients_of(
    loss: Callable[[Tensors], Tensor], params: Tensors
) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses (K,) of clients that do not touch each other, and the gradients of each one's
    own parameters.
    """
    leaves = {name: param.detach().requires_grad_() for name, param in params.items()}
    losses = loss(leaves)
    found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    return losses.detach(), {
        name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None
    }


def forward(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    """What K stacked clients give on their own inputs (K, B, ...): a classifier logits (K, B, C).

    One client, compiled nets and, on a GPU, large ones run without vmap (lanes.py).
    """
    one, images = functools.partial(_call, net), inputs[0]
    if (
        len(images) == 1
        or has_compiled_blocks(net)
        or heavy_on(net, _shape_of(images), images.device)
    ):
        rows = (
            _rows_of(params, len(images)),
            _rows_of(buffers, len(images)),
            *(value.unbind() for value in inputs),
        )
        clients = zip(*rows, strict=True)
        outputs = side_by_side(
            [functools.partial(_apart, net, *client) for client in clients], images.device
        )
        several = isinstance(outputs[0], tuple)
        return (
            tuple(map(torch.stack, zip(*outputs, strict=True))) if several else torch.stack(outputs)
        )
    return vmap(one, randomness="different")(dict(params), dict(buffers), *inputs)


def _call(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    return functional_call(net, {**params, **buffers}, inputs)


def _apart(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    """Beside others: what a lane uses until its way back is made there, so that it is given back
    there, too.
    """
    return _call(net, params, buffers, *map(laid_out, inputs))


def _shape_of(images: Tensor) -> Shape:
    channels, height, width = images.shape[2:]
    return channels, height, width


def _rows_of(tensors: Tensors, clients: int) -> list[dict[str, Tensor]]:
    """Each client's own, as views."""
    rows = {
        name: value.unbind() for name, value in tensors.items()
    }  # whose gradient is one stack, not K padded ones
    return [{name: values[client] for name, values in rows.items()} for client in range(clients)]


def stacked(states: Sequence[Tensors], device: str) -> dict[str, Tensor]:
    """One tensor (K, ...) for each name, on the device, sharing memory with none of the states."""
    return {name: _rows([state[name] for state in states], device) for name in states[0]}


def _rows(values: Sequence[Tensor], device: str) -> Tensor:
    first = values[0].detach()
    if all(
        value is values[0] for value in values
    ):  # one model for all of them crosses to the device once
        return (
            first.to(device)
            .expand(len(values), *first.shape)
            .clone(memory_format=torch.contiguous_format)
        )
    return torch.stack([value.detach().to(device) for value in values])


@torch.no_grad()
def refilled(stack: Mapping[str, Tensor], states: Sequence[Tensors]) -> None:
    """Put other clients' tensors into the first rows of a stack, in place: recorded steps know
    where it lies.
    """
    for name, rows in stack.items():
        if all(state[name] is states[0][name] for state in states):
            rows[: len(states)].copy_(states[0][name])
        else:
            for row, state in zip(rows, states, strict=False):
                row.copy_(state[name])


def sliced(tensors: Tensors, call: Call) -> dict[str, Tensor]:
    """Views of the clients of one call."""
    return {name: value[call.first : call.last] for name, value in tensors.items()}


class Views:
    """``sliced``, remembered: a stack that stays where it is is cut in few ways, thousands of times.

    It knows a stack by the dict that holds it, which it keeps, so that no other dict can be
    taken for it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], tuple[Tensors, dict[str, Tensor]]] = {}

    def __call__(self, tensors: Tensors, call: Call) -> dict[str, Tensor]:
        key = (id(tensors), call.first, call.last)
        if key not in self._known:
            self._known[key] = (tensors, sliced(tensors, call))
        return self._known[key][1]
