"""Every operator that a packed net may use: what it takes, and what it costs.

A graph from a file (``format.py``) can do nothing but call these. Each argument has a kind that
reads it strictly (``arguments.py``); what depends on shapes is checked when they are known and
nothing is allocated yet (``checks.py``).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.nets.graph import checks
from attar.nets.graph.arguments import (
    MAX_LENGTH,
    MAX_LIST,
    MAX_RANK,
    MAX_WINDOW,
    Choice,
    Flag,
    Kind,
    Maybe,
    Number,
    OwnWeight,
    Sizes,
    Value,
    Values,
    Whole,
    Wholes,
)
from attar.nets.graph.checks import Args, Check


@dataclass(frozen=True)
class Cost:
    """What one call costs.

    Attributes:
        work: multiply-accumulates.
        temporary: elements that it needs beside its result while it runs.
    """

    work: int
    temporary: int = 0


def _elements(args: Args, result: Tensor) -> Cost:
    taken = [value for value in args.values() if isinstance(value, Tensor)]
    return Cost(max(result.numel(), *(value.numel() for value in taken), 1))


def _nothing(args: Args) -> str | None:
    return None


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        call: computes it; takes the arguments by keyword.
        arguments: their kinds by name, in order.
        check: whether the shapes match; returns the problem or None.
        cost: arguments and result -> what the call costs.
    """

    call: Callable[..., Tensor]
    arguments: Mapping[str, Kind]
    check: Check = _nothing
    cost: Callable[[Args, Tensor], Cost] = _elements


# --- what it costs --------------------------------------------------------------------------------


def _conv_cost(args: Args, result: Tensor) -> Cost:
    weight = args["weight"]
    image = args["input"]
    window = math.prod(weight.shape[2:])
    places = result.numel() // result.shape[1]
    work = result.numel() * weight.shape[1] * window
    return Cost(work, image.shape[1] * window * places + image.numel())


def _pool_cost(args: Args, result: Tensor) -> Cost:
    return Cost(result.numel() * math.prod(args["kernel_size"]), result.numel() * 2)


