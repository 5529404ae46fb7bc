"""MobileNet V2 (Sandler et al., CVPR 2018) and V3-Small (Howard et al., ICCV 2019).

For small images the stem and the first halving keep the resolution (32 x 32 ends in 4 x 4);
neither changes the number of parameters. ``stem="imagenet"`` has the published strides: so
Co-Boosting runs V3 on CIFAR, ending in 1 x 1. The dropout before the published heads is left
out.
"""

from typing import NamedTuple

from torch import nn

from attar.nets.layers import Pooled, Residual, SqueezeExcite, conv_norm
from attar.nets.limits import Stem, require_halvings
from attar.nets.registry import Shape, register


class V2Stage(NamedTuple):
    expand: int  # t
    width: int  # c
    blocks: int  # n
    stride: int  # s


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
    kernel: int
    inner: int  # exp size
    width: int  # #out
    squeeze: bool  # SE
    activation: type[nn.Module]  # NL
    stride: int  # s


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
    """Expand, filter each channel, project without activation; added to its input where the
    shape allows.
    """
    layers = [conv_norm(channels, inner, activation=activation)] if inner != channels else []
    layers.append(
        conv_norm(inner, inner, kernel, stride=stride, groups=inner, activation=activation)
    )
    gate = [SqueezeExcite(inner, _eighths(inner / 4), nn.ReLU, nn.Hardsigmoid)] if squeeze else []
    block = nn.Sequential(*layers, *gate, conv_norm(inner, width))
    return Residual(block) if stride == 1 and channels == width else block


def _eighths(width: float) -> int:
    """The nearest multiple of 8, but never more than a tenth below ``width``."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


@register("mobilenetv2", "MobileNet V2.", published_parameters=2_236_682)
def mobilenetv2(input_shape: Shape, num_classes: int, *, stem: Stem = "small") -> nn.Module:
    """3,504,872 parameters with 1,000 classes."""
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
            layers.append(
                _inverted_residual(
                    channels, inner, stage.width, kernel=3, stride=stride, activation=nn.ReLU6
                )
            )
            channels = stage.width
    layers.append(conv_norm(channels, 1280, activation=nn.ReLU6))
    return Pooled(nn.Sequential(*layers), 1280, num_classes)


@register("mobilenetv3-small", "MobileNet V3-Small.", published_parameters=1_528_106)
def mobilenetv3_small(input_shape: Shape, num_classes: int, *, stem: Stem = "small") -> nn.Module:
    """2,542,856 parameters with 1,000 classes."""
    small = stem == "small"
    require_halvings("mobilenetv3-small", input_shape, 3 if small else 5)
    channels = 16
    layers: list[nn.Module] = [
        conv_norm(input_shape[0], channels, 3, stride=1 if small else 2, activation=nn.Hardswish),
    ]
    for number, block in enumerate(V3_SMALL_BLOCKS, start=1):
        layers.append(
            _inverted_residual(
                channels,
                block.inner,
                block.width,
                kernel=block.kernel,
                stride=1 if small and number == 1 else block.stride,
                activation=block.activation,
                squeeze=block.squeeze,
            )
        )
        channels = block.width
    # V3 widens to 1024 only after pooling: there the 1 x 1 convolution costs nothing.
    layers += [
        conv_norm(channels, 576, activation=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(576, 1024, 1),
        nn.Hardswish(),
    ]
    return Pooled(nn.Sequential(*layers), 1024, num_classes)
