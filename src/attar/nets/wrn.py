"""Wide residual nets (Zagoruyko & Komodakis, BMVC 2016), of width 1 as in DENSE."""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from attar.nets.layers import Pooled, initialise_he
from attar.nets.limits import require_halvings
from attar.nets.registry import Shape, register


class PreActivationBlock(nn.Module):
    """BatchNorm and ReLU before each convolution.

    If the shape changes, the shortcut begins after the first ReLU.

    Args:
        channels: of the input.
        width: channels of the output.
        stride: of the first convolution.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = None
        if channels != width:
            self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        change: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(active)
        return shortcut + change


def _wrn(arch: str, input_shape: Shape, num_classes: int, depth: int, widen: int) -> nn.Module:
    require_halvings(arch, input_shape, 2)
    blocks = (depth - 4) // 6
    channels = 16
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Conv2d(input_shape[0], channels, 3, 1, 1, bias=False)
    )
    for number, width in enumerate((16 * widen, 32 * widen, 64 * widen), start=1):
        first = PreActivationBlock(channels, width, stride=1 if number == 1 else 2)
        layers[f"stage{number}"] = nn.Sequential(
            first, *(PreActivationBlock(width, width, 1) for _ in range(blocks - 1))
        )
        channels = width
    layers["norm"] = nn.BatchNorm2d(channels)
    layers["relu"] = nn.ReLU()
    net = Pooled(nn.Sequential(layers), channels, num_classes)
    initialise_he(net)
    return net


@register("wrn16-1", "Wide ResNet, depth 16, width 1.", published_parameters=175_066)
def wrn16_1(input_shape: Shape, num_classes: int) -> nn.Module:
    return _wrn("wrn16-1", input_shape, num_classes, depth=16, widen=1)


@register("wrn40-1", "Wide ResNet, depth 40, width 1.", published_parameters=563_930)
def wrn40_1(input_shape: Shape, num_classes: int) -> nn.Module:
    return _wrn("wrn40-1", input_shape, num_classes, depth=40, widen=1)
