"""What one image costs: multiply-accumulates of a forward pass, and memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attar.nets.cvae import CVAE, Decoder
from attar.nets.graph import GraphNet
from attar.nets.registry import Shape
from attar.nets.spec import ModelSpec


@dataclass(frozen=True)
class ImageCost:
    """What one image costs in a net.

    Attributes:
        products: multiply-accumulates of a forward pass.
        forward: bytes of a forward pass that keeps nothing.
        kept: bytes of a forward pass that keeps what a gradient needs.
        weights: bytes of the net's weights, which are there once for all images.
    """

    products: int
    forward: int
    kept: int
    weights: int = 0


def example_inputs(net: nn.Module, shape: Shape, batch: int = 1) -> tuple[Tensor, ...]:
    """Zeros that a net can be called with, on the device of its parameters.

    Args:
        net: a classifier, a CVAE (images, labels, noise) or a decoder (noise, labels).
        shape: of images, (C, H, W).
        batch: how many.
    """
    parameter = next(net.parameters())
    decoder = net.decoder if isinstance(net, CVAE) else net
    if not isinstance(decoder, Decoder):
        return (parameter.new_zeros(batch, *shape),)
    noise = parameter.new_zeros(batch, decoder.latent)
    labels = parameter.new_zeros(batch, decoder.num_classes)
    if isinstance(net, Decoder):
        return noise, labels
    return parameter.new_zeros(batch, *shape), labels, noise


def multiply_accumulates(net: nn.Module, shape: Shape, *, inserted_zeros: bool = False) -> int:
    """Count the multiply-accumulates of one image: convolutions, linear layers, attention.

    Args:
        net: also on the ``meta`` device, where counting needs no memory.
        shape: of the image, (C, H, W).
        inserted_zeros: count a transposed convolution by its output, as FedMHO's Table 2 does:
            stride^2 times the products that are computed, the others being with zeros.
    """
    zeros = 0

    def count_zeros(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal zeros
        assert isinstance(layer, nn.ConvTranspose2d)
        places = output[0, 0].numel() - inputs[0][0, 0].numel()
        zeros += places * layer.weight.numel()

    layers = [module for module in net.modules() if isinstance(module, nn.ConvTranspose2d)]
    hooks = [layer.register_forward_hook(count_zeros) for layer in layers if inserted_zeros]
    try:
        counts = _count(net, shape)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts.values()) + zeros


def convolution_products(net: nn.Module, shape: Shape) -> int:
    """The part of ``multiply_accumulates`` that convolutions do."""
    return _count(net, shape).get(torch.ops.aten.convolution, 0)


@lru_cache(maxsize=1024)
def image_cost(spec: ModelSpec, shape: Shape, num_classes: int) -> ImageCost:
    """What one image costs in a net, found on the ``meta`` device: nothing is computed.

    Args:
        spec: of a classifier or a decoder.
        shape: of the image, (C, H, W).
        num_classes: of the net.

    Raises:
        AttarError: if the net cannot be built.
    """
    net = spec.skeleton(shape, num_classes)
    sizes = _Sizes(4 * math.prod(shape))
    try:
        with sizes:
            products = sum(_count(net, shape).values())
    except (RuntimeError, NotImplementedError):  # a plug-in's net that cannot run without data
        products = 0
    weights = sum(value.numel() * value.element_size() for value in net.state_dict().values())
    if isinstance(net, GraphNet):  # checked against the same bounds when it was read
        whole = 4 * net.graph.elements
        return ImageCost(max(products, net.graph.work), whole, whole, weights)
    # An operator's input and result, and a shortcut around it. Of all results about half are kept:
    # the others are views, or are computed in place.
    forward = 3 * sizes.largest
    return ImageCost(products, forward, max(forward, sizes.total // 2), weights)


class _Sizes(TorchDispatchMode):
    """Bytes of all results of operators, and of the largest."""

    def __init__(self, image: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = image
        self.largest = image

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {value.untyped_storage()._cdata for value in args if isinstance(value, Tensor)}
        for value in result if isinstance(result, tuple | list) else (result,):
            # A view needs no memory of its own.
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in given:
                size = value.numel() * value.element_size()
                self.total += size
                self.largest = max(self.largest, size)
        return result


def _count(net: nn.Module, shape: Shape) -> dict[Any, int]:
    """Multiply-accumulates of one image, by operator."""
    was_training = net.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            net.eval()(*example_inputs(net, shape))
    finally:
        net.train(was_training)
    return {operator: flops // 2 for operator, flops in counter.get_flop_counts()["Global"].items()}
