"""Quantities that are measured inside a net during its forward pass, by hooks on its layers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attar.errors import NeedsError

Hook = Literal["batchnorm", "variance gap", "activation", "mean activation", "features"]
"""What a hook measures in one net, for a batch of B images:

batchnorm         the sum over BatchNorm layers of ``statistics_gap``
variance gap      the mean over BatchNorm layers of ``variance_gap``, (B,)
activation        the l1 norm of the penultimate features, mean over images
mean activation   the mean absolute value of the penultimate features (DAFL)
features          the penultimate features, (B, F)
"""


@contextmanager
def attach_hooks(net: nn.Module, hooks: Sequence[Hook]) -> Iterator[dict[Hook, list[Tensor]]]:
    """Measure inside ``net`` whenever it runs in this context.

    Args:
        net: in which hooks are registered, and removed at the end.
        hooks: what is measured.

    Yields:
        For each hook the list of its terms, one for each layer; their sum is what it measures.

    Raises:
        NeedsError: if penultimate features are asked of a net without a linear head.
    """
    terms: dict[Hook, list[Tensor]] = {hook: [] for hook in hooks}
    handles = []
    if "batchnorm" in hooks:

        def add_gap(layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
            terms["batchnorm"].append(statistics_gap(layer, inputs[0]))

        layers = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        handles += [layer.register_forward_pre_hook(add_gap) for layer in layers]
    if "variance gap" in hooks:
        over_maps = batchnorms_of_maps(net)

        def add_variance_gap(layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
            terms["variance gap"].append(variance_gap(layer, inputs[0]) / len(over_maps))

        handles += [layer.register_forward_pre_hook(add_variance_gap) for layer in over_maps]
    if {"activation", "mean activation", "features"} & set(hooks):

        def add_features(head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sizes = inputs[0].abs()
            if "features" in terms:
                terms["features"].append(inputs[0])
            if "activation" in terms:
                terms["activation"].append(sizes.sum(-1).mean())
            if "mean activation" in terms:
                terms["mean activation"].append(sizes.mean())

        handles.append(_find_head(net).register_forward_pre_hook(add_features))
    try:
        yield terms
    finally:
        for handle in handles:
            handle.remove()


def statistics_gap(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """||mean(x) - running mean||_2 + ||var(x) - running var||_2 (DENSE; FedHydra Eq. 14).

    Args:
        layer: a BatchNorm layer.
        inputs: its inputs, (B, C) or (B, C, H, W).

    Returns:
        A number.
    """
    assert layer.running_mean is not None
    assert layer.running_var is not None
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    variance, mean = torch.var_mean(inputs, axes, correction=0)
    gap: Tensor = (mean - layer.running_mean).norm() + (variance - layer.running_var).norm()
    return gap


def variance_gap(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """log of the mean over channels of |var(x) - running var| / running var, for each image.

    Args:
        layer: a BatchNorm layer over feature maps.
        inputs: its inputs (B, C, H, W).

    Returns:
        (B,).
    """
    assert layer.running_var is not None
    usual = layer.running_var.float() + layer.eps
    gap = (inputs.float().var((2, 3), correction=0) - usual).abs() / usual
    return gap.mean(1).clamp(min=1e-6).log()


def batchnorms_of_maps(net: nn.Module) -> list[nn.BatchNorm2d]:
    """The BatchNorm layers of ``net`` over feature maps."""
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]


def _find_head(net: nn.Module) -> nn.Module:
    heads = [module for name, module in net.named_children() if name == "head"]
    if not heads:
        raise NeedsError(
            "A packed net does not end in a linear layer of its own: there are no penultimate"
            " features to look at.",
            fix="use a method that does not look at features, or have the net packed with a linear"
            " head",
        )
    return heads[0]