def _adaptive_cost(args: Args, result: Tensor) -> Cost:
    sides = zip(args["input"].shape[-len(args["output_size"]) :], args["output_size"], strict=True)
    return Cost(result.numel() * math.prod(-(-side // out) + 1 for side, out in sides))


def _matmul_cost(args: Args, result: Tensor) -> Cost:
    # A matrix that is broadcast over the others may be copied for each of them.
    outer = result.numel() // (result.shape[-1] * result.shape[-2])
    copied = outer * sum(args[name].shape[-1] * args[name].shape[-2] for name in ("input", "other"))
    return Cost(result.numel() * args["input"].shape[-1], copied)


def _linear_cost(args: Args, result: Tensor) -> Cost:
    return Cost(result.numel() * args["weight"].shape[1], args["input"].numel())


def _attention_cost(args: Args, result: Tensor) -> Cost:
    scores = args["query"].numel() // args["query"].shape[-1] * args["key"].shape[-2]
    return Cost(scores * (args["query"].shape[-1] + args["value"].shape[-1]), 3 * scores)


def _copies_cost(args: Args, result: Tensor) -> Cost:
    """The cost where a value that was only broadcast has to be written out."""
    return Cost(_elements(args, result).work, result.numel())


# --- the calls that are not torch's own -----------------------------------------------------------


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q k^T s + mask) v, written out, since the fused kernels cannot be stacked by vmap."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    return torch.softmax(scores if attn_mask is None else scores + attn_mask, -1) @ value


def _norm(input: Tensor, running_mean: Tensor, running_var: Tensor, **rest: Any) -> Tensor:
    return F.batch_norm(input, running_mean, running_var, training=False, **rest)


def _slice(input: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    return input[(slice(None),) * (dim % input.dim()) + (slice(start, end, step),)]


def _expand(input: Tensor, size: tuple[int, ...]) -> Tensor:
    return input.expand(size)


def _where(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor:
    chosen: Tensor = torch.where(condition, input, other)
    return chosen


def _elu(input: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.ops.aten.elu.default(input, alpha, scale, input_scale)  # type: ignore[no-any-return]


def _variance(
    input: Tensor, dim: tuple[int, ...], correction: float = 1, keepdim: bool = False
) -> Tensor:
    return torch.var(input, dim, correction=correction, keepdim=keepdim)


def _length(input: Tensor, dim: tuple[int, ...], keepdim: bool = False) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(input, 2, dim, keepdim)
    return length


# --- the table ------------------------------------------------------------------------------------

_X = Value()
_AXIS = Whole(-MAX_RANK, MAX_RANK - 1)
_AXES = Wholes(-MAX_RANK, MAX_RANK - 1, 1, MAX_RANK)
_EPS = Number(0, 1e3)


def _unary(call: Callable[..., Tensor], **more: Kind) -> Operator:
    return Operator(call, {"input": _X, **more})


def _binary(call: Callable[..., Tensor], *, number: bool = True) -> Operator:
    return Operator(call, {"input": _X, "other": Value(number=number)}, cost=_copies_cost)


def _reduction(call: Callable[..., Tensor], **more: Kind) -> Operator:
    arguments: dict[str, Kind] = {"input": _X, "dim": _AXES, "keepdim": Maybe(Flag()), **more}
    return Operator(call, arguments, checks.axes("dim"), _copies_cost)


def _window(low: int, count: int) -> Wholes:
    return Wholes(low, MAX_WINDOW, count, count)


def _convolution(call: Callable[..., Tensor], space: int) -> Operator:
    windows = {
        "stride": Maybe(_window(1, space)),
        "padding": Maybe(_window(0, space)),
        "dilation": Maybe(_window(1, space)),
    }
    more: dict[str, Kind] = {**windows, "groups": Maybe(Whole(1, 2**20))}
    arguments: dict[str, Kind] = {"input": _X, "weight": _X, "bias": Maybe(_X), **more}
    return Operator(call, arguments, checks.conv, _conv_cost)


OPERATORS: dict[str, Operator] = {
    "abs": _unary(torch.abs),
    "adaptive_avg_pool1d": Operator(
        F.adaptive_avg_pool1d,
        {"input": _X, "output_size": _window(1, 1)},
        checks.rank("input", 3),
        _adaptive_cost,
    ),
    "adaptive_avg_pool2d": Operator(
        F.adaptive_avg_pool2d,
        {"input": _X, "output_size": _window(1, 2)},
        checks.rank("input", 4),
        _adaptive_cost,
    ),
    "add": _binary(torch.add),
    "amax": _reduction(torch.amax),
    "avg_pool2d": Operator(
        F.avg_pool2d,
        {
            "input": _X,
            "kernel_size": _window(1, 2),
            "stride": _window(1, 2),
            "padding": Maybe(_window(0, 2)),
            "ceil_mode": Maybe(Flag()),
            "count_include_pad": Maybe(Flag()),
        },
        checks.pool,
        _pool_cost,
    ),
    "batch_norm": Operator(
        _norm,
        {
            "input": _X,
            "running_mean": OwnWeight(),
            "running_var": OwnWeight(),
            "weight": Maybe(OwnWeight()),
            "bias": Maybe(OwnWeight()),
            "eps": _EPS,
        },
        checks.batch_norm,
    ),
    "cat": Operator(torch.cat, {"tensors": Values(), "dim": _AXIS}, checks.cat),
    "clamp": _unary(torch.clamp, min=Number(), max=Number()),
    "conv1d": _convolution(F.conv1d, 1),
    "conv2d": _convolution(F.conv2d, 2),
    "div": _binary(torch.div),
    "elu": _unary(_elu, alpha=Maybe(Number()), scale=Maybe(Number()), input_scale=Maybe(Number())),
    "erf": _unary(torch.erf),
    "exp": _unary(torch.exp),
    "expand": Operator(
        _expand, {"input": _X, "size": Sizes()}, checks.size_matches("size"), _copies_cost
    ),
    "flip": Operator(torch.flip, {"input": _X, "dims": _AXES}, checks.axes("dims")),
    "gelu": _unary(F.gelu, approximate=Maybe(Choice(("none", "tanh")))),
    "group_norm": Operator(
        F.group_norm,
        {
            "input": _X,
            "num_groups": Whole(1, 2**20),
            "weight": Maybe(_X),
            "bias": Maybe(_X),
            "eps": _EPS,
        },
        checks.group_norm,
        _copies_cost,
    ),
    "hardsigmoid": _unary(F.hardsigmoid),
    "hardswish": _unary(F.hardswish),
    "hardtanh": _unary(F.hardtanh, min_val=Number(), max_val=Number()),
    "index_select": Operator(
        torch.index_select,
        {"input": _X, "dim": _AXIS, "index": Wholes(0, MAX_LENGTH, 1, MAX_LIST)},
        checks.index_select,
    ),
    "layer_norm": Operator(
        F.layer_norm,
        {
            "input": _X,
            "normalized_shape": Wholes(1, MAX_LENGTH, 1, MAX_RANK),
            "weight": Maybe(_X),
            "bias": Maybe(_X),
            "eps": _EPS,
        },
        checks.layer_norm,
        _copies_cost,
    ),
    "leaky_relu": _unary(F.leaky_relu, negative_slope=Number()),
    "linear": Operator(
        F.linear, {"input": _X, "weight": _X, "bias": Maybe(_X)}, checks.linear, _linear_cost
    ),
    "log_softmax": Operator(
        torch.log_softmax, {"input": _X, "dim": _AXIS}, checks.axes("dim"), _copies_cost
    ),
    "matmul": Operator(torch.matmul, {"input": _X, "other": _X}, checks.matmul, _matmul_cost),
    "max_pool2d": Operator(
        F.max_pool2d,
        {
            "input": _X,
            "kernel_size": _window(1, 2),
            "stride": _window(1, 2),
            "padding": Maybe(_window(0, 2)),
            "dilation": Maybe(_window(1, 2)),
            "ceil_mode": Maybe(Flag()),
        },
        checks.pool,
        _pool_cost,
    ),
    "maximum": _binary(torch.maximum, number=False),
    "mean": _reduction(torch.mean),
    "minimum": _binary(torch.minimum, number=False),
    "mish": _unary(F.mish),
    "mul": _binary(torch.mul),
    "neg": _unary(torch.neg),
    "pad": Operator(
        F.pad,
        {
            "input": _X,
            "pad": Wholes(0, MAX_WINDOW, 2, 8),
            "mode": Maybe(Choice(("constant", "reflect", "replicate"))),
            "value": Maybe(Number()),
        },
        checks.pad,
    ),
    "permute": Operator(torch.permute, {"input": _X, "dims": _AXES}, checks.permute),
    "pow": _unary(torch.pow, exponent=Number(-16, 16)),
    "prelu": Operator(F.prelu, {"input": _X, "weight": _X}, checks.prelu),
    "reciprocal": _unary(torch.reciprocal),
    "relu": _unary(F.relu),
    "reshape": Operator(
        torch.reshape, {"input": _X, "shape": Sizes()}, checks.size_matches("shape")
    ),
    "roll": Operator(
        torch.roll,
        {"input": _X, "shifts": Wholes(-MAX_LENGTH, MAX_LENGTH, 1, MAX_RANK), "dims": _AXES},
        checks.roll,
    ),
    "rsqrt": _unary(torch.rsqrt),
    "scaled_dot_product_attention": Operator(
        _attend,
        {"query": _X, "key": _X, "value": _X, "attn_mask": Maybe(_X), "scale": Maybe(Number())},
        checks.attention,
        _attention_cost,
    ),
    "select": Operator(
        torch.select,
        {"input": _X, "dim": _AXIS, "index": Whole(-MAX_LENGTH, MAX_LENGTH)},
        checks.select,
    ),
    "sigmoid": _unary(torch.sigmoid),
    "silu": _unary(F.silu),
    "slice": Operator(
        _slice,
        {
            "input": _X,
            "dim": _AXIS,
            "start": Whole(0, MAX_LENGTH),
            "end": Whole(1, MAX_LENGTH),
            "step": Maybe(Whole(1, MAX_LENGTH)),
        },
        checks.slice,
    ),
    "softmax": Operator(
        torch.softmax, {"input": _X, "dim": _AXIS}, checks.axes("dim"), _copies_cost
    ),
    "softplus": _unary(F.softplus, beta=Number(1e-6, 1e6), threshold=Number()),
    "sqrt": _unary(torch.sqrt),
    "sub": _binary(torch.sub),
    "sum": _reduction(torch.sum),
    "tanh": _unary(torch.tanh),
    "var": _reduction(_variance, correction=Maybe(Number(0, 1))),
    "vector_norm": _reduction(_length),
    "where": Operator(
        _where,
        {
            "condition": OwnWeight(torch.bool),
            "input": Value(number=True),
            "other": Value(number=True),
        },
        cost=_copies_cost,
    ),
}
