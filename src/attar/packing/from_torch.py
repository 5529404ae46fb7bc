"""torch's exported graph -> the graph of a packed net. What each of torch's operators becomes is
in `vocabulary.py`.
"""

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
class Spread:
    """A constant as large as the batch: ``once`` has 1 where the batch goes."""

    once: Tensor
    sizes: tuple[Any, ...]


class NoWord(Exception):
    """An operator that we know is used in a way that we do not."""


class Translation:
    """Walks torch's graph once; ``known`` holds for each of its nodes a constant, or a reference
    to a node of ours.
    """

    def __init__(self, program: ExportedProgram, words: Mapping[str, Emit]) -> None:
        self._words = words
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
                self.problems[
                    "its logits do not depend on the images by anything that is computed"
                ] = None
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
        table = [
            ["bool" if tensor.dtype is torch.bool else "float32", list(tensor.shape)]
            for tensor in tensors
        ]
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
                small = {
                    name: arg.once if isinstance(arg, Spread) else arg for name, arg in args.items()
                }
                return Spread(self._folded(node, small), tuple(value.shape))
        emit = self._words.get(name)
        if emit is None:
            return self._refuse(f"{name}: there is no word for this operator")
        try:
            return emit(self, node, args)
        except NoWord as reason:
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
        dense = {
            name: arg.contiguous() if isinstance(arg, Tensor) else arg for name, arg in args.items()
        }
        with torch.no_grad():
            return node.target(**dense)

    def _item(self, node: fx.Node) -> Any:
        source, place = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(place, int)
        whole = self.known.get(source)
        if isinstance(whole, list | tuple):
            return whole[place]
        return (
            self._refuse(f"{source.target}: there is no word for this operator")
            if whole is None
            else whole
        )

    def emit(self, op: str, **args: Any) -> dict[str, int]:
        """A node of ours; what is None is left out, tensors become weights, shapes sizes."""
        self.nodes.append(
            {
                "op": op,
                "args": {name: self._written(arg) for name, arg in args.items() if arg is not None},
            }
        )
        return {"node": len(self.nodes)}

    def own(self, tensor: Tensor) -> dict[str, int]:
        """A weight that is a layer's alone."""
        return self._new_weight(tensor)

    def _written(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            if id(arg) not in self._numbers:
                self._numbers[id(arg)] = arg, self._new_weight(arg)["weight"]
            return {"weight": self._numbers[id(arg)][1]}
        if isinstance(arg, Spread):
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
            raise NoWord(f"the size {size.node.expr} is no multiple of the batch")
        return {"batch": int(times)}

    def shape(self, node: fx.Node) -> list[Any]:
        """The sizes of a node's result."""
        return [self.size(side) for side in node.meta["val"].shape]


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
    return not isinstance(arg, dict | torch.SymInt)  # a Spread is constant, too


def _symbolic(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_symbolic(item) for item in value)
    return isinstance(value, Tensor) and any(not isinstance(side, int) for side in value.shape)


def _harmless(node: fx.Node) -> bool:
    """Dropout that is switched off; attention says itself whether it drops anything."""
    name = str(node.target)
    return name == "aten.scaled_dot_product_attention.default" or (
        name == "aten.dropout.default" and node.args[2] is False
    )


def _references(arg: Any) -> Iterable[tuple[str, int]]:
    if isinstance(arg, dict) and not _is_reference(arg):
        arg = list(arg.values())
    if isinstance(arg, list):
        for item in arg:
            yield from _references(item)
    elif isinstance(arg, dict):
        yield from arg.items()


def _is_reference(arg: dict[str, Any]) -> bool:
    return set(arg) in ({"node"}, {"weight"}) and all(
        isinstance(number, int) for number in arg.values()
    )


def _renumbered(arg: Any, order: Mapping[str, Mapping[int, int]]) -> Any:
    if isinstance(arg, list):
        return [_renumbered(item, order) for item in arg]
    if isinstance(arg, dict):
        old = _is_reference(arg)
        return {
            key: order[key][item] if old else _renumbered(item, order) for key, item in arg.items()
        }
    return arg
