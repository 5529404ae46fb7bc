"""torch's exported graph -> the graph of a packed net: one function for each of torch's operators, or for several that say the same."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from attar.errors import PackError
from attar.nets.graph import FORMAT

Emit = Callable[["Translation", fx.Node, dict[str, Any]], Any]


@dataclass(frozen=True)
class _Spread:
    """A constant as large as the batch: ``once`` has 1 where the batch goes."""

    once: Tensor
    sizes: tuple[Any, ...]


class Translation:
    """Walks torch's graph once; ``known`` holds for each of its nodes a constant, or a reference to a node of ours."""

    def __init__(self, program: ExportedProgram) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.tensors: list[Tensor] = []
        self.known: dict[fx.Node, Any] = {}
        self.problems: dict[str, None] = {}
        self._numbers: dict[
            int, tuple[Tensor, int]
        ] = {}  # id of a constant -> itself (or its id would be given away), its number
        states = {**program.state_dict, **program.constants}
        inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self._steps = list(program.graph.nodes)
        self.batch: Any = None
        for node in self._steps:
            if node.op == "placeholder":
                spec = inputs[node.name]
                if spec.kind == InputKind.USER_INPUT:
                    self.known[node] = {"node": 0}
                    self.batch = node.meta["val"].shape[0].node.expr
                else:
                    assert spec.target is not None
                    self.known[node] = states[spec.target].detach()
            elif node.op == "call_function":
                self.known[node] = self._called(node)
            elif node.op == "output":
                (self.result,) = node.args[0]
        outputs = program.graph_signature.output_specs
        if len(outputs) != 1:
            self.problems["it changes its own buffers, or gives several outputs"] = None

    def finished(self) -> tuple[dict[str, Any], list[Tensor]]:
        """The graph and its weights, or a PackError with everything that has no word."""
        last = self.known[self.result]
        if not self.problems and last != {"node": len(self.nodes)}:
            if not isinstance(last, dict) or last == {"node": 0}:
                self.problems["its logits do not depend on the images by anything that is computed"] = None
            else:  # the logits came before something else: nothing behind them matters
                del self.nodes[last["node"] :]
        if self.problems:
            raise PackError(
                "The net does what a packed net may not do:",
                problems=list(self.problems),
                fix="docs/foreign-models.md lists the operators and what to do about the others",
            )
        return self._without_the_unheard()

    def _without_the_unheard(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Nodes and weights that lead to the logits, numbered anew."""
        heard, weights = {len(self.nodes)}, set[int]()
        for number in range(len(self.nodes), 0, -1):
            if number in heard:
                for kind, other in _references(self.nodes[number - 1]["args"]):
                    (heard if kind == "node" else weights).add(other)
        order = {"node": {old: new for new, old in enumerate(sorted(heard | {0}))}}
        order["weight"] = {old: new for new, old in enumerate(sorted(weights))}
        nodes = [
            {"op": node["op"], "args": _renumbered(node["args"], order)}
            for number, node in enumerate(self.nodes, 1)
            if number in heard
        ]
        tensors = [self.tensors[old] for old in sorted(weights)]
        table = [["bool" if tensor.dtype is torch.bool else "float32", list(tensor.shape)] for tensor in tensors]
        return {"graph": FORMAT, "weights": table, "nodes": nodes}, tensors

    def _called(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, int | float | bool | torch.SymInt):
            return value  # sizes are read off the shapes
        if node.target is operator.getitem:
            return self._item(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._refuse(str(node.target))
        name = str(node.target)
        if torch.Tag.nondeterministic_seeded in node.target.tags and not _harmless(node):
            return self._refuse(f"{name}: draws random numbers")
        if value is None:
            return None  # an assertion
        args = {argument.name: self._argument(given) for argument, given in _named(node)}
        if all(_is_constant(arg) for arg in args.values()):
            if not _symbolic(value):
                return self._folded(node, args)
            if torch.Tag.pointwise in node.target.tags:
                small = {name: arg.once if isinstance(arg, _Spread) else arg for name, arg in args.items()}
                return _Spread(self._folded(node, small), tuple(value.shape))
        emit = _EMIT.get(name)
        if emit is None:
            return self._refuse(f"{name}: there is no word for this operator")
        try:
            return emit(self, node, args)
        except _NoWord as reason:
            return self._refuse(f"{name}: {reason}")

    def _refuse(self, reason: str) -> dict[str, int]:
        self.problems[reason] = None
        return {"node": 0}  # the others may have problems of their own

    def _argument(self, given: Any) -> Any:
        if isinstance(given, fx.Node):
            return self.known.get(given)
        if isinstance(given, list | tuple):
            return [self._argument(item) for item in given]
        return given

    def _folded(self, node: fx.Node, args: Mapping[str, Any]) -> Any:
        """What does not depend on the images is computed here and now."""
        assert isinstance(node.target, torch._ops.OpOverload)
        dense = {name: arg.contiguous() if isinstance(arg, Tensor) else arg for name, arg in args.items()}
        with torch.no_grad():
            return node.target(**dense)

    def _item(self, node: fx.Node) -> Any:
        source, place = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(place, int)
        whole = self.known.get(source)
        if isinstance(whole, list | tuple):
            return whole[place]
        return self._refuse(f"{source.target}: there is no word for this operator") if whole is None else whole

    def emit(self, op: str, **args: Any) -> dict[str, int]:
        """A node of ours; what is None is left out, tensors become weights, shapes sizes."""
        self.nodes.append({"op": op, "args": {name: self._written(arg) for name, arg in args.items() if arg is not None}})
        return {"node": len(self.nodes)}

    def own(self, tensor: Tensor) -> dict[str, int]:
        """A weight that is a layer's alone."""
        return self._new_weight(tensor)

    def _written(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            if id(arg) not in self._numbers:
                self._numbers[id(arg)] = arg, self._new_weight(arg)["weight"]
            return {"weight": self._numbers[id(arg)][1]}
        if isinstance(arg, _Spread):
            return self.emit("expand", input=arg.once, size=list(arg.sizes))
        if isinstance(arg, torch.SymInt):
            return self.size(arg)
        if isinstance(arg, list | tuple):
            return [self._written(item) for item in arg]
        return arg

    def _new_weight(self, tensor: Tensor) -> dict[str, int]:
        if tensor.dtype is not torch.bool:
            tensor = tensor.float()
        self.tensors.append(tensor.detach().contiguous())
        return {"weight": len(self.tensors) - 1}

    def size(self, size: Any) -> Any:
        """A whole number, or a multiple of the batch."""
        if isinstance(size, int):
            return size
        times = size.node.expr / self.batch
        if not times.is_Integer:
            raise _NoWord(f"the size {size.node.expr} is no multiple of the batch")
        return {"batch": int(times)}

    def shape(self, node: fx.Node) -> list[Any]:
        """The sizes of a node's result."""
        return [self.size(side) for side in node.meta["val"].shape]


class _NoWord(Exception):
    """An operator that we know is used in a way that we do not."""


def _named(node: fx.Node) -> Iterable[tuple[Any, Any]]:
    """The arguments of a call by name, with their defaults, without those about places in memory."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name in ("device", "layout", "pin_memory", "memory_format"):
            continue
        if place < len(node.args):
            yield argument, node.args[place]
        elif argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]
        elif argument.has_default_value():
            yield argument, argument.default_value


def _is_constant(arg: Any) -> bool:
    if isinstance(arg, list | tuple):
        return all(_is_constant(item) for item in arg)
    return not isinstance(arg, dict | torch.SymInt)  # a _Spread is constant, too


def _symbolic(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_symbolic(item) for item in value)
    return isinstance(value, Tensor) and any(not isinstance(side, int) for side in value.shape)


def _harmless(node: fx.Node) -> bool:
    """Dropout that is switched off; attention says itself whether it drops anything."""
    name = str(node.target)
    return name == "aten.scaled_dot_product_attention.default" or (name == "aten.dropout.default" and node.args[2] is False)


def _references(arg: Any) -> Iterable[tuple[str, int]]:
    if isinstance(arg, dict) and not _is_reference(arg):
        arg = list(arg.values())
    if isinstance(arg, list):
        for item in arg:
            yield from _references(item)
    elif isinstance(arg, dict):
        yield from arg.items()


def _is_reference(arg: dict[str, Any]) -> bool:
    return set(arg) in ({"node"}, {"weight"}) and all(isinstance(number, int) for number in arg.values())


def _renumbered(arg: Any, order: Mapping[str, Mapping[int, int]]) -> Any:
    if isinstance(arg, list):
        return [_renumbered(item, order) for item in arg]
    if isinstance(arg, dict):
        old = _is_reference(arg)
        return {key: order[key][item] if old else _renumbered(item, order) for key, item in arg.items()}
    return arg


# One function for each of torch's operators, or for several that say the same.


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
            raise _NoWord(f"makes {node.meta['val'].dtype}")
        one, other = _as_float(args["self"]), _as_float(args["other"])
        if isinstance(one, int | float):
            one = torch.tensor(float(one))
        if args.get("alpha", 1) != 1:
            other = to.emit("mul", input=other, other=args["alpha"])
        return to.emit(op, input=one, other=other)

    return emit


def _as_float(arg: Any) -> Any:
    """A constant as torch takes it beside float32: masks and whole numbers become floats."""
    if isinstance(arg, _Spread):
        return _Spread(arg.once.float(), arg.sizes)
    return arg.float() if isinstance(arg, Tensor) else arg


def _same(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    """Nothing that is seen in a value: copies, places in memory, dropout that is switched off."""
    if args.get("train") or node.meta["val"].dtype is not torch.float32:
        raise _NoWord(f"is in training mode or makes {node.meta['val'].dtype}")
    return args.get("self", args.get("input"))


def _reshaped(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return to.emit("reshape", input=args["self"], shape=to.shape(node))


def _expanded(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    constant, sizes = args["self"], node.meta["val"].shape
    if isinstance(constant, _Spread):
        constant = constant.once
    if isinstance(constant, Tensor):
        return _Spread(constant.expand([side if isinstance(side, int) else 1 for side in sizes]), tuple(sizes))
    return to.emit("expand", input=constant, size=to.shape(node))


def _filled(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    """A constant as large as the batch."""
    value = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1}.get(str(node.target).split(".")[1])
    like = node.meta["val"]
    sides = [side if isinstance(side, int) else 1 for side in like.shape]
    return _Spread(torch.full(sides, args["fill_value"] if value is None else value, dtype=like.dtype), tuple(like.shape))


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
        axes = list(range(source.meta["val"].dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
        more: dict[str, Any] = {}
        if op == "vector_norm" and args["ord"] != 2:
            raise _NoWord("another norm than the Euclidean")
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
            total = [spread * (side - 1) for spread, side in zip(sizes["dilation"], kernel, strict=True)]
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
        sizes = {"kernel_size": kernel, "stride": _each(args["stride"] or kernel, 2), "padding": _each(args["padding"], 2)}
        if op == "max_pool2d":
            sizes["dilation"] = _each(args["dilation"], 2)
        elif args["divisor_override"] is not None:
            raise _NoWord("divides by another number than the window's size")
        return to.emit(
            op, input=args["self"], **sizes, ceil_mode=args["ceil_mode"], count_include_pad=args.get("count_include_pad")
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
        raise _NoWord("takes its statistics from the batch (call .eval(), and keep running statistics)")
    tensors = {"running_mean": mean, "running_var": variance, **_both(args["weight"], args["bias"])}
    if any(isinstance(tensor, dict) for tensor in tensors.values()):
        raise _NoWord("has statistics that depend on the images")
    own = {name: None if tensor is None else to.own(tensor) for name, tensor in tensors.items()}
    return to.emit("batch_norm", input=args["input"], **own, eps=args["eps"])


def _batch_normed_and_more(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return [_batch_normed(to, node, args)]  # the statistics that are saved for training are not asked for


def _linear(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    weight, bias = args["weight"], args["bias"]
    own = [to.own(tensor) if isinstance(tensor, Tensor) and _is_last(node) else tensor for tensor in (weight, bias)]
    return to.emit("linear", input=args["input"], weight=own[0], bias=own[1])


def _is_last(node: fx.Node) -> bool:
    return all(user.op == "output" for user in node.users)


def _added_product(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    if args.get("alpha", 1) != 1 or args.get("beta", 1) != 1:
        raise _NoWord("alpha or beta")
    names = ("mat1", "mat2") if "mat1" in args else ("batch1", "batch2")
    product = to.emit("matmul", input=args[names[0]], other=args[names[1]])
    return to.emit("add", input=product, other=args["self"])


def _product(second: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        return to.emit("matmul", input=args["self"], other=args[second])

    return emit


def _attended(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    if args["dropout_p"] or args["is_causal"] or args["enable_gqa"]:
        raise _NoWord("with dropout, a causal mask or grouped queries")
    mask = args["attn_mask"]
    if isinstance(mask, _Spread):
        mask = mask.once  # it is added to scores that are as large as the batch
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:
        mask = None if mask.all() else torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    names = {name: args[name] for name in ("query", "key", "value")}
    return to.emit("scaled_dot_product_attention", **names, attn_mask=mask, scale=args["scale"])


def _softmaxed(op: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        if node.meta["val"].dtype is not torch.float32:
            raise _NoWord(f"makes {node.meta['val'].dtype}")
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
        raise _NoWord("takes images out of the batch")
    start, end, _ = slice(start, end).indices(size)
    return to.emit("slice", input=args["self"], dim=args["dim"], start=start, end=end, step=step)


def _split(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    """Several slices; torch's graph takes them out one by one, and those that nobody takes are dropped."""
    pieces, start, dim = [], 0, args["dim"]
    for piece in node.meta["val"]:
        size = piece.shape[dim]
        if not isinstance(size, int):
            raise _NoWord("takes images out of the batch")
        pieces.append(to.emit("slice", input=args["self"], dim=dim, start=start, end=start + size))
        start += size
    return pieces


def _unbound(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return [to.emit("select", input=args["self"], dim=args["dim"], index=place) for place in range(len(node.meta["val"]))]


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
    if len(places) != 1 or not isinstance(places[0][1], Tensor) or places[0][1].dtype is not torch.int64:
        raise _NoWord("takes places that depend on the images, or along several axes")
    ((dim, index),) = places
    source = node.args[0]
    assert isinstance(source, fx.Node)
    size = source.meta["val"].shape[dim]
    if not isinstance(size, int):
        raise _NoWord("takes images out of the batch")
    picked = to.emit("index_select", input=args["self"], dim=dim, index=(index % size).flatten().tolist())
    return picked if index.dim() == 1 else to.emit("reshape", input=picked, shape=to.shape(node))


def _chosen(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    condition = args.get("condition", args.get("mask"))
    if isinstance(condition, _Spread):
        condition = condition.once
    if not isinstance(condition, Tensor):
        raise _NoWord("chooses by a condition that depends on the images")
    if "mask" in args:
        return to.emit("where", condition=condition, input=_number(args["value"]), other=args["self"])
    return to.emit("where", condition=condition, input=_number(args["self"]), other=_number(args["other"]))


def _number(given: Any) -> Any:
    """Infinities become numbers that no softmax chooses."""
    if isinstance(given, Tensor) and given.dim() == 0:
        given = float(given)
    return max(-1e9, min(1e9, given)) if isinstance(given, int | float) and abs(given) > 1e30 else given


def _clamped(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    low, high = (args.get(name) for name in ("min", "max"))
    return to.emit("clamp", input=args["self"], min=-1e30 if low is None else low, max=1e30 if high is None else high)


def _padded(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    pad, mode = args["pad"], args.get("mode", "constant")
    if any(side < 0 for side in pad):
        raise _NoWord("cuts off where it should pad")
    return to.emit("pad", input=args["self"], pad=pad, mode=mode, value=args["value"] if mode == "constant" else None)


def _rolled(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    if not args["dims"]:
        raise _NoWord("rolls over all axes at once")
    return to.emit("roll", input=args["self"], shifts=_each(args["shifts"], 1), dims=_each(args["dims"], 1))


def _normed(op: str, *names: str) -> Emit:
    def emit(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
        affine = _both(args["weight"], args["bias"])
        return to.emit(op, input=args["input"], **affine, eps=args["eps"], **{name: args[name] for name in names})

    return emit


def _powered(to: Translation, node: fx.Node, args: dict[str, Any]) -> Any:
    return to.emit("pow", input=args["self"], exponent=args["exponent"])


_UNARY = [
    "abs",
    "erf",
    "exp",
    "hardsigmoid",
    "hardswish",
    "mish",
    "neg",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
]
_COPIES = ["clone", "contiguous", "alias", "lift_fresh_copy", "_to_copy", "to.dtype", "to.dtype_layout", "dropout"]
_VIEWS = [
    "view",
    "reshape",
    "_unsafe_view",
    "flatten.using_ints",
    "unflatten.int",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze",
    "view_as",
    "reshape_as",
]

_EMIT: dict[str, Emit] = {
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
        (("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", "masked_fill.Scalar"), _chosen),
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
KEPT = [_overload(name) for name in _EMIT]
