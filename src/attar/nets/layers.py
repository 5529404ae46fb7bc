"""Pieces that several families share. BatchNorm has torch's defaults everywhere: ``blocks/``
reads its statistics.
"""

from torch import Tensor, nn


class Pooled(nn.Module):
    """A convolutional trunk, averaged over its map, and a linear head: what most families end in."""

    def __init__(self, trunk: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, num_classes)

    def features(self, x: Tensor) -> Tensor:
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
    """Convolution that keeps the size (up to its stride), BatchNorm, activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class SqueezeExcite(nn.Module):
    """Weigh channels by what the whole map says (Hu et al., CVPR 2018)."""

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


def he_initialised(net: nn.Module) -> None:
    """Convolutions ~ N(0, 2 / fan out) (He et al., ICCV 2015)."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
