"""Layers that several families share.

BatchNorm has torch's defaults everywhere: ``blocks/`` reads its statistics.
"""

from torch import Tensor, nn


class Pooled(nn.Module):
    """A convolutional trunk, averaged over its map, and a linear head.

    Args:
        trunk: images -> maps (B, width, H, W).
        width: channels of the maps, which are the features.
        num_classes: outputs of the head.
    """

    def __init__(self, trunk: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """The mean of each map: (B, C, H, W) -> (B, width)."""
        maps: Tensor = self.trunk(x)
        return maps.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def conv_norm(
    channels: int,
    width: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = None,
) -> nn.Sequential:
    """Convolution, BatchNorm and activation; keeps the size up to its stride.

    Args:
        channels: of the input.
        width: channels of the output.
        kernel: odd side of the window.
        stride: of the window.
        groups: of channels that are convolved apart.
        activation: None for none.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class SqueezeExcite(nn.Module):
    """Weights channels by the means of their maps (Hu et al., CVPR 2018).

    Args:
        width: channels.
        squeezed: channels between the two layers.
        activation: between the two layers.
        gate: means -> weights, a sigmoid.
    """

    def __init__(
        self, width: int, squeezed: int, activation: type[nn.Module], gate: type[nn.Module]
    ) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Conv2d(width, squeezed, 1), activation(), nn.Conv2d(squeezed, width, 1), gate()
        )

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.weigh(x.mean((2, 3), keepdim=True))
        return x * weights


class Residual(nn.Module):
    """x + branch(x)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.branch(x)
        return x + change


def initialise_he(net: nn.Module) -> None:
    """Draw the weights of all convolutions from N(0, 2 / fan out) (He et al., ICCV 2015)."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
