"""What one image costs: multiply-accumulates of a forward pass."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attar.nets.cvae import CVAE, Decoder
from attar.nets.registry import Shape


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


def _count(net: nn.Module, shape: Shape) -> dict[Any, int]:
    """Multiply-accumulates of one image, by operator."""
    was_training = net.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            net.eval()(*example_inputs(net, shape))
    finally:
        net.train(was_training)
    return {operator: flops // 2 for operator, flops in counter.get_flop_counts()["Global"].items()}
