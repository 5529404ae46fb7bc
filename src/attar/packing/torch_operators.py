"""What each of torch's operators becomes in a packed net: the table ``CONVERTERS``.

Layers and shapes have their own files; here are the operators on single numbers, reductions and
choices.
"""

from typing import Any

import torch
from torch import Tensor, fx

from attar.packing.convert_layers import (
    convert_addmm,
    convert_attention,
    convert_batch_norm,
    convert_convolution,
    convert_linear,
    convert_matmul,
    convert_native_batch_norm,
    convert_norm,
    convert_pool,
    convert_softmax,
)
from attar.packing.convert_shapes import (
    convert_cat,
    convert_expand,
    convert_fill,
    convert_index,
    convert_pad,
    convert_permute,
    convert_reshape,
    convert_roll,
    convert_slice,
    convert_split,
    convert_stack,
    convert_unbind,
    swap_axes,
)
from attar.packing.from_torch import BatchConstant, Converter, GraphBuilder, UnsupportedOperator


def _rename(op: str, *names: str) -> Converter:
    """The same operator of the packed net, with the arguments ``names`` and the input."""

    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        renamed = {name: args.get(name) for name in names}
        return builder.add_node(op, **renamed, input=args.get("self"))

    return convert


def _convert_binary(op: str) -> Converter:
    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        if node.meta["val"].dtype is not torch.float32:
            raise UnsupportedOperator(f"makes {node.meta['val'].dtype}")
        first = _to_float(args["self"])
        second = _to_float(args["other"])
        if isinstance(first, int | float):
            first = torch.tensor(float(first))
        if args.get("alpha", 1) != 1:
            second = builder.add_node("mul", input=second, other=args["alpha"])
        return builder.add_node(op, input=first, other=second)

    return convert


def _to_float(arg: Any) -> Any:
    """A constant as torch takes it beside float32: masks and whole numbers become floats."""
    if isinstance(arg, BatchConstant):
        return BatchConstant(arg.value.float(), arg.sizes)
    return arg.float() if isinstance(arg, Tensor) else arg


