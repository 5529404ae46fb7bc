"""GoogLeNet (Inception v1; Szegedy et al., CVPR 2015), with BatchNorm, no auxiliary heads."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from attar.nets.layers import Pooled, conv_norm
from attar.nets.limits import Stem, require_halvings
from attar.nets.registry import Shape, register


class Widths(NamedTuple):
    """Channels of the branches of an inception block, as the columns of Table 1.

    Attributes:
        one: "#1x1".
        three_in: "#3x3 reduce".
        three: "#3x3".
        five_in: "#5x5 reduce".
        five: "#5x5".
        pooled: "pool proj".
    """

    one: int
    three_in: int
    three: int
    five_in: int
    five: int
    pooled: int

    @property
    def total(self) -> int:
        """Channels of the output."""
        return self.one + self.three + self.five + self.pooled


STAGES = (  # Table 1: inception 3a-3b, 4a-4e, 5a-5b
    (Widths(64, 96, 128, 16, 32, 32), Widths(128, 128, 192, 32, 96, 64)),
    (
        Widths(192, 96, 208, 16, 48, 64),
        Widths(160, 112, 224, 24, 64, 64),
        Widths(128, 128, 256, 24, 64, 64),
        Widths(112, 144, 288, 32, 64, 64),
        Widths(256, 160, 320, 32, 128, 128),
    ),
    (Widths(256, 160, 320, 32, 128, 128), Widths(384, 192, 384, 48, 128, 128)),
)


class Inception(nn.Module):
    """Four branches over one map, concatenated (Fig. 2b).

    Args:
        channels: of the input.
        widths: of the branches.
    """

    def __init__(self, channels: int, widths: Widths) -> None:
        super().__init__()
        self.one = conv_norm(channels, widths.one, activation=nn.ReLU)
        self.three = nn.Sequential(
            conv_norm(channels, widths.three_in, activation=nn.ReLU),
            conv_norm(widths.three_in, widths.three, 3, activation=nn.ReLU),
        )
        self.five = nn.Sequential(
            conv_norm(channels, widths.five_in, activation=nn.ReLU),
            conv_norm(widths.five_in, widths.five, 3, activation=nn.ReLU),
        )
        self.pooled = nn.Sequential(
            nn.MaxPool2d(3, 1, 1),
            conv_norm(channels, widths.pooled, activation=nn.ReLU),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.one(x), self.three(x), self.five(x), self.pooled(x)), dim=1)


@register("googlenet", "GoogLeNet (Inception v1) with BatchNorm.", published_parameters=5_610_154)
def googlenet(input_shape: Shape, num_classes: int, *, stem: Stem = "small") -> nn.Module:
    """GoogLeNet: 6,624,904 parameters with 1,000 classes, as torchvision's without auxiliary heads.

    As there, the "5 x 5" branch is a 3 x 3 convolution, and BatchNorm takes the place of local
    response normalisation; the dropout before the head is left out.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        stem: ``"small"`` has stride 1 in the 7 x 7 convolution and no max-pool after it.
    """
    small = stem == "small"
    require_halvings("googlenet", input_shape, 3 if small else 5)
    layers: list[nn.Module] = [
        conv_norm(input_shape[0], 64, 7, stride=1 if small else 2, activation=nn.ReLU),
        nn.Identity() if small else nn.MaxPool2d(3, 2, 1),
        conv_norm(64, 64, activation=nn.ReLU),
        conv_norm(64, 192, 3, activation=nn.ReLU),
    ]
    channels = 192
    for stage in STAGES:
        layers.append(nn.MaxPool2d(3, 2, 1))
        for widths in stage:
            layers.append(Inception(channels, widths))
            channels = widths.total
    return Pooled(nn.Sequential(*layers), channels, num_classes)
