"""ONNX's operators on shapes and places, in torch."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attar.packing.onnx.values import Call, Refused, Sizes, Value

_END = 2**31  # from which on the end of a slice means all
_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def shape(call: Call) -> Sizes:
    """The sizes of a value, or a range of them."""
    sizes = list(call.tensor().shape)
    return sizes[call.attribute("start", 0) : call.attribute("end")]


def reshape(call: Call) -> Tensor:
    """Another shape; 0 keeps a size, -1 is what is left."""
    value = call.tensor()
    target = call.listed("shape", 1)
    if target is None:
        raise Refused("has no shape")
    if not call.attribute("allowzero", 0):
        target = [
            value.shape[place] if isinstance(side, int) and side == 0 else side
            for place, side in enumerate(target)
        ]
    return value if _is_shape(value, target) else value.reshape(target)


def _is_shape(value: Tensor, target: Sizes) -> bool:
    """Whether a value has a shape already; the last layer before it is then still the head."""
    if len(target) != value.dim():
        return False
    return all(
        isinstance(wanted, int) and (wanted == -1 or (isinstance(side, int) and side == wanted))
        for side, wanted in zip(value.shape, target, strict=True)
    )


def flatten(call: Call) -> Tensor:
    """All axes from one on as one."""
    value = call.tensor()
    axis = call.attribute("axis", 1) % max(1, value.dim())
    if axis == 0:
        raise Refused("makes one row of the whole batch")
    if axis == 1:
        return value.flatten(1) if value.dim() > 1 else value.unsqueeze(1)
    return value.flatten(axis).flatten(0, axis - 1)


def transpose(call: Call) -> Tensor:
    """The axes in another order."""
    value = call.tensor()
    order = call.attribute("perm") or list(reversed(range(value.dim())))
    return value.permute(*order)


def squeeze(call: Call) -> Value:
    """Without some axes of size 1."""
    value = call.value()
    axes = call.listed("axes", 1)
    if isinstance(value, list):
        return value
    value = call.tensor()
    if axes is None:
        axes = [place for place, side in enumerate(value.shape) if place and side == 1]
    return value.squeeze(tuple(axes))


def unsqueeze(call: Call) -> Value:
    """With more axes of size 1."""
    value = call.value()
    if isinstance(value, list):
        return value
    value = call.tensor()
    axes = call.listed("axes", 1) or []
    rank = value.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        value = value.unsqueeze(axis)
    return value


def concat(call: Call) -> Value:
    """Values, or lists of sizes, one after the other."""
    places = range(len(call.given))
    if any(isinstance(value, list) for value in call.given):
        return [side for place in places for side in call.sizes(place)]
    return torch.cat([call.tensor(place) for place in places], call.attribute("axis", 0))


def gather(call: Call) -> Value:
    """The entries of an axis at constant places."""
    axis = call.attribute("axis", 0)
    places = call.constant(1)
    value = call.value()
    if isinstance(value, list):
        return [value[int(place)] for place in places.reshape(-1)]
    value = call.tensor()
    if places.ndim == 0:
        return value.select(axis, int(places))
    if places.ndim > 1:
        raise Refused("takes places that are no list")
    size = value.shape[axis]
    index = torch.tensor([int(place) % size for place in places])
    return value.index_select(axis, index)


def slices(call: Call) -> Value:
    """Ranges of axes."""
    starts, ends = call.listed("starts", 1) or [], call.listed("ends", 2) or []
    axes = call.listed("axes", 3) or list(range(len(starts)))
    steps = call.sizes(4) if call.has(4) else [1] * len(starts)
    value = call.value()
    if isinstance(value, list):
        return value[_range(starts[0], ends[0], steps[0])]
    value = call.tensor()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            if step != -1 or start not in (-1, value.shape[axis] - 1) or end > -value.shape[axis]:
                raise Refused("takes a range backwards that is not the whole axis")
            value = value.flip(axis)
            continue
        before = (slice(None),) * (axis % value.dim())
        value = value[(*before, _range(start, end, step))]
    return value


def _range(start: int, end: int, step: int) -> slice:
    return slice(start, None if end >= _END else end, step)


def split(call: Call) -> list[Tensor]:
    """A value in pieces along an axis."""
    value = call.tensor()
    axis = call.attribute("axis", 0)
    sizes = call.listed("split", 1)
    if sizes is None:
        pieces = call.attribute("num_outputs", len(call.node.outputs))
        return list(value.split(-(-value.shape[axis] // pieces), axis))
    return list(value.split(sizes, axis))


def pad(call: Call) -> Tensor:
    """Padding with a number, reflected or repeated."""
    value = call.tensor()
    mode = _MODES.get(call.attribute("mode", "constant"))
    if mode is None:
        raise Refused(f"pads by the mode {call.attribute('mode')}")
    widths = call.listed("pads", 1) or []
    axes = call.sizes(3) if call.has(3) else list(range(value.dim()))
    filling = call.number(2) if call.has(2) else float(call.attribute("value", 0.0))
    before = dict.fromkeys(range(value.dim()), 0)
    after = dict(before)
    for place, axis in enumerate(axes):
        before[axis % value.dim()] = widths[place]
        after[axis % value.dim()] = widths[place + len(axes)]
    return pad_axes(value, before, after, mode, filling)


def pad_axes(
    value: Tensor, before: Any, after: Any, mode: str = "constant", filling: float = 0.0
) -> Tensor:
    """Pad axes by widths that are given by axis.

    Args:
        value: the value.
        before: widths in front.
        after: widths behind.
        mode: of torch's ``pad``.
        filling: the number that is put there.

    Raises:
        Refused: if the batch would be padded, or something cut off.
    """
    used = [axis for axis in range(value.dim()) if before[axis] or after[axis]]
    if not used:
        return value
    if used[0] == 0 or min(*before.values(), *after.values()) < 0:
        raise Refused("pads the batch, or cuts off")
    first = 2 if mode != "constant" else used[0]
    flat = [
        width
        for axis in range(value.dim() - 1, first - 1, -1)
        for width in (before[axis], after[axis])
    ]
    return F.pad(value, flat, mode, filling if mode == "constant" else None)


def expand(call: Call) -> Tensor:
    """A value repeated along axes of size 1."""
    value = call.tensor()
    target = call.sizes(1)
    rank = max(value.dim(), len(target))
    value = value[(None,) * (rank - value.dim())]
    target = [1] * (rank - len(target)) + target
    sizes = [
        have if isinstance(wanted, int) and wanted == 1 else wanted
        for have, wanted in zip(value.shape, target, strict=True)
    ]
    return value.expand(sizes)


def constant_of_shape(call: Call) -> Tensor:
    """A constant that is as large as the batch."""
    filling = call.attribute("value")
    number = 0.0 if filling is None else float(np.asarray(filling).reshape(-1)[0])
    return torch.full(call.sizes(0), number)


def depth_to_space(call: Call) -> Tensor:
    """Channels as places of a finer grid."""
    value = call.tensor()
    _, channels, height, width = value.shape
    block = call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "DCR":
        parts, order = (block, block, channels // block**2), (0, 3, 4, 1, 5, 2)
    else:
        parts, order = (channels // block**2, block, block), (0, 1, 4, 2, 5, 3)
    value = value.reshape(-1, *parts, height, width).permute(*order)
    return value.reshape(-1, channels // block**2, height * block, width * block)
