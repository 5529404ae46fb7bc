"""What one image costs: multiply-accumulates of a forward pass, and the inputs that each kind of
net wants.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attar.nets.cvae import CVAE, Decoder
from attar.nets.registry import Shape


def example_inputs(net: nn.Module, shape: Shape, batch: int = 1) -> tuple[Tensor, ...]:
    """Zeros that ``net`` can be called with, where its parameters lie."""
    parameter = next(net.parameters())
    decoder = net.decoder if isinstance(net, CVAE) else net
    if not isinstance(decoder, Decoder):
        return (parameter.new_zeros(batch, *shape),)
    noise, labels = (
        parameter.new_zeros(batch, decoder.latent),
        parameter.new_zeros(batch, decoder.num_classes),
    )
    return (
        (noise, labels)
        if isinstance(net, Decoder)
        else (parameter.new_zeros(batch, *shape), labels, noise)
    )


def multiply_accumulates(net: nn.Module, shape: Shape, *, inserted_zeros: bool = False) -> int:
    """Of one image through ``net`` (convolutions, linear layers, attention), also on ``meta``,
    where it needs no memory.

    ``inserted_zeros`` counts a transposed convolution by its output, as FedMHO's Table 2 does:
    stride^2 times the products that are made, the others being with zeros that nobody inserts.
    """
    extra = 0

    def zeros(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal extra
        assert isinstance(layer, nn.ConvTranspose2d)
        places = output[0, 0].numel() - inputs[0][0, 0].numel()
        extra += places * layer.weight.numel()

    layers = [module for module in net.modules() if isinstance(module, nn.ConvTranspose2d)]
    hooks = [layer.register_forward_hook(zeros) for layer in layers if inserted_zeros]
    try:
        counted = _counted(net, shape)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counted.values()) + extra


def convolution_products(net: nn.Module, shape: Shape) -> int:
    """The part of ``multiply_accumulates`` that convolutions do."""
    return _counted(net, shape).get(torch.ops.aten.convolution, 0)


def _counted(net: nn.Module, shape: Shape) -> dict[Any, int]:
    """Multiply-accumulates of one image by operator."""
    was_training = net.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            net.eval()(*example_inputs(net, shape))
    finally:
        net.train(was_training)
    return {operator: flops // 2 for operator, flops in counter.get_flop_counts()["Global"].items()}
