"""What is measured inside a net while it answers: BatchNorm's memory, the size of its features,
the features themselves.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attar.errors import NeedsError

Probe = Literal["batchnorm", "spread", "activation", "mean activation", "features"]
"""What can be measured inside a teacher: the summed ``statistics_gap`` of its BatchNorm layers;
the mean of their ``spread_gap``, (B,); the mean over images of the l1 norm of its penultimate
features, or of their mean size (DAFL); these features themselves, (B, F).
"""

Answer = tuple[Tensor, dict[Probe, Tensor]]
"""Logits, and what the probes found."""


def watched(net: nn.Module, call: Callable[[], Tensor], probes: Sequence[Probe]) -> Answer:
    """``call()``, which runs ``net``, and what the probes measure on the way."""
    totals: dict[Probe, list[Tensor]] = {probe: [] for probe in probes}
    hooks = []
    if "batchnorm" in probes:

        def gap(layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
            totals["batchnorm"].append(statistics_gap(layer, inputs[0]))

        hooks += [
            m.register_forward_pre_hook(gap) for m in net.modules() if isinstance(m, _BatchNorm)
        ]
    if "spread" in probes:
        layers = over_maps(net)

        def unlike(layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
            totals["spread"].append(spread_gap(layer, inputs[0]) / len(layers))

        hooks += [layer.register_forward_pre_hook(unlike) for layer in layers]
    if {"activation", "mean activation", "features"} & set(probes):

        def strength(head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sizes = inputs[0].abs()
            if "features" in totals:
                totals["features"].append(inputs[0])
            if "activation" in totals:
                totals["activation"].append(sizes.sum(-1).mean())
            if "mean activation" in totals:
                totals["mean activation"].append(sizes.mean())

        heads = [module for name, module in net.named_children() if name == "head"]
        if not heads:
            raise NeedsError(
                "A packed net does not end in a linear layer of its own: there are no penultimate features to look at.",
                fix="use a method that does not look at features, or have the net packed with a linear head",
            )
        hooks.append(heads[0].register_forward_pre_hook(strength))
    try:
        logits = call()
    finally:
        for hook in hooks:
            hook.remove()
    zero = logits.new_zeros(())
    return logits, {probe: sum(values, zero) for probe, values in totals.items()}


def statistics_gap(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """||mean(x) - running mean||_2 + ||var(x) - running var||_2 of one BatchNorm layer's inputs (DENSE; FedHydra Eq. 14)."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    variance, mean = torch.var_mean(inputs, axes, correction=0)
    gap: Tensor = (mean - layer.running_mean).norm() + (variance - layer.running_var).norm()
    return gap


def spread_gap(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """log of the mean over channels of |var(x) - running var| / running var, for each image (B,)
    of feature maps (B, C, H, W).
    """
    assert layer.running_var is not None
    usual = layer.running_var.float() + layer.eps
    apart = (inputs.float().var((2, 3), correction=0) - usual).abs() / usual
    return apart.mean(1).clamp(min=1e-6).log()


def over_maps(net: nn.Module) -> list[nn.BatchNorm2d]:
    """Its BatchNorm layers over feature maps, which remember how these spread."""
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
