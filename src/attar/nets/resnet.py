"""Residual nets (He et al., CVPR 2016).

resnet18, 34, 50    the ImageNet nets behind a 3 x 3 stem of stride 1 without max-pool, as usual
                    for CIFAR
resnet20, 32, 44    the paper's own CIFAR nets (section 4.2): 16-32-64, shortcuts without
                    parameters ("option A")
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from attar.nets.layers import Pooled, conv_norm, initialise_he
from attar.nets.limits import require_halvings
from attar.nets.registry import Shape, register


class Block(nn.Module):
    """relu(branch(x) + shortcut(x)); both have the same output shape."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


class ZeroPad(nn.Module):
    """The shortcut of option A: every second pixel, and zeros for the new channels.

    Args:
        stride: 2 takes every second pixel.
        new_channels: channels of zeros, half before and half after the others.
    """

    def __init__(self, stride: int, new_channels: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = new_channels // 2
        self.after = new_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def _projection(channels: int, width: int, stride: int) -> nn.Module:
    """Option B: a 1 x 1 convolution where the shape changes."""
    if stride == 1 and channels == width:
        return nn.Identity()
    return conv_norm(channels, width, stride=stride)


def _zero_pad(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return ZeroPad(stride, width - channels)


def _two_convolutions(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        conv_norm(channels, width, 3, stride=stride, activation=nn.ReLU),
        conv_norm(width, width, 3),
    )


def _basic(channels: int, width: int, stride: int) -> Block:
    return Block(_two_convolutions(channels, width, stride), _projection(channels, width, stride))


def _basic_option_a(channels: int, width: int, stride: int) -> Block:
    return Block(_two_convolutions(channels, width, stride), _zero_pad(channels, width, stride))


def _bottleneck(channels: int, width: int, stride: int) -> Block:
    """``width`` is that of the output; the stride is in the 3 x 3 convolution, as usual now."""
    narrow = width // 4
    branch = nn.Sequential(
        conv_norm(channels, narrow, activation=nn.ReLU),
        conv_norm(narrow, narrow, 3, stride=stride, activation=nn.ReLU),
        conv_norm(narrow, width),
    )
    return Block(branch, _projection(channels, width, stride))


def _resnet(
    arch: str,
    input_shape: Shape,
    num_classes: int,
    block: Callable[[int, int, int], Block],
    stem: int,
    stages: Sequence[tuple[int, int]],
) -> nn.Module:
    """A residual net.

    Args:
        arch: its name, for errors.
        input_shape: (C, H, W).
        num_classes: outputs.
        block: (channels, width, stride) -> one block.
        stem: channels of the first convolution.
        stages: (blocks, width); every stage but the first halves the map.
    """
    require_halvings(arch, input_shape, len(stages) - 1)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=conv_norm(input_shape[0], stem, 3, activation=nn.ReLU),
    )
    channels = stem
    for number, (blocks, width) in enumerate(stages, start=1):
        first = block(channels, width, 1 if number == 1 else 2)
        others = [block(width, width, 1) for _ in range(blocks - 1)]
        layers[f"stage{number}"] = nn.Sequential(first, *others)
        channels = width
    net = Pooled(nn.Sequential(layers), channels, num_classes)
    initialise_he(net)
    return net


@register("resnet18", "ResNet-18 with a stem for small images.", published_parameters=11_173_962)
def resnet18(input_shape: Shape, num_classes: int) -> nn.Module:
    stages = [(2, 64), (2, 128), (2, 256), (2, 512)]
    return _resnet("resnet18", input_shape, num_classes, _basic, 64, stages)


@register("resnet34", "ResNet-34 with a stem for small images.", published_parameters=21_282_122)
def resnet34(input_shape: Shape, num_classes: int) -> nn.Module:
    stages = [(3, 64), (4, 128), (6, 256), (3, 512)]
    return _resnet("resnet34", input_shape, num_classes, _basic, 64, stages)


@register("resnet50", "ResNet-50 with a stem for small images.", published_parameters=23_520_842)
def resnet50(input_shape: Shape, num_classes: int) -> nn.Module:
    stages = [(3, 256), (4, 512), (6, 1024), (3, 2048)]
    return _resnet("resnet50", input_shape, num_classes, _bottleneck, 64, stages)


def _cifar_resnet(arch: str, input_shape: Shape, num_classes: int, blocks: int) -> nn.Module:
    stages = [(blocks, 16), (blocks, 32), (blocks, 64)]
    return _resnet(arch, input_shape, num_classes, _basic_option_a, 16, stages)


@register("resnet20", "ResNet-20 of the paper's CIFAR section.", published_parameters=269_722)
def resnet20(input_shape: Shape, num_classes: int) -> nn.Module:
    return _cifar_resnet("resnet20", input_shape, num_classes, 3)


@register("resnet32", "ResNet-32 of the paper's CIFAR section.", published_parameters=464_154)
def resnet32(input_shape: Shape, num_classes: int) -> nn.Module:
    return _cifar_resnet("resnet32", input_shape, num_classes, 5)


@register("resnet44", "ResNet-44 of the paper's CIFAR section.", published_parameters=658_586)
def resnet44(input_shape: Shape, num_classes: int) -> nn.Module:
    return _cifar_resnet("resnet44", input_shape, num_classes, 7)
