"""The vocabulary of packed nets: every operator that a graph may name, what it takes, and what it costs.

A graph that came in a file (``graph.py``) can do nothing but call these. Each argument has a kind that reads it strictly, from
plain JSON, before torch sees it: whole numbers within bounds, references backwards only, words from a list of ours. What depends
on shapes (an axis, an index) is checked by the operator's ``check`` when the shapes are known and nothing is allocated yet.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_RANK = 8
MAX_LENGTH = 2**30  # of an axis or a product of sizes, for one image
MAX_WINDOW = 1024  # kernels, strides, dilations, paddings
MAX_LIST = 65_536  # entries of a list
MAX_NUMBER = 1e30


@dataclass(frozen=True)
class At:
    """The value of an earlier node; 0 is the batch of images."""

    node: int


@dataclass(frozen=True)
class Weight:
    """One of the tensors that travel beside the graph."""

    number: int


@dataclass(frozen=True)
class Batch:
    """So many times the number of images in the batch."""

    times: int


@dataclass(frozen=True)
class Scope:
    """What a node may refer to: the nodes before it, and the weights by their types."""

    nodes: int
    weights: Sequence[torch.dtype]


class Kind(Protocol):
    """One kind of argument: plain JSON -> a checked value, or a ValueError that says what was expected."""

    def read(self, given: object, scope: Scope) -> Any: ...


@dataclass(frozen=True)
class Value:
    """A node, or a weight of float32; a number, too, where that is said."""

    number: bool = False

    def read(self, given: object, scope: Scope) -> Any:
        if self.number and not isinstance(given, dict):
            return Number().read(given, scope)
        found = _reference(given, scope)
        if isinstance(found, Weight) and scope.weights[found.number] is not torch.float32:
            raise ValueError("a weight of float32")
        return found


@dataclass(frozen=True)
class OwnWeight:
    """A weight of one type, and nothing else."""

    dtype: torch.dtype = torch.float32

    def read(self, given: object, scope: Scope) -> Weight:
        found = _reference(given, scope)
        if not isinstance(found, Weight) or scope.weights[found.number] is not self.dtype:
            raise ValueError(f"a weight of {str(self.dtype).removeprefix('torch.')}")
        return found


@dataclass(frozen=True)
class Values:
    """A list of nodes and weights."""

    def read(self, given: object, scope: Scope) -> tuple[Any, ...]:
        if not isinstance(given, list) or not 1 <= len(given) <= 1024:
            raise ValueError("a list of 1 to 1024 references")
        return tuple(Value().read(item, scope) for item in given)


@dataclass(frozen=True)
class Whole:
    low: int
    high: int

    def read(self, given: object, scope: Scope) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or not self.low <= given <= self.high:
            raise ValueError(f"a whole number from {self.low} to {self.high}")
        return given


@dataclass(frozen=True)
class Wholes:
    """A list of ``least`` to ``most`` whole numbers."""

    low: int
    high: int
    least: int
    most: int

    def read(self, given: object, scope: Scope) -> tuple[int, ...]:
        if not isinstance(given, list) or not self.least <= len(given) <= self.most:
            many = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            raise ValueError(f"a list of {many} whole numbers")
        return tuple(Whole(self.low, self.high).read(item, scope) for item in given)


@dataclass(frozen=True)
class Sizes:
    """A shape: whole numbers from 1, or multiples of the batch."""

    def read(self, given: object, scope: Scope) -> tuple[int | Batch, ...]:
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_RANK:
            raise ValueError(f"a list of 1 to {MAX_RANK} sizes")
        return tuple(self._size(item, scope) for item in given)

    def _size(self, given: object, scope: Scope) -> int | Batch:
        whole = Whole(1, MAX_LENGTH)
        if isinstance(given, dict):
            if set(given) != {"batch"}:
                raise ValueError('sizes as whole numbers or {"batch": times}')
            return Batch(whole.read(given["batch"], scope))
        return whole.read(given, scope)


@dataclass(frozen=True)
class Number:
    low: float = -MAX_NUMBER
    high: float = MAX_NUMBER

    def read(self, given: object, scope: Scope) -> float:
        known = isinstance(given, int | float) and not isinstance(given, bool)
        if not known or not self.low <= given <= self.high:  # type: ignore[operator]  # false for NaN and infinities
            raise ValueError(f"a number from {self.low:g} to {self.high:g}")
        return float(given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Flag:
    def read(self, given: object, scope: Scope) -> bool:
        if not isinstance(given, bool):
            raise ValueError("true or false")
        return given


@dataclass(frozen=True)
class Choice:
    words: tuple[str, ...]

    def read(self, given: object, scope: Scope) -> str:
        for word in self.words:  # what is used is our own word, not the file's
            if isinstance(given, str) and given == word:
                return word
        raise ValueError(f"one of {', '.join(self.words)}")


@dataclass(frozen=True)
class Maybe:
    """An argument that may be left out."""

    kind: Kind

    def read(self, given: object, scope: Scope) -> Any:
        return self.kind.read(given, scope)


def _reference(given: object, scope: Scope) -> At | Weight:
    if isinstance(given, dict) and len(given) == 1:
        ((key, number),) = given.items()
        whole = isinstance(number, int) and not isinstance(number, bool)
        if key == "node" and whole:
            if not 0 <= number < scope.nodes:
                raise ValueError(f"an earlier node, 0 to {scope.nodes - 1}")
            return At(number)
        if key == "weight" and whole:
            if not 0 <= number < len(scope.weights):
                raise ValueError(f"a weight that there is, of {len(scope.weights)}")
            return Weight(number)
    raise ValueError('{"node": number} or {"weight": number}')


Args = Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """Of one call: multiply-accumulates, and elements that it needs in passing beside its result."""

    work: int
    passing: int = 0


def _elements(args: Args, result: Tensor) -> Cost:
    taken = [value for value in args.values() if isinstance(value, Tensor)]
    return Cost(max(result.numel(), *(value.numel() for value in taken), 1))


def _nothing(args: Args) -> str | None:
    return None


@dataclass(frozen=True)
class Operator:
    """One word: the call, its arguments in order, what shapes forbid, what it costs."""

    call: Callable[..., Tensor]
    arguments: Mapping[str, Kind]
    check: Callable[[Args], str | None] = _nothing
    cost: Callable[[Args, Tensor], Cost] = _elements


# --- what shapes forbid -----------------------------------------------------------------------------------------------


def _axis_problem(axes: Sequence[int], rank: int) -> str | None:
    if any(not -rank <= axis < rank for axis in axes):
        return f"axes {list(axes)} of a value with {rank} axes"
    if len({axis % rank for axis in axes}) != len(axes):
        return f"axes {list(axes)} name one twice"
    return None


def _axes(name: str) -> Callable[[Args], str | None]:
    def check(args: Args) -> str | None:
        given = args[name]
        return _axis_problem([given] if isinstance(given, int) else given, args["input"].dim())

    return check


def _rank(name: str, *allowed: int) -> Callable[[Args], str | None]:
    def check(args: Args) -> str | None:
        rank = args[name].dim()
        return None if rank in allowed else f"{name} has {rank} axes, not {' or '.join(map(str, allowed))}"

    return check


def _conv(args: Args) -> str | None:
    image, weight, groups = args["input"], args["weight"], args.get("groups", 1)
    space = weight.dim() - 2
    if image.dim() != weight.dim() or space not in (1, 2):
        return f"an input of {image.dim()} axes and a weight of {weight.dim()}"
    if any(len(args.get(name, (1,) * space)) != space for name in ("stride", "padding", "dilation")):
        return f"stride, padding and dilation must be lists of {space}"
    if image.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return f"{image.shape[1]} channels, a weight of shape {list(weight.shape)} and {groups} groups"
    if "bias" in args and args["bias"].shape != weight.shape[:1]:
        return f"a bias of shape {list(args['bias'].shape)} for {weight.shape[0]} channels"
    return None


def _pool(args: Args) -> str | None:
    if args["input"].dim() != 4:
        return f"input has {args['input'].dim()} axes, not 4"
    if any(2 * pad > kernel for pad, kernel in zip(args.get("padding", (0, 0)), args["kernel_size"], strict=True)):
        return "padding is more than half of the window"
    return None


def _select(args: Args) -> str | None:
    if problem := _axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    return None if -size <= args["index"] < size else f"index {args['index']} of an axis of {size}"


def _slice(args: Args) -> str | None:
    if problem := _axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    if not 0 <= args["start"] < args["end"] <= size:
        return f"from {args['start']} to {args['end']} of an axis of {size}"
    return None


def _index_select(args: Args) -> str | None:
    if problem := _axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    return None if max(args["index"]) < size else f"index {max(args['index'])} of an axis of {size}"


def _roll(args: Args) -> str | None:
    if len(args["shifts"]) != len(args["dims"]):
        return "as many shifts as axes are needed"
    return _axes("dims")(args)


def _permute(args: Args) -> str | None:
    if len(args["dims"]) != args["input"].dim():
        return f"axes {list(args['dims'])} of a value with {args['input'].dim()} axes"
    return _axes("dims")(args)


def _cat(args: Args) -> str | None:
    return _axis_problem([args["dim"]], args["tensors"][0].dim())


def _pad(args: Args) -> str | None:
    image, pad = args["input"], args["pad"]
    if len(pad) % 2 or len(pad) > 2 * image.dim():
        return f"{len(pad)} paddings of a value with {image.dim()} axes"
    if args.get("mode", "constant") != "constant":
        if "value" in args:
            return "a value goes with the mode constant only"
        if image.dim() != 4 or len(pad) != 4:
            return "this mode pads the two last of four axes"
        sides = (image.shape[3], image.shape[3], image.shape[2], image.shape[2])
        if args["mode"] == "reflect" and any(given >= side for given, side in zip(pad, sides, strict=True)):
            return f"paddings {list(pad)} reflect more than there is"
    return None


def _sized(name: str) -> Callable[[Args], str | None]:
    def check(args: Args) -> str | None:
        product, own = math.prod(args[name]), args["input"].numel()
        if name == "shape" and product != own:
            return f"{own} elements cannot have the shape {list(args[name])}"
        if product > 1024 * MAX_LENGTH:
            return f"the shape {list(args[name])} is too large"
        return None

    return check


def _layer_norm(args: Args) -> str | None:
    shape = args["normalized_shape"]
    if tuple(args["input"].shape[-len(shape) :]) != shape:
        return f"the last sizes of {list(args['input'].shape)} are not {list(shape)}"
    return _affine(args, shape)


def _group_norm(args: Args) -> str | None:
    image = args["input"]
    if image.dim() < 2 or image.shape[1] % args["num_groups"]:
        return f"{args['num_groups']} groups of a value of shape {list(image.shape)}"
    return _affine(args, (image.shape[1],))


def _batch_norm(args: Args) -> str | None:
    image = args["input"]
    if not 2 <= image.dim() <= 4:
        return f"input has {image.dim()} axes, not 2 to 4"
    channels = (image.shape[1],)
    wrong = [name for name in ("running_mean", "running_var") if tuple(args[name].shape) != channels]
    return f"{wrong[0]} has another shape than {list(channels)}" if wrong else _affine(args, channels)


def _affine(args: Args, shape: tuple[int, ...]) -> str | None:
    if ("weight" in args) != ("bias" in args):  # torch cannot always go back through one alone
        return "weight and bias come together or not at all"
    wrong = [name for name in ("weight", "bias") if name in args and tuple(args[name].shape) != shape]
    return f"{wrong[0]} has another shape than {list(shape)}" if wrong else None


def _linear(args: Args) -> str | None:
    weight = args["weight"]
    if weight.dim() != 2 or args["input"].dim() < 1 or args["input"].shape[-1] != weight.shape[1]:
        return f"an input of shape {list(args['input'].shape)} and a weight of shape {list(weight.shape)}"
    if "bias" in args and args["bias"].shape != weight.shape[:1]:
        return f"a bias of shape {list(args['bias'].shape)} for {weight.shape[0]} features"
    return None


def _matmul(args: Args) -> str | None:
    one, other = args["input"], args["other"]
    if one.dim() < 2 or other.dim() < 2 or one.shape[-1] != other.shape[-2]:
        return f"shapes {list(one.shape)} and {list(other.shape)}"
    return None


def _attention(args: Args) -> str | None:
    query, key, value = args["query"], args["key"], args["value"]
    if not query.dim() == key.dim() == value.dim() >= 3 or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return "query, key and value of different shapes"
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return "query, key and value that do not fit together"
    return None


def _prelu(args: Args) -> str | None:
    image, weight = args["input"], args["weight"]
    channels = image.shape[1] if image.dim() > 1 else 1
    return None if weight.dim() == 1 and weight.numel() in (1, channels) else f"{weight.numel()} slopes, {channels} channels"


# --- what it costs ----------------------------------------------------------------------------------------------------


def _conv_cost(args: Args, result: Tensor) -> Cost:
    weight, image = args["weight"], args["input"]
    window = math.prod(weight.shape[2:])
    places = result.numel() // result.shape[1]
    return Cost(result.numel() * weight.shape[1] * window, image.shape[1] * window * places + image.numel())


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
    """Where a value that was only broadcast has to be written out."""
    return Cost(_elements(args, result).work, result.numel())


# --- the calls that are not torch's own -------------------------------------------------------------------------------


def _attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """softmax(q k^T s + mask) v, written out: the fused kernels have no stacked form."""
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    return torch.softmax(scores if attn_mask is None else scores + attn_mask, -1) @ value


def _norm(input: Tensor, running_mean: Tensor, running_var: Tensor, **rest: Any) -> Tensor:
    return F.batch_norm(input, running_mean, running_var, training=False, **rest)


def _sliced(input: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    return input[(slice(None),) * (dim % input.dim()) + (slice(start, end, step),)]


def _expanded(input: Tensor, size: tuple[int, ...]) -> Tensor:
    return input.expand(size)


def _where(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor:
    chosen: Tensor = torch.where(condition, input, other)
    return chosen


def _elu(input: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.ops.aten.elu.default(input, alpha, scale, input_scale)  # type: ignore[no-any-return]


def _variance(input: Tensor, dim: tuple[int, ...], correction: float = 1, keepdim: bool = False) -> Tensor:
    return torch.var(input, dim, correction=correction, keepdim=keepdim)


def _length(input: Tensor, dim: tuple[int, ...], keepdim: bool = False) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(input, 2, dim, keepdim)
    return length


# --- the table --------------------------------------------------------------------------------------------------------

_X = Value()
_AXIS, _AXES = Whole(-MAX_RANK, MAX_RANK - 1), Wholes(-MAX_RANK, MAX_RANK - 1, 1, MAX_RANK)
_EPS = Number(0, 1e3)


def _unary(call: Callable[..., Tensor], **more: Kind) -> Operator:
    return Operator(call, {"input": _X, **more})


def _binary(call: Callable[..., Tensor], *, number: bool = True) -> Operator:
    return Operator(call, {"input": _X, "other": Value(number=number)}, cost=_copies_cost)


def _reduction(call: Callable[..., Tensor], **more: Kind) -> Operator:
    return Operator(call, {"input": _X, "dim": _AXES, "keepdim": Maybe(Flag()), **more}, _axes("dim"), _copies_cost)


def _window(low: int, count: int) -> Wholes:
    return Wholes(low, MAX_WINDOW, count, count)


def _convolution(call: Callable[..., Tensor], space: int) -> Operator:
    windows = {"stride": Maybe(_window(1, space)), "padding": Maybe(_window(0, space)), "dilation": Maybe(_window(1, space))}
    more: dict[str, Kind] = {**windows, "groups": Maybe(Whole(1, 2**20))}
    return Operator(call, {"input": _X, "weight": _X, "bias": Maybe(_X), **more}, _conv, _conv_cost)


OPERATORS: dict[str, Operator] = {
    "abs": _unary(torch.abs),
    "adaptive_avg_pool1d": Operator(
        F.adaptive_avg_pool1d, {"input": _X, "output_size": _window(1, 1)}, _rank("input", 3), _adaptive_cost
    ),
    "adaptive_avg_pool2d": Operator(
        F.adaptive_avg_pool2d, {"input": _X, "output_size": _window(1, 2)}, _rank("input", 4), _adaptive_cost
    ),
    "add": _binary(torch.add),
    "amax": _reduction(torch.amax),
    "avg_pool2d": Operator(
        F.avg_pool2d,
        {
            "input": _X, "kernel_size": _window(1, 2), "stride": _window(1, 2), "padding": Maybe(_window(0, 2)),
            "ceil_mode": Maybe(Flag()), "count_include_pad": Maybe(Flag()),
        },
        _pool,
        _pool_cost,
    ),
    "batch_norm": Operator(
        _norm,
        {
            "input": _X, "running_mean": OwnWeight(), "running_var": OwnWeight(),
            "weight": Maybe(OwnWeight()), "bias": Maybe(OwnWeight()), "eps": _EPS,
        },
        _batch_norm,
    ),
    "cat": Operator(torch.cat, {"tensors": Values(), "dim": _AXIS}, _cat),
    "clamp": _unary(torch.clamp, min=Number(), max=Number()),
    "conv1d": _convolution(F.conv1d, 1),
    "conv2d": _convolution(F.conv2d, 2),
    "div": _binary(torch.div),
    "elu": _unary(_elu, alpha=Maybe(Number()), scale=Maybe(Number()), input_scale=Maybe(Number())),
    "erf": _unary(torch.erf),
    "exp": _unary(torch.exp),
    "expand": Operator(_expanded, {"input": _X, "size": Sizes()}, _sized("size"), _copies_cost),
    "flip": Operator(torch.flip, {"input": _X, "dims": _AXES}, _axes("dims")),
    "gelu": _unary(F.gelu, approximate=Maybe(Choice(("none", "tanh")))),
    "group_norm": Operator(
        F.group_norm,
        {"input": _X, "num_groups": Whole(1, 2**20), "weight": Maybe(_X), "bias": Maybe(_X), "eps": _EPS},
        _group_norm,
        _copies_cost,
    ),
    "hardsigmoid": _unary(F.hardsigmoid),
    "hardswish": _unary(F.hardswish),
    "hardtanh": _unary(F.hardtanh, min_val=Number(), max_val=Number()),
    "index_select": Operator(
        torch.index_select,
        {"input": _X, "dim": _AXIS, "index": Wholes(0, MAX_LENGTH, 1, MAX_LIST)},
        _index_select,
    ),
    "layer_norm": Operator(
        F.layer_norm,
        {
            "input": _X, "normalized_shape": Wholes(1, MAX_LENGTH, 1, MAX_RANK),
            "weight": Maybe(_X), "bias": Maybe(_X), "eps": _EPS,
        },
        _layer_norm,
        _copies_cost,
    ),
    "leaky_relu": _unary(F.leaky_relu, negative_slope=Number()),
    "linear": Operator(F.linear, {"input": _X, "weight": _X, "bias": Maybe(_X)}, _linear, _linear_cost),
    "log_softmax": Operator(torch.log_softmax, {"input": _X, "dim": _AXIS}, _axes("dim"), _copies_cost),
    "matmul": Operator(torch.matmul, {"input": _X, "other": _X}, _matmul, _matmul_cost),
    "max_pool2d": Operator(
        F.max_pool2d,
        {
            "input": _X, "kernel_size": _window(1, 2), "stride": _window(1, 2), "padding": Maybe(_window(0, 2)),
            "dilation": Maybe(_window(1, 2)), "ceil_mode": Maybe(Flag()),
        },
        _pool,
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
            "input": _X, "pad": Wholes(0, MAX_WINDOW, 2, 8),
            "mode": Maybe(Choice(("constant", "reflect", "replicate"))), "value": Maybe(Number()),
        },
        _pad,
    ),
    "permute": Operator(torch.permute, {"input": _X, "dims": _AXES}, _permute),
    "pow": _unary(torch.pow, exponent=Number(-16, 16)),
    "prelu": Operator(F.prelu, {"input": _X, "weight": _X}, _prelu),
    "reciprocal": _unary(torch.reciprocal),
    "relu": _unary(F.relu),
    "reshape": Operator(torch.reshape, {"input": _X, "shape": Sizes()}, _sized("shape")),
    "roll": Operator(
        torch.roll,
        {"input": _X, "shifts": Wholes(-MAX_LENGTH, MAX_LENGTH, 1, MAX_RANK), "dims": _AXES},
        _roll,
    ),
    "rsqrt": _unary(torch.rsqrt),
    "scaled_dot_product_attention": Operator(
        _attend,
        {"query": _X, "key": _X, "value": _X, "attn_mask": Maybe(_X), "scale": Maybe(Number())},
        _attention,
        _attention_cost,
    ),
    "select": Operator(torch.select, {"input": _X, "dim": _AXIS, "index": Whole(-MAX_LENGTH, MAX_LENGTH)}, _select),
    "sigmoid": _unary(torch.sigmoid),
    "silu": _unary(F.silu),
    "slice": Operator(
        _sliced,
        {
            "input": _X, "dim": _AXIS, "start": Whole(0, MAX_LENGTH), "end": Whole(1, MAX_LENGTH),
            "step": Maybe(Whole(1, MAX_LENGTH)),
        },
        _slice,
    ),
    "softmax": Operator(torch.softmax, {"input": _X, "dim": _AXIS}, _axes("dim"), _copies_cost),
    "softplus": _unary(F.softplus, beta=Number(1e-6, 1e6), threshold=Number()),
    "sqrt": _unary(torch.sqrt),
    "sub": _binary(torch.sub),
    "sum": _reduction(torch.sum),
    "tanh": _unary(torch.tanh),
    "var": _reduction(_variance, correction=Maybe(Number(0, 1))),
    "vector_norm": _reduction(_length),
    "where": Operator(
        _where,
        {"condition": OwnWeight(torch.bool), "input": Value(number=True), "other": Value(number=True)},
        cost=_copies_cost,
    ),
}  # fmt: skip
