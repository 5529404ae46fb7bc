"""Many clients of one architecture as one program.

Every tensor has a leading client axis, and is called a stack. Clients are ordered by size,
largest first, so that those with batches of one size are neighbours at any moment: each call
works on a slice of the stack, in place, and no batch is padded.

From top to bottom: which calls make up an epoch, what a net gives on stacked inputs, its
gradients, and how stacks are made, filled and sliced.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from attar.blocks.execution import (
    channels_last,
    has_compiled_blocks,
    prefers_streams,
    run_in_streams,
)
from attar.nets.cost import example_inputs
from attar.nets.registry import Shape
from attar.training.optimisers import Tensors

StackMode = Literal["auto", "always", "never"]

# What the activations for one backward pass may take. A constant, not the free memory of the day:
# how clients are cut into calls changes rounding, and a run that is resumed elsewhere must give the
# same bits.
ACTIVATION_BYTES = 4 * 2**30


# --- the calls of an epoch ------------------------------------------------------------------------


class Call(NamedTuple):
    """One gradient step of neighbouring clients.

    Attributes:
        first: The first client, by its place in the stack.
        last: The place after the last client.
        start: Where the images of this step begin in each client's epoch.
        number: How many images of each client.
    """

    first: int
    last: int
    start: int
    number: int


def plan_calls(sizes: Sequence[int], batch_size: int, width: int) -> Iterator[Call]:
    """Yield the calls of one epoch, in which every image of every client comes once.

    Args:
        sizes: Each client's number of images, largest first.
        batch_size: Images of each client in one call; the last batch of a client may be smaller.
        width: The most clients in one call.
    """
    if width == 1:  # one client after the other keeps its weights in the cache
        for client, size in enumerate(sizes):
            for start in range(0, size, batch_size):
                yield Call(client, client + 1, start, min(batch_size, size - start))
        return
    for start in range(0, max(sizes), batch_size):
        active = [client for client, size in enumerate(sizes) if size > start]
        by_batch = groupby(active, key=lambda client: min(batch_size, sizes[client] - start))
        for number, group in by_batch:
            members = list(group)
            end = members[-1] + 1
            for first in range(members[0], end, width):
                yield Call(first, min(first + width, end), start, number)


def clients_per_call(
    mode: StackMode,
    net: nn.Module,
    clients: int,
    batch_size: int,
    shape: Shape,
    device: str,
    memory: int = ACTIVATION_BYTES,
) -> int:
    """Return how many clients share a call.

    "auto" stacks on an accelerator, where one program saves launches. On a CPU it stacks nets
    without convolutions: measured over whole epochs with batches of 128, 10 mlp train 1.2 times
    as fast stacked as one by one, but 10 lenet5 only 0.7 and 5 cnn5 0.8 times as fast, since
    convolutions with many weights run there as slower grouped ones.

    Args:
        mode: The setting ``stack`` of local training.
        net: The architecture, on the CPU.
        clients: How many clients train.
        batch_size: Images of each client in one call.
        shape: Of an image as the net sees it.
        device: Where they train.
        memory: Bytes that the activations of one call may take.
    """
    convolves = any(param.ndim > 2 for param in net.parameters())
    if mode == "never" or (mode == "auto" and device.startswith("cpu") and convolves):
        return 1
    return max(1, min(clients, memory // (batch_size * activation_bytes(net, shape))))


def activation_bytes(net: nn.Module, shape: Shape) -> int:
    """Return the bytes that autograd stores of one image for the backward pass.

    They are measured by one pass with two images, on the CPU.

    Args:
        net: The architecture, on the CPU.
        shape: Of an image as the net sees it.
    """
    weights = {param.untyped_storage().data_ptr() for param in net.parameters()}
    sizes: dict[int, int] = {}  # by address: a tensor saved by two layers counts once

    def measure(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with (
        torch.random.fork_rng(devices=[]),
        torch.autograd.graph.saved_tensors_hooks(measure, lambda tensor: tensor),
    ):
        functional_call(net, buffers, example_inputs(net, shape, batch=2))
    return max(1, sum(sizes.values()) // 2)


# --- what a net gives -----------------------------------------------------------------------------


def forward(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    """Return what K stacked clients give on their own inputs.

    A single client, compiled nets and, on a GPU, large nets run one by one, the others stacked.

    Args:
        net: Lends its code; its own weights are not used.
        params: Stacked parameters (K, ...), by name.
        buffers: Stacked buffers (K, ...); running statistics are updated in place.
        inputs: (K, B, ...) each, images first.

    Returns:
        What the net returns, with the client axis in front: of a classifier logits (K, B, C).
    """
    if runs_one_by_one(net, inputs[0]):
        return forward_one_by_one(net, params, buffers, *inputs)
    return forward_stacked(net, params, buffers, *inputs)


def runs_one_by_one(net: nn.Module, images: Tensor) -> bool:
    """Return whether ``forward`` calls the net client by client on images (K, B, ...)."""
    channels, height, width = images.shape[2:]
    return (
        len(images) == 1
        or has_compiled_blocks(net)
        or prefers_streams(net, (channels, height, width), images.device)
    )


def forward_stacked(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    """Do what ``forward`` does by ``vmap``, as one program for all clients."""
    call = functools.partial(_call_net, net)
    return vmap(call, randomness="different")(dict(params), dict(buffers), *inputs)


def forward_one_by_one(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    """Do what ``forward`` does client by client; on a GPU they run at the same time, in streams."""
    rows = _unstack(params, len(inputs[0]))
    outputs = run_in_streams(client_calls(net, rows, buffers, *inputs), inputs[0].device)
    if isinstance(outputs[0], tuple):
        return tuple(map(torch.stack, zip(*outputs, strict=True)))
    return torch.stack(outputs)


def client_calls(
    net: nn.Module, params: Sequence[Tensors], buffers: Tensors, *inputs: Tensor
) -> list[Callable[[], Any]]:
    """Return a call of the net for each client, for ``run_in_streams``.

    Args:
        net: Lends its code.
        params: Each client's parameters.
        buffers: Stacked buffers (K, ...); running statistics are updated in place.
        inputs: (K, B, ...) each, images first.
    """
    own_inputs = zip(*(value.unbind() for value in inputs), strict=True)
    rows = zip(params, _unstack(buffers, len(params)), own_inputs, strict=True)
    return [
        functools.partial(_call_net_in_stream, net, own_params, own_buffers, *values)
        for own_params, own_buffers, values in rows
    ]


def lay_out_clients(params: Tensors, *, for_cuda: bool) -> list[dict[str, Tensor]]:
    """Return each client's parameters, laid out as cuDNN wants them.

    On CUDA weights of convolutions have their channels last and the precision of autocast. They
    are converted in one copy for all clients, where a convolution would do it for each client and
    in each pass. Keep what is returned until its backward pass is over: the copy belongs to the
    stream of the caller (see ``run_in_streams``).

    Args:
        params: Stacked parameters (K, ...), by name.
        for_cuda: Whether to convert; else they are views.
    """
    clients = len(next(iter(params.values())))
    rows = {
        name: _lay_out(value) if for_cuda and value.ndim == 5 else value.unbind()
        for name, value in params.items()
    }
    return [{name: values[client] for name, values in rows.items()} for client in range(clients)]


def _lay_out(weights: Tensor) -> list[Tensor]:
    """Return each client's weights (O, I, H, W) of a convolution, of a stack of them."""
    kind = weights.device.type
    autocast = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if autocast else weights.dtype
    last = weights.permute(0, 1, 3, 4, 2).to(dtype, memory_format=torch.contiguous_format)
    # where the precision is the same, ``to`` does not change the layout
    return [row.permute(0, 3, 1, 2) for row in last.contiguous().unbind()]


