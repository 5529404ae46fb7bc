"""Nets of one kind in parallel CUDA streams, where stacking them is slower.

A stack of convolutions with different weights is a grouped convolution, for which cuDNN has slow
kernels only. Small nets are stacked all the same: there launches cost more than arithmetic.
Measured on an H200 with ten cnn5 (30 million products an image), forward and backward on 128
images: 2.8 ms stacked, 2.2 ms in streams; a local epoch 152 and 87 ms. lenet5 and cnn-mho
(0.4 million) are stacked; five clients with cnn-mho take 22 ms either way. The best threshold
between these sizes was not measured.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attar.nets.cost import convolution_products
from attar.nets.registry import Shape

T = TypeVar("T")

# Products in the convolutions of one image from which on nets are not stacked.
MIN_PRODUCTS = 8_000_000
STREAMS = 4  # that share a GPU unless a caller has measured otherwise

_products: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def prefers_streams(net: nn.Module, shape: Shape, device: torch.device) -> bool:
    """Whether a net's convolutions are large for the device.

    Such nets run faster in streams than stacked, and with channels last in memory. The result is
    cached: it is asked for at every step.

    Args:
        net: its layers are enough, weights are not read.
        shape: of one input image.
        device: where it runs; the answer is no unless it is CUDA.
    """
    if device.type != "cuda":
        return False
    if net not in _products:
        _products[net] = convolution_products(net, shape)
    return _products[net] >= MIN_PRODUCTS


def run_in_streams(
    calls: Sequence[Callable[[], T]], device: torch.device, at_once: int = STREAMS
) -> list[T]:
    """Run the calls and return their results in order; on CUDA in a few parallel streams.

    One stream alone leaves much of the GPU idle. Gradients take the same streams back. No result
    is used before all calls are done, so memory that one stream frees is never written to while
    another still reads it. This holds for tensors made *inside* a call: a copy that was made
    before, and is kept for the backward pass alone, belongs to another stream, which may reuse its
    memory too early.

    Args:
        calls: what to run.
        device: where; anywhere but on CUDA one call runs after the other.
        at_once: how many streams, at most one for each call.
    """
    if device.type != "cuda" or len(calls) == 1:
        return [call() for call in calls]
    current, results = torch.cuda.current_stream(device), []
    streams = _streams(device, at_once)[: len(calls)]
    for stream in streams:
        stream.wait_stream(current)
    for number, call in enumerate(calls):
        with torch.cuda.stream(streams[number % len(streams)]):
            results.append(call())
    for stream in streams:
        current.wait_stream(stream)
    return results


def channels_last(images: Tensor) -> Tensor:
    """Images with channels last in memory on CUDA, unchanged elsewhere.

    cuDNN has no fast kernel for three channels that lie apart.
    """
    if images.is_cuda and images.dim() == 4:
        return images.contiguous(memory_format=torch.channels_last)
    return images


def contiguous(images: Tensor) -> Tensor:
    """The same images with the strides of their shape: vmap allows cuDNN's BatchNorm no other.

    ``Tensor.contiguous`` is not enough for grey images: they count as channels-last, too, and cuDNN
    goes by the strides.
    """
    return images.flatten().view(images.shape)


@cache
def _streams(device: torch.device, number: int) -> list[torch.cuda.Stream]:
    # The gradients of a net's weights may come from several streams. Autograd waits for all of
    # them and need not warn.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    return [torch.cuda.Stream(device) for _ in range(number)]
