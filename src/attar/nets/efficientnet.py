"""EfficientNetV2 (Tan & Le, ICML 2021)."""

from typing import NamedTuple

from torch import nn

from attar.nets.layers import Pooled, Residual, SqueezeExcite, conv_norm
from attar.nets.limits import Stem, require_halvings
from attar.nets.registry import Shape, register


class Stage(NamedTuple):
    """A row of Table 4.

    Attributes:
        fused: Fused-MBConv in place of MBConv.
        expand: factor by which a block widens inside.
        stride: of the first block.
        width: "#Channels".
        blocks: "#Layers".
    """

    fused: bool
    expand: int
    stride: int
    width: int
    blocks: int


S_STAGES = (  # Table 4
    Stage(True, 1, 1, 24, 2),
    Stage(True, 4, 2, 48, 4),
    Stage(True, 4, 2, 64, 4),
    Stage(False, 4, 2, 128, 6),
    Stage(False, 6, 1, 160, 9),
    Stage(False, 6, 2, 256, 15),
)


def _fused(channels: int, width: int, expand: int, stride: int) -> nn.Module:
    """Fused-MBConv: expansion and filter in one convolution (Fig. 2)."""
    inner = expand * channels
    if expand == 1:
        return conv_norm(channels, width, 3, stride=stride, activation=nn.SiLU)
    return nn.Sequential(
        conv_norm(channels, inner, 3, stride=stride, activation=nn.SiLU),
        conv_norm(inner, width),
    )


def _separable(channels: int, width: int, expand: int, stride: int) -> nn.Module:
    """MBConv with squeeze-and-excitation to a quarter of the block's *input* width."""
    inner = expand * channels
    return nn.Sequential(
        conv_norm(channels, inner, activation=nn.SiLU),
        conv_norm(inner, inner, 3, stride=stride, groups=inner, activation=nn.SiLU),
        SqueezeExcite(inner, channels // 4, nn.SiLU, nn.Sigmoid),
        conv_norm(inner, width),
    )


@register("efficientnetv2-s", "EfficientNetV2-S.", published_parameters=20_190_298)
def efficientnetv2_s(input_shape: Shape, num_classes: int, *, stem: Stem = "small") -> nn.Module:
    """EfficientNetV2-S: 21,458,488 parameters with 1,000 classes.

    Stochastic depth and the dropout before the head are left out.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        stem: ``"small"`` keeps the resolution in the stem and the first halving: 32 x 32 ends in
            4 x 4.
    """
    small = stem == "small"
    require_halvings("efficientnetv2-s", input_shape, 3 if small else 5)
    channels = 24
    layers: list[nn.Module] = [
        conv_norm(input_shape[0], channels, 3, stride=1 if small else 2, activation=nn.SiLU),
    ]
    for number, stage in enumerate(S_STAGES, start=1):
        block = _fused if stage.fused else _separable
        first = 1 if small and number == 2 else stage.stride
        for stride in [first] + [1] * (stage.blocks - 1):
            branch = block(channels, stage.width, stage.expand, stride)
            layers.append(Residual(branch) if stride == 1 and channels == stage.width else branch)
            channels = stage.width
    layers.append(conv_norm(channels, 1280, activation=nn.SiLU))
    return Pooled(nn.Sequential(*layers), 1280, num_classes)
