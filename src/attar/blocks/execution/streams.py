"""Nets of one kind side by side on a GPU, where stacking them does not pay.

A stack of convolutions with weights of their own is a grouped convolution, for which cuDNN has
slow kernels only. Small nets are stacked all the same: there launches cost more than arithmetic.
Ten cnn5 (30 million products an image) on an H200, forth and back with 128 images: 2.8 ms
stacked, 2.2 ms each by itself; a local epoch of theirs 152 and 87 ms. lenet5 and cnn-mho (0.4
million) are stacked; of the latter, five clients take 22 ms either way. Where between them the
border lies was not measured.
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

HEAVY = 8_000_000  # products in the convolutions of one image from which on nets are not stacked
LANES = 4  # streams that share a GPU

_products: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def heavy_on(net: nn.Module, shape: Shape, device: torch.device) -> bool:
    """Whether a net's convolutions are large for ``device``: its code is enough. Asked at every
    step, counted once.

    Such nets run faster side by side than stacked, and with channels last in memory.
    """
    if device.type != "cuda":
        return False
    if net not in _products:
        _products[net] = convolution_products(net, shape)
    return _products[net] >= HEAVY


def side_by_side(calls: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """What the calls give, in their order. On CUDA they share a few streams: one alone leaves
    much of the GPU idle.

    Gradients take the same streams back. Nothing that a call makes is used before all are done,
    so memory that one stream gives back is never written to while another still reads it. This
    holds for what is made *inside* a call: a copy that was made before and is kept for the way
    back alone belongs to another stream, which may use its memory again too early.
    """
    if device.type != "cuda" or len(calls) == 1:
        return [call() for call in calls]
    here, lanes, answers = torch.cuda.current_stream(device), _lanes(device), []
    for lane in lanes:
        lane.wait_stream(here)
    for number, call in enumerate(calls):
        with torch.cuda.stream(lanes[number % LANES]):
            answers.append(call())
    for lane in lanes:
        here.wait_stream(lane)
    return answers


def laid_out(images: Tensor) -> Tensor:
    """Images as convolutions on their device want them: cuDNN has no fast kernel for three
    channels that lie apart.
    """
    return (
        images.contiguous(memory_format=torch.channels_last)
        if images.is_cuda and images.dim() == 4
        else images
    )


def plainly(images: Tensor) -> Tensor:
    """The same images with the strides of their shape and no others: under vmap, cuDNN's
    BatchNorm cannot ask for another layout.

    Of grey images ``contiguous`` is not enough: they may be called channels-last as well, and
    cuDNN goes by the strides.
    """
    return images.flatten().view(images.shape)


@cache
def _lanes(device: torch.device) -> list[torch.cuda.Stream]:
    # One net called in several lanes has its weights' gradients come from several streams: autograd
    # waits for all, and need not warn.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    return [torch.cuda.Stream(device) for _ in range(LANES)]
