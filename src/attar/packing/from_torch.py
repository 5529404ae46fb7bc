"""A graph of torch.export -> the graph of a packed net.

What each of torch's operators becomes is in ``torch_operators.py``. Everything that does not
depend on the images is computed once and becomes a weight.
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
from attar.nets import FORMAT

Converter = Callable[["GraphBuilder", fx.Node, dict[str, Any]], Any]
"""Adds the nodes for one of torch's; is given its arguments by name, returns its value."""


@dataclass(frozen=True)
class BatchConstant:
    """A constant that is repeated for every image of a batch.

    Attributes:
        value: the constant, with 1 in place of the batch size.
        sizes: its sizes in torch's graph, one of them symbolic.
    """

    value: Tensor
    sizes: tuple[Any, ...]


class UnsupportedOperator(Exception):
    """An operator, or a use of it, that a packed net does not have."""


class GraphBuilder:
    """Converts an exported program, node by node.

    Args:
        program: from torch.export, with a symbolic batch size.
        converters: by the name of torch's operator.

    Attributes:
        nodes: of the packed net so far.
        tensors: its weights so far.
        values: for each node of torch's graph a constant, or a reference to a new node.
        problems: everything that is not supported, as keys, in the order of the graph.
        batch: the symbolic batch size.
    """

    def __init__(self, program: ExportedProgram, converters: Mapping[str, Converter]) -> None:
        self._converters = converters
        self.nodes: list[dict[str, Any]] = []
        self.tensors: list[Tensor] = []
        self.values: dict[fx.Node, Any] = {}
        self.problems: dict[str, None] = {}
        self.batch: Any = None
        # By the id of a constant: the constant, which keeps its id from being reused, and the
        # number of its weight.
        self._numbers: dict[int, tuple[Tensor, int]] = {}
        states = {**program.state_dict, **program.constants}
        inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = inputs[node.name]
                if spec.kind == InputKind.USER_INPUT:
                    self.values[node] = {"node": 0}
                    self.batch = node.meta["val"].shape[0].node.expr
                else:
                    assert spec.target is not None
                    self.values[node] = states[spec.target].detach()
            elif node.op == "call_function":
                self.values[node] = self._convert(node)
            elif node.op == "output":
                (self.result,) = node.args[0]
        if len(program.graph_signature.output_specs) != 1:
            self.problems["it changes its own buffers, or gives several outputs"] = None

    def finish(self) -> tuple[dict[str, Any], list[Tensor]]:
        """The graph as JSON, and its weights.

        Raises:
            PackError: with everything that a packed net does not have.
        """
        last = self.values[self.result]
        if not self.problems and last != {"node": len(self.nodes)}:
            if not isinstance(last, dict) or last == {"node": 0}:
                self.problems["its logits do not depend on anything computed from the images"] = (
                    None
                )
            else:  # the logits were computed before something else, which does not matter
                del self.nodes[last["node"] :]
        if self.problems:
            raise PackError(
                "The net does what a packed net may not do:",
                problems=list(self.problems),
                fix="docs/foreign-models.md lists the operators and what to do about the others",
            )
        return self._drop_unused()

    def _drop_unused(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Only the nodes and weights that lead to the logits, renumbered."""
        used = {len(self.nodes)}
        weights: set[int] = set()
        for number in range(len(self.nodes), 0, -1):
            if number in used:
                for kind, other in _references(self.nodes[number - 1]["args"]):
                    (used if kind == "node" else weights).add(other)
        order = {
            "node": {old: new for new, old in enumerate(sorted(used | {0}))},
            "weight": {old: new for new, old in enumerate(sorted(weights))},
        }
        nodes = [
            {"op": node["op"], "args": _renumber(node["args"], order)}
            for number, node in enumerate(self.nodes, 1)
            if number in used
        ]
        tensors = [self.tensors[old] for old in sorted(weights)]
        table = []
        for tensor in tensors:
            dtype = "bool" if tensor.dtype is torch.bool else "float32"
            table.append([dtype, list(tensor.shape)])
        return {"graph": FORMAT, "weights": table, "nodes": nodes}, tensors

    def _convert(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, int | float | bool | torch.SymInt):
            return value  # a size
        if node.target is operator.getitem:
            return self._take_item(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._refuse(str(node.target))
        name = str(node.target)
        if torch.Tag.nondeterministic_seeded in node.target.tags and not _is_deterministic(node):
            return self._refuse(f"{name}: draws random numbers")
        if value is None:
            return None  # an assertion
        args = {argument.name: self._argument(arg) for argument, arg in _arguments_by_name(node)}
        if all(_is_constant(arg) for arg in args.values()):
            if not _has_symbolic_size(value):
                return self._fold(node, args)
            if torch.Tag.pointwise in node.target.tags:
                folded = self._fold(node, {key: _once(arg) for key, arg in args.items()})
                return BatchConstant(folded, tuple(value.shape))
        convert = self._converters.get(name)
        if convert is None:
            return self._refuse(f"{name}: operator is not supported")
        try:
            return convert(self, node, args)
        except UnsupportedOperator as reason:
            return self._refuse(f"{name}: {reason}")

    def _refuse(self, reason: str) -> dict[str, int]:
        """Note a problem and go on with any value, to find the problems of other nodes."""
        self.problems[reason] = None
        return {"node": 0}

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self.values.get(arg)
        if isinstance(arg, list | tuple):
            return [self._argument(item) for item in arg]
        return arg

    def _fold(self, node: fx.Node, args: Mapping[str, Any]) -> Any:
        """Compute what does not depend on the images."""
        assert isinstance(node.target, torch._ops.OpOverload)
        dense = {
            name: arg.contiguous() if isinstance(arg, Tensor) else arg for name, arg in args.items()
        }
        with torch.no_grad():
            return node.target(**dense)

    def _take_item(self, node: fx.Node) -> Any:
        source, place = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(place, int)
        whole = self.values.get(source)
        if isinstance(whole, list | tuple):
            return whole[place]
        if whole is None:
            return self._refuse(f"{source.target}: operator is not supported")
        return whole

    def add_node(self, op: str, **args: Any) -> dict[str, int]:
        """Add a node to the packed net.

        Args:
            op: one of ``nets.graph.operators.OPERATORS``.
            args: its arguments. Those that are None are left out; tensors become weights,
                symbolic sizes multiples of the batch.

        Returns:
            A reference to it.
        """
        written = {name: self._write(arg) for name, arg in args.items() if arg is not None}
        self.nodes.append({"op": op, "args": written})
        return {"node": len(self.nodes)}

    def add_own_weight(self, tensor: Tensor) -> dict[str, int]:
        """Add a weight that one layer has for itself; returns a reference to it."""
        if tensor.dtype is not torch.bool:
            tensor = tensor.float()
        self.tensors.append(tensor.detach().contiguous())
        return {"weight": len(self.tensors) - 1}

    def _write(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            if id(arg) not in self._numbers:
                self._numbers[id(arg)] = arg, self.add_own_weight(arg)["weight"]
            return {"weight": self._numbers[id(arg)][1]}
        if isinstance(arg, BatchConstant):
            return self.add_node("expand", input=arg.value, size=list(arg.sizes))
        if isinstance(arg, torch.SymInt):
            return self._write_size(arg)
        if isinstance(arg, list | tuple):
            return [self._write(item) for item in arg]
        return arg

    def _write_size(self, size: Any) -> Any:
        """A whole number, or a multiple of the batch."""
        if isinstance(size, int):
            return size
        times = size.node.expr / self.batch
        if not times.is_Integer:
            raise UnsupportedOperator(f"the size {size.node.expr} is no multiple of the batch")
        return {"batch": int(times)}

    def shape_of(self, node: fx.Node) -> list[Any]:
        """The sizes of a node's result: whole numbers, or multiples of the batch.

        Raises:
            UnsupportedOperator: if one is another function of the batch size.
        """
        return [self._write_size(side) for side in node.meta["val"].shape]


def _arguments_by_name(node: fx.Node) -> Iterable[tuple[Any, Any]]:
    """The arguments of a call with their defaults, without those about memory."""
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
    return not isinstance(arg, dict | torch.SymInt)


def _once(arg: Any) -> Any:
    return arg.value if isinstance(arg, BatchConstant) else arg


def _has_symbolic_size(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_symbolic_size(item) for item in value)
    return isinstance(value, Tensor) and any(not isinstance(side, int) for side in value.shape)


def _is_deterministic(node: fx.Node) -> bool:
    """Dropout that is switched off, and attention, whose converter looks at its dropout."""
    name = str(node.target)
    if name == "aten.dropout.default":
        return node.args[2] is False
    return name == "aten.scaled_dot_product_attention.default"


def _references(arg: Any) -> Iterable[tuple[str, int]]:
    if isinstance(arg, dict) and not _is_reference(arg):
        arg = list(arg.values())
    if isinstance(arg, list):
        for item in arg:
            yield from _references(item)
    elif isinstance(arg, dict):
        yield from arg.items()


def _is_reference(arg: dict[str, Any]) -> bool:
    if set(arg) not in ({"node"}, {"weight"}):
        return False
    return all(isinstance(number, int) for number in arg.values())


def _renumber(arg: Any, order: Mapping[str, Mapping[int, int]]) -> Any:
    if isinstance(arg, list):
        return [_renumber(item, order) for item in arg]
    if not isinstance(arg, dict):
        return arg
    if _is_reference(arg):
        return {key: order[key][number] for key, number in arg.items()}
    return {key: _renumber(item, order) for key, item in arg.items()}
