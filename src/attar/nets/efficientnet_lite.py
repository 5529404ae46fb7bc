"""EfficientNet-Lite0 and -Lite1 (Liu, TensorFlow Lite, 2020).

They are EfficientNet-B0 and -B1 (Tan & Le, ICML 2019) for phones: ReLU6 in place of SiLU, no
squeeze-and-excitation, and stem, first and last stage of one size in the whole family. Weights
trained on ImageNet exist (``backbones/wheels.py``). They come from TensorFlow, so a convolution
of stride 2 is padded as there, more on the right and below than on the left and above, and
BatchNorm adds 1e-3 to the variance.
"""

from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.nets.layers import Pooled, Residual
from attar.nets.limits import Stem, require_halvings, require_options
from attar.nets.registry import Shape, register

WIDTH = 1280  # features
_EPSILON = 1e-3


class Stage(NamedTuple):
    """A row of Table 1 of EfficientNet.

    Attributes:
        expand: factor by which a block widens inside.
        kernel: side of the window.
        stride: of the first block.
        width: channels of the output.
        blocks: of B0.
    """

    expand: int
    kernel: int
    stride: int
    width: int
    blocks: int


STAGES = (  # Table 1
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)


class SameConv(nn.Conv2d):
    """A convolution without bias that keeps the size up to its stride, padded as in TensorFlow.

    n pixels become ceil(n / stride). The padding that this needs is halved; an odd pixel goes to
    the right and below.
    """

    def __init__(
        self, channels: int, width: int, kernel: int = 1, *, stride: int = 1, groups: int = 1
    ) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(channels, width, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.stride[0] > 1:
            height, width = input.shape[2:]
            input = F.pad(input, (*self._sides(width), *self._sides(height)))
        return super().forward(input)

    def _sides(self, size: int) -> tuple[int, int]:
        """Pixels to add before and behind ``size`` pixels."""
        kernel = self.kernel_size[0]
        stride = self.stride[0]
        total = max(0, (ceil(size / stride) - 1) * stride + kernel - size)
        return total // 2, total - total // 2


def _conv_norm(
    channels: int, width: int, kernel: int = 1, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = SameConv(channels, width, kernel, stride=stride, groups=groups)
    return [convolution, nn.BatchNorm2d(width, eps=_EPSILON)]


def _inverted_residual(
    channels: int, width: int, *, expand: int, kernel: int, stride: int
) -> nn.Module:
    """Expand, filter each channel, project; plus the input if shapes allow."""
    inner = expand * channels
    layers: list[nn.Module] = []
    if expand != 1:
        layers += [*_conv_norm(channels, inner), nn.ReLU6()]
    layers += [*_conv_norm(inner, inner, kernel, stride=stride, groups=inner), nn.ReLU6()]
    branch = nn.Sequential(*layers, *_conv_norm(inner, width))
    return Residual(branch) if stride == 1 and channels == width else branch


class PooledStages(nn.Module):
    """A convolutional trunk whose last stages are averaged, too, and a linear head.

    Args:
        trunk: images -> maps (B, width, H, W), layer by layer.
        widths: of the maps of some layers of the trunk, by their places in it; their means
            stand behind those of the last maps, the last layer first.
        width: channels of the last maps.
        num_classes: outputs of the head.
    """

    def __init__(
        self, trunk: nn.Sequential, widths: dict[int, int], width: int, num_classes: int
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.places = tuple(widths)
        self.head = nn.Linear(width + sum(widths.values()), num_classes)

    def features(self, x: Tensor) -> Tensor:
        """The means of the maps: (B, C, H, W) -> (B, width + widths)."""
        means = []
        for place, layer in enumerate(self.trunk):
            x = layer(x)
            if place in self.places:
                means.append(x.mean((2, 3)))
        return torch.cat([x.mean((2, 3)), *reversed(means)], 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def _build(
    arch: str, input_shape: Shape, num_classes: int, stem: Stem, depth: float, stages: int
) -> nn.Module:
    if not 0 <= stages <= len(STAGES):
        require_options(arch, [f"stages = {stages}: 0 to {len(STAGES)}"])
    small = stem == "small"
    require_halvings(arch, input_shape, 3 if small else 5)
    channels = 32
    first_stride = 1 if small else 2
    layers: list[nn.Module] = [
        *_conv_norm(input_shape[0], channels, 3, stride=first_stride),
        nn.ReLU6(),
    ]
    ends: dict[int, int] = {}  # where a stage ends: the width of its maps
    for number, stage in enumerate(STAGES, start=1):
        first = 1 if small and number == 2 else stage.stride
        fixed = number in (1, len(STAGES))
        blocks = stage.blocks if fixed else ceil(depth * stage.blocks)
        for stride in [first] + [1] * (blocks - 1):
            block = _inverted_residual(
                channels, stage.width, expand=stage.expand, kernel=stage.kernel, stride=stride
            )
            layers.append(block)
            channels = stage.width
        ends[len(layers) - 1] = channels
    layers += [*_conv_norm(channels, WIDTH), nn.ReLU6()]
    trunk = nn.Sequential(*layers)
    if not stages:
        return Pooled(trunk, WIDTH, num_classes)
    pooled = dict(list(ends.items())[-stages:])
    return PooledStages(trunk, pooled, WIDTH, num_classes)


@register(
    "efficientnet-lite0",
    "EfficientNet-Lite0, a net for phones.",
    usual_shape=(3, 224, 224),
    published_parameters=3_383_818,
)
def efficientnet_lite0(
    input_shape: Shape, num_classes: int, *, stem: Stem = "imagenet", stages: int = 0
) -> nn.Module:
    """EfficientNet-Lite0: 4,652,008 parameters with 1,000 classes.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        stem: ``"small"`` keeps the resolution in the stem and the first halving: 32 x 32 ends in
            4 x 4. The published strides are the default, because the published weights are made
            for them.
        stages: the means of the maps of so many stages before the last layer are features, too.
    """
    return _build("efficientnet-lite0", input_shape, num_classes, stem, 1.0, stages)


@register(
    "efficientnet-lite1",
    "EfficientNet-Lite1, a net for phones.",
    usual_shape=(3, 240, 240),
    published_parameters=4_148_490,
)
def efficientnet_lite1(
    input_shape: Shape, num_classes: int, *, stem: Stem = "imagenet", stages: int = 0
) -> nn.Module:
    """EfficientNet-Lite1: 5,416,680 parameters with 1,000 classes.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        stem: as for ``efficientnet_lite0``.
        stages: as for ``efficientnet_lite0``.
    """
    return _build("efficientnet-lite1", input_shape, num_classes, stem, 1.1, stages)
