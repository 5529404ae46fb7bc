"""Torch's operators on shapes and places as nodes of a packed net."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from attar.packing.from_torch import BatchConstant, Converter, GraphBuilder, UnsupportedOperator


def to_sizes(value: Any, count: int) -> list[int]:
    """A list of sizes, where torch also takes one number for all axes.

    Args:
        value: a number, or a list of one or ``count`` numbers.
        count: how many axes.
    """
    sizes: list[int] = [value] if isinstance(value, int) else list(value)
    return sizes * count if len(sizes) == 1 else sizes


def convert_reshape(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """A view, reshape, squeeze or flatten becomes ``reshape``."""
    return builder.add_node("reshape", input=args["self"], shape=builder.shape_of(node))


def convert_expand(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """An expansion of a value; of a constant, another constant."""
    constant = args["self"]
    sizes = node.meta["val"].shape
    if isinstance(constant, BatchConstant):
        constant = constant.value
    if isinstance(constant, Tensor):
        once = [side if isinstance(side, int) else 1 for side in sizes]
        return BatchConstant(constant.expand(once), tuple(sizes))
    return builder.add_node("expand", input=constant, size=builder.shape_of(node))


def convert_fill(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """A constant as large as the batch."""
    fixed = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1}
    value = fixed.get(str(node.target).split(".")[1])
    if value is None:
        value = args["fill_value"]
    like = node.meta["val"]
    once = [side if isinstance(side, int) else 1 for side in like.shape]
    return BatchConstant(torch.full(once, value, dtype=like.dtype), tuple(like.shape))


def convert_permute(axes: Callable[[int, dict[str, Any]], list[int]]) -> Converter:
    """A converter for permutations.

    Args:
        axes: number of axes and arguments of torch's operator -> the order of the axes.
    """

    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        return builder.add_node(
            "permute", input=args["self"], dims=axes(node.meta["val"].dim(), args)
        )

    return convert


def swap_axes(rank: int, args: dict[str, Any]) -> list[int]:
    """The order of ``rank`` axes of which ``dim0`` and ``dim1`` are exchanged."""
    axes = list(range(rank))
    first = args.get("dim0", 0) % rank
    second = args.get("dim1", -1) % rank
    axes[first], axes[second] = axes[second], axes[first]
    return axes


def convert_slice(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """A range of an axis; the whole batch as it is.

    Raises:
        UnsupportedOperator: if it takes images out of the batch.
    """
    source = node.args[0]
    assert isinstance(source, fx.Node)
    size = source.meta["val"].shape[args["dim"]]
    start = args["start"] or 0
    end = args["end"]
    step = args["step"]
    if not isinstance(size, int):
        if start == 0 and step == 1 and (end is None or (isinstance(end, int) and end >= 2**62)):
            return args["self"]  # the whole batch
        raise UnsupportedOperator("takes images out of the batch")
    start, end, _ = slice(start, end).indices(size)
    return builder.add_node(
        "slice", input=args["self"], dim=args["dim"], start=start, end=end, step=step
    )


def convert_split(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """A split becomes one slice for each piece; the pieces that are not used are dropped later.

    Raises:
        UnsupportedOperator: if it takes images out of the batch.
    """
    dim = args["dim"]
    pieces = []
    start = 0
    for piece in node.meta["val"]:
        size = piece.shape[dim]
        if not isinstance(size, int):
            raise UnsupportedOperator("takes images out of the batch")
        end = start + size
        pieces.append(builder.add_node("slice", input=args["self"], dim=dim, start=start, end=end))
        start = end
    return pieces


def convert_unbind(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """One ``select`` for each entry of an axis."""
    return [
        builder.add_node("select", input=args["self"], dim=args["dim"], index=place)
        for place in range(len(node.meta["val"]))
    ]


def convert_stack(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """Values are reshaped and joined."""
    rank = node.meta["val"].dim()
    dim = args["dim"] % rank
    shape = builder.shape_of(node)
    shape[dim] = 1
    pieces = [builder.add_node("reshape", input=tensor, shape=shape) for tensor in args["tensors"]]
    return builder.add_node("cat", tensors=pieces, dim=dim)


def convert_cat(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """Values are joined."""
    return builder.add_node("cat", tensors=args["tensors"], dim=args["dim"])


def convert_index(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """``x[:, :, index]`` with one list of places that is a constant.

    Raises:
        UnsupportedOperator: if there are several lists, they depend on the images, or they take
            images out of the batch.
    """
    indices = args["indices"] if "indices" in args else [None] * args["dim"] + [args["index"]]
    used = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    several = "takes places that depend on the images, or along several axes"
    if len(used) != 1:
        raise UnsupportedOperator(several)
    ((dim, index),) = used
    if not isinstance(index, Tensor) or index.dtype is not torch.int64:
        raise UnsupportedOperator(several)
    source = node.args[0]
    assert isinstance(source, fx.Node)
    size = source.meta["val"].shape[dim]
    if not isinstance(size, int):
        raise UnsupportedOperator("takes images out of the batch")
    places = (index % size).flatten().tolist()
    selected = builder.add_node("index_select", input=args["self"], dim=dim, index=places)
    if index.dim() == 1:
        return selected
    return builder.add_node("reshape", input=selected, shape=builder.shape_of(node))


def convert_pad(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """Padding with a constant, reflected or repeated.

    Raises:
        UnsupportedOperator: if a width is negative.
    """
    pad = args["pad"]
    mode = args.get("mode", "constant")
    if any(width < 0 for width in pad):
        raise UnsupportedOperator("has negative widths, which cut off")
    value = args["value"] if mode == "constant" else None
    return builder.add_node("pad", input=args["self"], pad=pad, mode=mode, value=value)


def convert_roll(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """A roll along named axes.

    Raises:
        UnsupportedOperator: if no axes are named.
    """
    if not args["dims"]:
        raise UnsupportedOperator("rolls over all axes at once")
    shifts = to_sizes(args["shifts"], 1)
    axes = to_sizes(args["dims"], 1)
    return builder.add_node("roll", input=args["self"], shifts=shifts, dims=axes)