def _skip(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """What changes no value: copies, layouts, dropout that is switched off."""
    if args.get("train") or node.meta["val"].dtype is not torch.float32:
        raise UnsupportedOperator(f"is in training mode or makes {node.meta['val'].dtype}")
    return args.get("self", args.get("input"))


def _convert_reduction(op: str) -> Converter:
    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        axes = args["dim"]
        if axes is None or axes == []:
            axes = list(range(source.meta["val"].dim()))
        elif isinstance(axes, int):
            axes = [axes]
        more: dict[str, Any] = {}
        if op == "vector_norm" and args["ord"] != 2:
            raise UnsupportedOperator("another norm than the Euclidean")
        if op == "var":
            more["correction"] = 1 if args["correction"] is None else args["correction"]
        return builder.add_node(op, input=args["self"], dim=axes, keepdim=args["keepdim"], **more)

    return convert


def _convert_where(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    condition = args.get("condition", args.get("mask"))
    if isinstance(condition, BatchConstant):
        condition = condition.value
    if not isinstance(condition, Tensor):
        raise UnsupportedOperator("chooses by a condition that depends on the images")
    if "mask" in args:
        value = _limit(args["value"])
        return builder.add_node("where", condition=condition, input=value, other=args["self"])
    first = _limit(args["self"])
    second = _limit(args["other"])
    return builder.add_node("where", condition=condition, input=first, other=second)


def _limit(value: Any) -> Any:
    """Replace infinities by numbers that a softmax treats alike."""
    if isinstance(value, Tensor) and value.dim() == 0:
        value = float(value)
    if isinstance(value, int | float) and abs(value) > 1e30:
        return max(-1e9, min(1e9, value))
    return value


def _convert_clamp(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    low = -1e30 if args.get("min") is None else args["min"]
    high = 1e30 if args.get("max") is None else args["max"]
    return builder.add_node("clamp", input=args["self"], min=low, max=high)


def _convert_pow(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    return builder.add_node("pow", input=args["self"], exponent=args["exponent"])


# fmt: off
_UNARY = [
    "abs", "erf", "exp", "hardsigmoid", "hardswish", "mish", "neg", "reciprocal", "relu", "rsqrt",
    "sigmoid", "silu", "sqrt", "tanh",
]
_COPIES = [
    "clone", "contiguous", "alias", "lift_fresh_copy", "_to_copy", "to.dtype", "to.dtype_layout",
    "dropout",
]
_VIEWS = [
    "view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int", "squeeze",
    "squeeze.dim", "squeeze.dims", "unsqueeze", "view_as", "reshape_as",
]
_CHOICES = [
    "where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", "masked_fill.Scalar",
    "masked_fill.Tensor",
]
# fmt: on

CONVERTERS: dict[str, Converter] = {
    (f"aten.{name}" if "." in name else f"aten.{name}.default"): convert
    for names, convert in [
        *(((name,), _rename(name)) for name in _UNARY),
        (_COPIES, _skip),
        (_VIEWS, convert_reshape),
        (("expand", "expand_as", "broadcast_to"), convert_expand),
        (("full", "zeros", "ones", "full_like", "zeros_like", "ones_like"), convert_fill),
        (("add.Tensor", "add.Scalar"), _convert_binary("add")),
        (("sub.Tensor", "sub.Scalar"), _convert_binary("sub")),
        (("mul.Tensor", "mul.Scalar"), _convert_binary("mul")),
        (("div.Tensor", "div.Scalar"), _convert_binary("div")),
        (("maximum",), _convert_binary("maximum")),
        (("minimum",), _convert_binary("minimum")),
        (("permute",), convert_permute(lambda rank, args: list(args["dims"]))),
        (("transpose.int", "t", "numpy_T"), convert_permute(swap_axes)),
        (("mean.dim",), _convert_reduction("mean")),
        (("sum.dim_IntList",), _convert_reduction("sum")),
        (("amax",), _convert_reduction("amax")),
        (("var.correction",), _convert_reduction("var")),
        (("linalg_vector_norm",), _convert_reduction("vector_norm")),
        (("conv1d", "conv1d.padding"), convert_convolution("conv1d")),
        (("conv2d", "conv2d.padding"), convert_convolution("conv2d")),
        (("max_pool2d",), convert_pool("max_pool2d")),
        (("avg_pool2d",), convert_pool("avg_pool2d")),
        (("adaptive_avg_pool1d",), _rename("adaptive_avg_pool1d", "output_size")),
        (("adaptive_avg_pool2d",), _rename("adaptive_avg_pool2d", "output_size")),
        (("batch_norm",), convert_batch_norm),
        (("_native_batch_norm_legit_no_training",), convert_native_batch_norm),
        (("layer_norm",), convert_norm("layer_norm", "normalized_shape")),
        (("group_norm",), convert_norm("group_norm", "num_groups")),
        (("linear",), convert_linear),
        (("addmm", "baddbmm"), convert_addmm),
        (("mm", "bmm"), convert_matmul("mat2")),
        (("matmul",), convert_matmul("other")),
        (("scaled_dot_product_attention",), convert_attention),
        (("softmax.int", "_softmax"), convert_softmax("softmax")),
        (("log_softmax.int", "_log_softmax"), convert_softmax("log_softmax")),
        (("slice.Tensor",), convert_slice),
        (("split.Tensor", "split_with_sizes", "chunk"), convert_split),
        (("unbind.int",), convert_unbind),
        (("select.int",), _rename("select", "dim", "index")),
        (("stack",), convert_stack),
        (("cat",), convert_cat),
        (("index.Tensor", "index_select"), convert_index),
        (_CHOICES, _convert_where),
        (("clamp", "clamp_min", "clamp_max"), _convert_clamp),
        (("pad", "constant_pad_nd"), convert_pad),
        (("roll",), convert_roll),
        (("flip",), _rename("flip", "dims")),
        (("pow.Tensor_Scalar",), _convert_pow),
        (("gelu",), _rename("gelu", "approximate")),
        (("hardtanh",), _rename("hardtanh", "min_val", "max_val")),
        (("leaky_relu",), _rename("leaky_relu", "negative_slope")),
        (("elu",), _rename("elu", "alpha", "scale", "input_scale")),
        (("softplus",), _rename("softplus", "beta", "threshold")),
        (("prelu",), _rename("prelu", "weight")),
    ]
    for name in names
}


def _overload(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


# What run_decompositions must leave whole. The names are those of the table, never of a file.
NOT_DECOMPOSED = [_overload(name) for name in CONVERTERS]