def _call_net(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    return functional_call(net, {**params, **buffers}, inputs)


def _call_net_in_stream(net: nn.Module, params: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
    """Call the net on inputs that are laid out here, in its own stream.

    So what the stream uses until its backward pass is also freed there.
    """
    return _call_net(net, params, buffers, *map(channels_last, inputs))


def _unstack(tensors: Tensors, clients: int) -> list[dict[str, Tensor]]:
    """Return each client's tensors as views."""
    # unbind, since its gradient is one stack, not K padded ones
    rows = {name: value.unbind() for name, value in tensors.items()}
    return [{name: values[client] for name, values in rows.items()} for client in range(clients)]


# --- gradients ------------------------------------------------------------------------------------


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return each client's mean cross entropy, (K,), of logits (K, B, C) and labels (K, B)."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape).mean(1)


def cross_entropy_gradients(
    net: nn.Module, params: Tensors, buffers: Tensors, images: Tensor, labels: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return each client's mean cross entropy (K,) and the gradients of its own parameters.

    Args:
        net: Lends its code; its own weights are not used.
        params: Stacked parameters (K, ...), by name.
        buffers: Stacked buffers (K, ...); running statistics are updated in place.
        images: (K, B, ...), each client's own.
        labels: (K, B).
    """

    def loss(leaves: Tensors) -> Tensor:
        return mean_cross_entropy(forward(net, leaves, buffers, images), labels)

    return differentiate(loss, params)


def differentiate(
    loss: Callable[[Tensors], Tensor], params: Tensors
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the losses of K clients and the gradients of each client's own parameters.

    No client's loss depends on another's parameters, so the gradient of the summed losses is
    each client's own.

    Args:
        loss: Gives the losses (K,) of stacked parameters.
        params: Stacked parameters (K, ...), by name.

    Returns:
        The losses (K,), and the gradients by name; a parameter that the loss does not depend on
        has none.
    """
    leaves = {name: param.detach().requires_grad_() for name, param in params.items()}
    losses = loss(leaves)
    grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    by_name = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}
    return losses.detach(), by_name


# --- stacks of tensors ----------------------------------------------------------------------------


def stack_tensors(states: Sequence[Tensors], device: str) -> dict[str, Tensor]:
    """Return one tensor (K, ...) for each name, on the device, in memory of its own."""
    return {name: _stack_rows([state[name] for state in states], device) for name in states[0]}


def _stack_rows(values: Sequence[Tensor], device: str) -> Tensor:
    first = values[0].detach()
    if all(value is values[0] for value in values):  # shared by all: copied to the device once
        rows = first.to(device).expand(len(values), *first.shape)
        return rows.clone(memory_format=torch.contiguous_format)
    return torch.stack([value.detach().to(device) for value in values])


@torch.no_grad()
def refill_stack(stack: Mapping[str, Tensor], states: Sequence[Tensors]) -> None:
    """Put other clients' tensors into the first rows of a stack.

    This happens in place, since recorded steps know the stack by its address.
    """
    for name, rows in stack.items():
        if all(state[name] is states[0][name] for state in states):
            rows[: len(states)].copy_(states[0][name])
        else:
            for row, state in zip(rows, states, strict=False):
                row.copy_(state[name])


def slice_stack(tensors: Tensors, call: Call) -> dict[str, Tensor]:
    """Return views of the clients of one call."""
    return {name: value[call.first : call.last] for name, value in tensors.items()}


class SliceCache:
    """``slice_stack`` that remembers its views.

    A stack that stays in its place is sliced in few ways, thousands of times. A stack is known by
    the dict that holds it. The cache keeps that dict alive, so that no other dict can have its id.
    """

    def __init__(self) -> None:
        self._slices: dict[tuple[int, int, int], tuple[Tensors, dict[str, Tensor]]] = {}

    def __call__(self, tensors: Tensors, call: Call) -> dict[str, Tensor]:
        """Return the views of the clients of one call."""
        key = (id(tensors), call.first, call.last)
        if key not in self._slices:
            self._slices[key] = (tensors, slice_stack(tensors, call))
        return self._slices[key][1]
