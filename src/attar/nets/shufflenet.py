"""ShuffleNet V2 (Ma et al., ECCV 2018)."""

import torch
from torch import Tensor, nn

from attar.nets.layers import Pooled, conv_norm
from attar.nets.limits import Stem, require_halvings
from attar.nets.registry import Shape, register

STAGES = ((4, 116), (8, 232), (4, 464))  # (blocks, width) at x1.0, Table 5


def _interleave(left: Tensor, right: Tensor) -> Tensor:
    """Interleave the channels of two maps: (B, C, H, W) twice -> (B, 2C, H, W)."""
    return torch.stack((left, right), dim=2).flatten(1, 2)


class Unit(nn.Module):
    """Half of the channels pass unchanged, the others through a branch (Fig. 3c).

    Args:
        width: channels of input and output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = _branch(width // 2, width // 2, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        unchanged, changed = x.chunk(2, dim=1)
        return _interleave(unchanged, self.branch(changed))


class Halving(nn.Module):
    """Halves the map; both branches see the whole input (Fig. 3d).

    Args:
        channels: of the input.
        width: channels of the output.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(
            conv_norm(channels, channels, 3, stride=2, groups=channels),
            conv_norm(channels, width // 2, activation=nn.ReLU),
        )
        self.branch = _branch(channels, width // 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return _interleave(self.shortcut(x), self.branch(x))


def _branch(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        conv_norm(channels, width, activation=nn.ReLU),
        conv_norm(width, width, 3, stride=stride, groups=width),
        conv_norm(width, width, activation=nn.ReLU),
    )


@register("shufflenetv2", "ShuffleNet V2 x1.0.", published_parameters=1_263_854)
def shufflenetv2(input_shape: Shape, num_classes: int, *, stem: Stem = "small") -> nn.Module:
    """ShuffleNet V2 x1.0: 2,278,604 parameters with 1,000 classes.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        stem: ``"small"`` has stride 1 and no max-pool; ``"imagenet"`` is as published, which
            Co-Boosting also uses on CIFAR.
    """
    small = stem == "small"
    require_halvings("shufflenetv2", input_shape, 3 if small else 5)
    channels = 24
    layers: list[nn.Module] = [
        conv_norm(input_shape[0], channels, 3, stride=1 if small else 2, activation=nn.ReLU),
        nn.Identity() if small else nn.MaxPool2d(3, 2, 1),
    ]
    for blocks, width in STAGES:
        layers += [Halving(channels, width), *(Unit(width) for _ in range(blocks - 1))]
        channels = width
    layers.append(conv_norm(channels, 1024, activation=nn.ReLU))
    return Pooled(nn.Sequential(*layers), 1024, num_classes)
