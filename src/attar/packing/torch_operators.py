"""What each of torch's operators becomes in a packed net: one function for each, or for several
that say the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from attar.packing.from_torch import Emit, NoWord, Spread, Translation


def _as(op: str, *names: str, **renamed: str) -> Emit:
    """The same operator under our name, with the arguments ``names`` (renamed: torch's -> ours)."""

    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        kept = {renamed.get(name, name): args.get(name) for name in ("self", *names)}
        kept["input"] = kept.pop("self")
        return to.emit(op, **kept)

    return emit


def _binary(op: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        if node.meta["val"].dtype is not torch.float32:
            raise NoWord(f"makes {node.meta['val'].dtype}")
        one, other = _as_float(args["self"]), _as_float(args["other"])
        if isinstance(one, int | float):
            one = torch.tensor(float(one))
        if args.get("alpha", 1) != 1:
            other = to.emit("mul", input=other, other=args["alpha"])
        return to.emit(op, input=one, other=other)

    return emit


def _as_float(arg: Any) -> Any:
    """A constant as torch takes it beside float32: masks and whole numbers become floats."""
    if isinstance(arg, Spread):
        return Spread(arg.once.float(), arg.sizes)
    return arg.float() if isinstance(arg, Tensor) else arg


def _same(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    """Nothing that is seen in a value: copies, places in memory, dropout that is switched off."""
    if args.get("train") or node.meta["val"].dtype is not torch.float32:
        raise NoWord(f"is in training mode or makes {node.meta['val'].dtype}")
    return args.get("self", args.get("input"))


def _reshaped(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return to.emit("reshape", input=args["self"], shape=to.shape(node))


def _expanded(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    constant, sizes = args["self"], node.meta["val"].shape
    if isinstance(constant, Spread):
        constant = constant.once
    if isinstance(constant, Tensor):
        return Spread(
            constant.expand([side if isinstance(side, int) else 1 for side in sizes]), tuple(sizes)
        )
    return to.emit("expand", input=constant, size=to.shape(node))


def _filled(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    """A constant as large as the batch."""
    value = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1}.get(
        str(node.target).split(".")[1]
    )
    like = node.meta["val"]
    sides = [side if isinstance(side, int) else 1 for side in like.shape]
    return Spread(
        torch.full(sides, args["fill_value"] if value is None else value, dtype=like.dtype),
        tuple(like.shape),
    )


def _permuted(axes: Callable[[int, dict[str, Any]], list[int]]) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        return to.emit("permute", input=args["self"], dims=axes(node.meta["val"].dim(), args))

    return emit


def _swapped(rank: int, args: dict[str, Any]) -> list[int]:
    axes = list(range(rank))
    one, other = args.get("dim0", 0) % rank, args.get("dim1", -1) % rank
    axes[one], axes[other] = axes[other], axes[one]
    return axes


def _reduced(op: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        dim = args["dim"]
        axes = (
            list(range(source.meta["val"].dim()))
            if dim is None or dim == []
            else [dim]
            if isinstance(dim, int)
            else dim
        )
        more: dict[str, Any] = {}
        if op == "vector_norm" and args["ord"] != 2:
            raise NoWord("another norm than the Euclidean")
        if op == "var":
            more["correction"] = 1 if args["correction"] is None else args["correction"]
        return to.emit(op, input=args["self"], dim=axes, keepdim=args["keepdim"], **more)

    return emit


def _convolved(op: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        image, padding = args["input"], args["padding"]
        weight = node.args[1]
        assert isinstance(weight, fx.Node)
        kernel = weight.meta["val"].shape[2:]
        sizes = {name: _each(args[name], len(kernel)) for name in ("stride", "dilation")}
        if padding == "same":
            total = [
                spread * (side - 1) for spread, side in zip(sizes["dilation"], kernel, strict=True)
            ]
            padding = [side // 2 for side in total]
            if any(side % 2 for side in total):
                both = [side for all_ in reversed(total) for side in (all_ // 2, all_ - all_ // 2)]
                image, padding = to.emit("pad", input=image, pad=both), [0] * len(kernel)
        elif padding == "valid":
            padding = [0] * len(kernel)
        more = {"padding": _each(padding, len(kernel)), **sizes, "groups": args["groups"]}
        return to.emit(op, input=image, weight=args["weight"], bias=args["bias"], **more)

    return emit


def _each(given: Any, count: int) -> list[int]:
    each: list[int] = [given] if isinstance(given, int) else list(given)
    return each * count if len(each) == 1 else each


def _pooled(op: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        kernel = _each(args["kernel_size"], 2)
        sizes = {
            "kernel_size": kernel,
            "stride": _each(args["stride"] or kernel, 2),
            "padding": _each(args["padding"], 2),
        }
        if op == "max_pool2d":
            sizes["dilation"] = _each(args["dilation"], 2)
        elif args["divisor_override"] is not None:
            raise NoWord("divides by another number than the window's size")
        return to.emit(
            op,
            input=args["self"],
            **sizes,
            ceil_mode=args["ceil_mode"],
            count_include_pad=args.get("count_include_pad"),
        )

    return emit


def _both(weight: Any, bias: Any) -> dict[str, Any]:
    """Weight and bias of a layer that may have only one of them."""
    if isinstance(bias, Tensor) and weight is None:
        weight = torch.ones_like(bias)
    if isinstance(weight, Tensor) and bias is None:
        bias = torch.zeros_like(weight)
    return {"weight": weight, "bias": bias}


def _batch_normed(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    mean, variance = args["running_mean"], args["running_var"]
    if args.get("training", False) or mean is None or variance is None:
        raise NoWord(
            "takes its statistics from the batch (call .eval(), and keep running statistics)"
        )
    tensors = {"running_mean": mean, "running_var": variance, **_both(args["weight"], args["bias"])}
    if any(isinstance(tensor, dict) for tensor in tensors.values()):
        raise NoWord("has statistics that depend on the images")
    own = {name: None if tensor is None else to.own(tensor) for name, tensor in tensors.items()}
    return to.emit("batch_norm", input=args["input"], **own, eps=args["eps"])


def _batch_normed_and_more(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return [
        _batch_normed(to, node, args)
    ]  # the statistics that are saved for training are not asked for


def _linear(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    weight, bias = args["weight"], args["bias"]
    own = [
        to.own(tensor) if isinstance(tensor, Tensor) and _is_last(node) else tensor
        for tensor in (weight, bias)
    ]
    return to.emit("linear", input=args["input"], weight=own[0], bias=own[1])


def _is_last(node: fx.Node) -> bool:
    return all(user.op == "output" for user in node.users)


def _added_product(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    if args.get("alpha", 1) != 1 or args.get("beta", 1) != 1:
        raise NoWord("alpha or beta")
    names = ("mat1", "mat2") if "mat1" in args else ("batch1", "batch2")
    product = to.emit("matmul", input=args[names[0]], other=args[names[1]])
    return to.emit("add", input=product, other=args["self"])


def _product(second: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        return to.emit("matmul", input=args["self"], other=args[second])

    return emit


def _attended(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    if args["dropout_p"] or args["is_causal"] or args["enable_gqa"]:
        raise NoWord("with dropout, a causal mask or grouped queries")
    mask = args["attn_mask"]
    if isinstance(mask, Spread):
        mask = mask.once  # it is added to scores that are as large as the batch
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:
        mask = None if mask.all() else torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    names = {name: args[name] for name in ("query", "key", "value")}
    return to.emit("scaled_dot_product_attention", **names, attn_mask=mask, scale=args["scale"])


def _softmaxed(op: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        if node.meta["val"].dtype is not torch.float32:
            raise NoWord(f"makes {node.meta['val'].dtype}")
        return to.emit(op, input=args["self"], dim=args["dim"])

    return emit


def _sliced(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    size = source.meta["val"].shape[args["dim"]]
    start, end, step = args["start"] or 0, args["end"], args["step"]
    if not isinstance(size, int):
        if start == 0 and step == 1 and (end is None or (isinstance(end, int) and end >= 2**62)):
            return args["self"]  # the whole batch
        raise NoWord("takes images out of the batch")
    start, end, _ = slice(start, end).indices(size)
    return to.emit("slice", input=args["self"], dim=args["dim"], start=start, end=end, step=step)


def _split(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    """Several slices; torch's graph takes them out one by one, and those that nobody takes are
    dropped.
    """
    pieces, start, dim = [], 0, args["dim"]
    for piece in node.meta["val"]:
        size = piece.shape[dim]
        if not isinstance(size, int):
            raise NoWord("takes images out of the batch")
        pieces.append(to.emit("slice", input=args["self"], dim=dim, start=start, end=start + size))
        start += size
    return pieces


def _unbound(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return [
        to.emit("select", input=args["self"], dim=args["dim"], index=place)
        for place in range(len(node.meta["val"]))
    ]


def _stacked(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    rank = node.meta["val"].dim()
    dim = args["dim"] % rank
    shape = to.shape(node)
    shape[dim] = 1
    pieces = [to.emit("reshape", input=tensor, shape=shape) for tensor in args["tensors"]]
    return to.emit("cat", tensors=pieces, dim=dim)


def _joined(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return to.emit("cat", tensors=args["tensors"], dim=args["dim"])


def _indexed(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    """x[:, :, index] with one list of places that is a constant."""
    given = args["indices"] if "indices" in args else [None] * args["dim"] + [args["index"]]
    places = [(dim, index) for dim, index in enumerate(given) if index is not None]
    if (
        len(places) != 1
        or not isinstance(places[0][1], Tensor)
        or places[0][1].dtype is not torch.int64
    ):
        raise NoWord("takes places that depend on the images, or along several axes")
    ((dim, index),) = places
    source = node.args[0]
    assert isinstance(source, fx.Node)
    size = source.meta["val"].shape[dim]
    if not isinstance(size, int):
        raise NoWord("takes images out of the batch")
    picked = to.emit(
        "index_select", input=args["self"], dim=dim, index=(index % size).flatten().tolist()
    )
    return picked if index.dim() == 1 else to.emit("reshape", input=picked, shape=to.shape(node))


def _chosen(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    condition = args.get("condition", args.get("mask"))
    if isinstance(condition, Spread):
        condition = condition.once
    if not isinstance(condition, Tensor):
        raise NoWord("chooses by a condition that depends on the images")
    if "mask" in args:
        return to.emit(
            "where", condition=condition, input=_number(args["value"]), other=args["self"]
        )
    return to.emit(
        "where", condition=condition, input=_number(args["self"]), other=_number(args["other"])
    )


def _number(given: Any) -> Any:
    """Infinities become numbers that no softmax chooses."""
    if isinstance(given, Tensor) and given.dim() == 0:
        given = float(given)
    return (
        max(-1e9, min(1e9, given))
        if isinstance(given, int | float) and abs(given) > 1e30
        else given
    )


def _clamped(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    low, high = (args.get(name) for name in ("min", "max"))
    return to.emit(
        "clamp",
        input=args["self"],
        min=-1e30 if low is None else low,
        max=1e30 if high is None else high,
    )


def _padded(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    pad, mode = args["pad"], args.get("mode", "constant")
    if any(side < 0 for side in pad):
        raise NoWord("cuts off where it should pad")
    return to.emit(
        "pad",
        input=args["self"],
        pad=pad,
        mode=mode,
        value=args["value"] if mode == "constant" else None,
    )


def _rolled(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    if not args["dims"]:
        raise NoWord("rolls over all axes at once")
    return to.emit(
        "roll", input=args["self"], shifts=_each(args["shifts"], 1), dims=_each(args["dims"], 1)
    )


def _normed(op: str, *names: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        affine = _both(args["weight"], args["bias"])
        return to.emit(
            op,
            input=args["input"],
            **affine,
            eps=args["eps"],
            **{name: args[name] for name in names},
        )

    return emit


def _powered(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return to.emit("pow", input=args["self"], exponent=args["exponent"])


_UNARY = [
    "abs", "erf", "exp", "hardsigmoid", "hardswish", "mish", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "silu",
    "sqrt", "tanh",
]  # fmt: skip
_COPIES = [
    "clone",
    "contiguous",
    "alias",
    "lift_fresh_copy",
    "_to_copy",
    "to.dtype",
    "to.dtype_layout",
    "dropout",
]
_VIEWS = [
    "view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int", "squeeze", "squeeze.dim",
    "squeeze.dims", "unsqueeze", "view_as", "reshape_as",
]  # fmt: skip

WORDS: dict[str, Emit] = {
    (f"aten.{name}" if "." in name else f"aten.{name}.default"): emit
    for names, emit in [
        *(((name,), _as(name)) for name in _UNARY),
        (_COPIES, _same),
        (_VIEWS, _reshaped),
        (("expand", "expand_as", "broadcast_to"), _expanded),
        (("full", "zeros", "ones", "full_like", "zeros_like", "ones_like"), _filled),
        (("add.Tensor", "add.Scalar"), _binary("add")),
        (("sub.Tensor", "sub.Scalar"), _binary("sub")),
        (("mul.Tensor", "mul.Scalar"), _binary("mul")),
        (("div.Tensor", "div.Scalar"), _binary("div")),
        (("maximum",), _binary("maximum")),
        (("minimum",), _binary("minimum")),
        (("permute",), _permuted(lambda rank, args: list(args["dims"]))),
        (("transpose.int", "t", "numpy_T"), _permuted(_swapped)),
        (("mean.dim",), _reduced("mean")),
        (("sum.dim_IntList",), _reduced("sum")),
        (("amax",), _reduced("amax")),
        (("var.correction",), _reduced("var")),
        (("linalg_vector_norm",), _reduced("vector_norm")),
        (("conv1d", "conv1d.padding"), _convolved("conv1d")),
        (("conv2d", "conv2d.padding"), _convolved("conv2d")),
        (("max_pool2d",), _pooled("max_pool2d")),
        (("avg_pool2d",), _pooled("avg_pool2d")),
        (("adaptive_avg_pool1d",), _as("adaptive_avg_pool1d", "output_size")),
        (("adaptive_avg_pool2d",), _as("adaptive_avg_pool2d", "output_size")),
        (("batch_norm",), _batch_normed),
        (("_native_batch_norm_legit_no_training",), _batch_normed_and_more),
        (("layer_norm",), _normed("layer_norm", "normalized_shape")),
        (("group_norm",), _normed("group_norm", "num_groups")),
        (("linear",), _linear),
        (("addmm", "baddbmm"), _added_product),
        (("mm", "bmm"), _product("mat2")),
        (("matmul",), _product("other")),
        (("scaled_dot_product_attention",), _attended),
        (("softmax.int", "_softmax"), _softmaxed("softmax")),
        (("log_softmax.int", "_log_softmax"), _softmaxed("log_softmax")),
        (("slice.Tensor",), _sliced),
        (("split.Tensor", "split_with_sizes", "chunk"), _split),
        (("unbind.int",), _unbound),
        (("select.int",), _as("select", "dim", "index")),
        (("stack",), _stacked),
        (("cat",), _joined),
        (("index.Tensor", "index_select"), _indexed),
        (
            (
                "where.self",
                "where.ScalarOther",
                "where.ScalarSelf",
                "where.Scalar",
                "masked_fill.Scalar",
            ),
            _chosen,
        ),
        (("masked_fill.Tensor",), _chosen),
        (("clamp", "clamp_min", "clamp_max"), _clamped),
        (("pad", "constant_pad_nd"), _padded),
        (("roll",), _rolled),
        (("flip",), _as("flip", "dims")),
        (("pow.Tensor_Scalar",), _powered),
        (("gelu",), _as("gelu", "approximate")),
        (("hardtanh",), _as("hardtanh", "min_val", "max_val")),
        (("leaky_relu",), _as("leaky_relu", "negative_slope")),
        (("elu",), _as("elu", "alpha", "scale", "input_scale")),
        (("softplus",), _as("softplus", "beta", "threshold")),
        (("prelu",), _as("prelu", "weight")),
    ]
    for name in names
}


def _overload(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


# Names of our own table, never of a file: what run_decompositions shall leave whole.
KEPT = [_overload(name) for name in WORDS]
