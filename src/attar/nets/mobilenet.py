"""MobileNet V2 (Sandler et al., CVPR 2018) and V3-Small (Howard et al., ICCV 2019).

For small images the stem and the first halving keep the resolution (32 x 32 ends in 4 x 4),
which does not change the number of parameters. ``stem="imagenet"`` has the published strides, as
Co-Boosting runs V3 on CIFAR, ending in 1 x 1. The dropout before the published heads is left
out.
"""

from typing import NamedTuple

from torch import nn

from attar.nets.layers import Pooled, Residual, SqueezeExcite, conv_norm
from attar.nets.limits import Stem, require_halvings
from attar.nets.registry import Shape, register


class V2Stage(NamedTuple):
    """A row of V2's Table 2.

    Attributes:
        expand: t, factor by which a block widens inside.
        width: c, channels of the output.
        blocks: n.
        stride: s, of the first block.
    """

    expand: int
    width: int
    blocks: int
    stride: int


V2_STAGES = (  # Table 2
    V2Stage(1, 16, 1, 1),
    V2Stage(6, 24, 2, 2),
    V2Stage(6, 32, 3, 2),
    V2Stage(6, 64, 4, 2),
    V2Stage(6, 96, 3, 1),
    V2Stage(6, 160, 3, 2),
    V2Stage(6, 320, 1, 1),
)


class V3Block(NamedTuple):
    """A row of V3's Table 2.

    Attributes:
        kernel: side of the window.
        inner: "exp size", channels inside.
        width: "#out", channels of the output.
        squeeze: "SE", whether channels are weighted.
        activation: "NL".
        stride: "s".
    """

    kernel: int
    inner: int
    width: int
    squeeze: bool
    activation: type[nn.Module]
    stride: int


V3_SMALL_BLOCKS = (  # Table 2
    V3Block(3, 16, 16, True, nn.ReLU, 2),
    V3Block(3, 72, 24, False, nn.ReLU, 2),
    V3Block(3, 88, 24, False, nn.ReLU, 1),
    V3Block(5, 96, 40, True, nn.Hardswish, 2),
    V3Block(5, 240, 40, True, nn.Hardswish, 1),
    V3Block(5, 240, 40, True, nn.Hardswish, 1),
    V3Block(5, 120, 48, True, nn.Hardswish, 1),
    V3Block(5, 144, 48, True, nn.Hardswish, 1),
    V3Block(5, 288, 96, True, nn.Hardswish, 2),
    V3Block(5, 576, 96, True, nn.Hardswish, 1),
    V3Block(5, 576, 96, True, nn.Hardswish, 1),
)


def _inverted_residual(
    channels: int,
    inner: int,
    width: int,
    *,
    kernel: int,
    stride: int,
    activation: type[nn.Module],
    squeeze: bool = False,
) -> nn.Module:
    """Expand, filter each channel, project without activation; plus the input if shapes allow."""
    layers: list[nn.Module] = []
    if inner != channels:
        layers.append(conv_norm(channels, inner, activation=activation))
    depthwise = conv_norm(inner, inner, kernel, stride=stride, groups=inner, activation=activation)
    layers.append(depthwise)
    if squeeze:
        squeezed = _round_to_eight(inner / 4)
        layers.append(SqueezeExcite(inner, squeezed, nn.ReLU, nn.Hardsigmoid))
    block = nn.Sequential(*layers, conv_norm(inner, width))
    return Residual(block) if stride == 1 and channels == width else block


def _round_to_eight(width: float) -> int:
    """The nearest multiple of 8, but never more than a tenth below ``width``."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


@register("mobilenetv2", "MobileNet V2.", published_parameters=2_236_682)
def mobilenetv2(input_shape: Shape, num_classes: int, *, stem: Stem = "small") -> nn.Module:
    """MobileNet V2: 3,504,872 parameters with 1,000 classes.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        stem: ``"small"`` or ``"imagenet"``, see above.
    """
    small = stem == "small"
    require_halvings("mobilenetv2", input_shape, 3 if small else 5)
    channels = 32
    layers: list[nn.Module] = [
        conv_norm(input_shape[0], channels, 3, stride=1 if small else 2, activation=nn.ReLU6),
    ]
    for number, stage in enumerate(V2_STAGES, start=1):
        first = 1 if small and number == 2 else stage.stride
        for stride in [first] + [1] * (stage.blocks - 1):
            inner = stage.expand * channels
            block = _inverted_residual(
                channels, inner, stage.width, kernel=3, stride=stride, activation=nn.ReLU6
            )
            layers.append(block)
            channels = stage.width
    layers.append(conv_norm(channels, 1280, activation=nn.ReLU6))
    return Pooled(nn.Sequential(*layers), 1280, num_classes)


@register("mobilenetv3-small", "MobileNet V3-Small.", published_parameters=1_528_106)
def mobilenetv3_small(input_shape: Shape, num_classes: int, *, stem: Stem = "small") -> nn.Module:
    """MobileNet V3-Small: 2,542,856 parameters with 1,000 classes.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        stem: ``"small"`` or ``"imagenet"``, see above.
    """
    small = stem == "small"
    require_halvings("mobilenetv3-small", input_shape, 3 if small else 5)
    channels = 16
    layers: list[nn.Module] = [
        conv_norm(input_shape[0], channels, 3, stride=1 if small else 2, activation=nn.Hardswish),
    ]
    for number, row in enumerate(V3_SMALL_BLOCKS, start=1):
        block = _inverted_residual(
            channels,
            row.inner,
            row.width,
            kernel=row.kernel,
            stride=1 if small and number == 1 else row.stride,
            activation=row.activation,
            squeeze=row.squeeze,
        )
        layers.append(block)
        channels = row.width
    # V3 widens to 1024 only after pooling: there the 1 x 1 convolution costs nothing.
    layers += [
        conv_norm(channels, 576, activation=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(576, 1024, 1),
        nn.Hardswish(),
    ]
    return Pooled(nn.Sequential(*layers), 1024, num_classes)
