"""ONNX's convolutions and pools in torch, whose padding is the same on both sides."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.packing.onnx.shapes import pad_axes
from attar.packing.onnx.values import Call, Refused

LOWEST = -1e30  # below every value of a net, where a pool takes the largest


def _paddings(call: Call, value: Tensor, kernel: list[int], dilations: list[int]) -> list[int]:
    """Widths before each axis, then after each."""
    space = len(kernel)
    auto = call.attribute("auto_pad", "NOTSET")
    if auto == "VALID":
        return [0] * 2 * space
    if auto == "NOTSET":
        return list(call.attribute("pads") or [0] * 2 * space)
    strides = call.attribute("strides") or [1] * space
    before, after = [], []
    for side, window, stride, step in zip(value.shape[2:], kernel, strides, dilations, strict=True):
        reach = (window - 1) * step + 1
        total = max(0, (math.ceil(side / stride) - 1) * stride + reach - side)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return before + after


def _pad_sides(value: Tensor, widths: list[int], filling: float) -> Tensor:
    """Pad height and width, which may differ on their sides."""
    space = len(widths) // 2
    before = {0: 0, 1: 0} | {axis + 2: widths[axis] for axis in range(space)}
    after = {0: 0, 1: 0} | {axis + 2: widths[axis + space] for axis in range(space)}
    return pad_axes(value, before, after, filling=filling)


def convolve(call: Call) -> Tensor:
    """A convolution along one or two axes."""
    value, weight = call.tensor(), call.tensor(1)
    kernel = list(weight.shape[2:])
    if len(kernel) not in (1, 2):
        raise Refused(f"works along {len(kernel)} axes; packed nets have one or two")
    dilations = list(call.attribute("dilations") or [1] * len(kernel))
    widths = _paddings(call, value, kernel, dilations)
    padding = widths[: len(kernel)]
    if padding != widths[len(kernel) :]:
        value, padding = _pad_sides(value, widths, 0.0), [0] * len(kernel)
    function = F.conv1d if len(kernel) == 1 else F.conv2d
    return function(
        value,
        weight,
        call.optional(2),
        stride=list(call.attribute("strides") or [1] * len(kernel)),
        padding=padding,
        dilation=dilations,
        groups=call.attribute("group", 1),
    )


def _window(call: Call) -> tuple[Tensor, list[int], list[int], list[int]]:
    """Input, kernel, strides and widths of a pool over images."""
    value = call.tensor()
    kernel = list(call.attribute("kernel_shape") or [])
    if len(kernel) != 2 or value.dim() != 4:
        raise Refused(f"is a pool along {len(kernel)} axes; packed nets have pools over images")
    dilations = list(call.attribute("dilations") or [1, 1])
    strides = list(call.attribute("strides") or [1, 1])
    return value, kernel, strides, _paddings(call, value, kernel, dilations)


def _fits(widths: list[int], kernel: list[int]) -> bool:
    """Whether torch's own padding can be used: the same on both sides, at most half a window."""
    half = all(2 * width <= side for width, side in zip(widths[:2], kernel, strict=True))
    return half and widths[:2] == widths[2:]


def pool_largest(call: Call) -> Tensor:
    """The largest value in each window."""
    if len(call.node.outputs) > 1 and call.node.outputs[1]:
        raise Refused("gives the places of the largest values")
    value, kernel, strides, widths = _window(call)
    padding = widths[:2]
    if not _fits(widths, kernel):
        value, padding = _pad_sides(value, widths, LOWEST), [0, 0]
    dilations = list(call.attribute("dilations") or [1, 1])
    rounding = bool(call.attribute("ceil_mode", 0))
    return F.max_pool2d(value, kernel, strides, padding, dilations, rounding)


def pool_average(call: Call) -> Tensor:
    """The mean of each window, with or without the padding."""
    value, kernel, strides, widths = _window(call)
    if any(step != 1 for step in call.attribute("dilations") or ()):
        raise Refused("has gaps in its window")
    rounding = bool(call.attribute("ceil_mode", 0))
    with_padding = bool(call.attribute("count_include_pad", 0))
    if _fits(widths, kernel):
        return F.avg_pool2d(value, kernel, strides, widths[:2], rounding, with_padding)
    pooled = F.avg_pool2d(_pad_sides(value, widths, 0.0), kernel, strides, 0, rounding)
    if with_padding:
        return pooled
    inside = _pad_sides(torch.ones(1, 1, *value.shape[2:]), widths, 0.0)
    return pooled / F.avg_pool2d(inside, kernel, strides, 0, rounding)
