"""A net that came as a graph: any classifier, without running its sender's code.

    {"graph": 1, "weights": [["float32", [8, 3, 3, 3]], …],
     "nodes": [{"op": "conv2d", "args": {"input": {"node": 0}, "weight": {"weight": 0}, "stride": [2, 2]}}, …]}

Node 0 is the batch of images, the nodes that are listed follow from 1, and the last one is the
logits. References point backwards only, so there are no cycles. Every operator is one of
``OPERATORS``; nothing in the text is ever a name of anything else: the tensors' names in the
upload are ours (``w3``, ``norm7.running_mean``, ``head.weight``).

``read_graph`` checks all of it, with shapes that are followed on torch's ``meta`` device where
nothing is allocated, for several batch sizes, against bounds on nodes, memory and work.
``GraphNet`` then walks the nodes. Batch norms are real modules, so that whoever looks for
BatchNorm statistics finds them; a final linear layer is ``head``.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from attar.errors import SpecError
from attar.internal.strict_json import strict_json
from attar.nets.graph.arguments import MAX_LENGTH, MAX_RANK, At, Batch, Maybe, Scope, Weight, Whole
from attar.nets.graph.operators import OPERATORS
from attar.nets.registry import Shape, register

FORMAT = 1
MAX_TEXT = 2**20  # characters
MAX_NODES = 4096
MAX_WEIGHTS = 8192
MAX_WEIGHT_ELEMENTS = 2**30  # all of them together: 4 GiB
MAX_ELEMENTS = 2**28  # of all values of one image together: 1 GiB
MAX_WORK = 2**40  # multiply-accumulates for one image

# Shapes are followed for these: what is a constant or a multiple of the batch at all of them is so
# at every other.
_BATCHES = (1, 2, 1000)
_DTYPES = {"float32": torch.float32, "bool": torch.bool}
_MOST = 6  # problems in one message


@dataclass(frozen=True)
class Node:
    op: str
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Graph:
    """A graph that was checked for one image shape and number of classes."""

    nodes: tuple[Node, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the weights
    dtypes: tuple[torch.dtype, ...]
    names: tuple[str, ...]  # of the weights in the net's state
    ranks: tuple[int, ...]  # of the values; 0 is the images'
    layers: Mapping[int, str]  # node -> the batch norm or head that is a module
    work: int  # multiply-accumulates for one image
    elements: int  # of all values of one image

    def operators(self) -> dict[str, int]:
        """How often each operator occurs, the commonest first."""
        names = [node.op for node in self.nodes]
        return {
            name: names.count(name)
            for name in sorted(set(names), key=lambda name: (-names.count(name), name))
        }


class _Wrong(Exception):
    """``args`` are the problems."""


def read_graph(text: str, input_shape: Shape, num_classes: int) -> Graph:
    """The graph in ``text`` for images of this shape, or a SpecError with what is wrong.
    Allocates no tensor.
    """
    try:
        return _read(text, input_shape, num_classes)
    except _Wrong as wrong:
        found = [_printable(reason) for reason in wrong.args]
        shown = (
            found
            if len(found) <= _MOST
            else [*found[:_MOST], f"and {len(found) - _MOST} more of this kind"]
        )
        raise SpecError(
            "The packed net cannot be used:",
            problems=shown,
            fix="have it packed again with `attar pack`",
        ) from None


@lru_cache(maxsize=32)
def _read(text: str, input_shape: Shape, num_classes: int) -> Graph:
    if len(text) > MAX_TEXT:
        raise _Wrong(f"its graph has {len(text):,} characters, more than {MAX_TEXT:,}")
    try:
        given = strict_json(text)
    except ValueError as error:
        raise _Wrong(f"its graph is no JSON ({str(error)[:80]})") from None
    if not isinstance(given, dict) or set(given) != {"graph", "weights", "nodes"}:
        raise _Wrong("its graph must have exactly: graph, weights, nodes")
    if type(given["graph"]) is not int or given["graph"] != FORMAT:
        raise _Wrong(
            f"its graph is of format {str(given['graph'])[:20]}, this attar reads {FORMAT}: update one of the two"
        )
    shapes, dtypes = _weights(given["weights"])
    nodes = _nodes(given["nodes"], dtypes)
    names, layers = _names(nodes, len(shapes))
    ranks, work, elements = _follow(nodes, shapes, dtypes, input_shape, num_classes)
    if layers.get(len(nodes)) == "head" and ranks[_input(nodes[-1])] != 2:
        raise _Wrong(
            f"node {len(nodes)} (linear): the last layer must see one row of features per image"
        )
    return Graph(nodes, shapes, dtypes, names, ranks, layers, work, elements)


def _weights(given: object) -> tuple[tuple[tuple[int, ...], ...], tuple[torch.dtype, ...]]:
    if not isinstance(given, list) or len(given) > MAX_WEIGHTS:
        raise _Wrong(f"weights must be a list of at most {MAX_WEIGHTS}")
    shapes, dtypes, total = [], [], 0
    side = Whole(1, MAX_LENGTH)
    for number, one in enumerate(given):
        if (
            not isinstance(one, list)
            or len(one) != 2
            or not isinstance(one[0], str)
            or one[0] not in _DTYPES
        ):
            raise _Wrong(
                f"weight {number}: must be [type, shape] with a type of {', '.join(_DTYPES)}"
            )
        if not isinstance(one[1], list) or len(one[1]) > MAX_RANK:
            raise _Wrong(f"weight {number}: the shape must be a list of at most {MAX_RANK} sizes")
        try:
            shape = tuple(side.read(size, Scope(0, ())) for size in one[1])
        except ValueError as error:
            raise _Wrong(f"weight {number}: expected sizes, each {error}") from None
        total += math.prod(shape)
        if total > MAX_WEIGHT_ELEMENTS:
            raise _Wrong(f"its weights have more than {MAX_WEIGHT_ELEMENTS:,} elements")
        shapes.append(shape)
        dtypes.append(_DTYPES[one[0]])
    return tuple(shapes), tuple(dtypes)


def _nodes(given: object, dtypes: tuple[torch.dtype, ...]) -> tuple[Node, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_NODES:
        raise _Wrong(f"nodes must be a list of 1 to {MAX_NODES}")
    nodes, problems = [], []
    for number, one in enumerate(given, 1):
        try:
            nodes.append(_node(one, Scope(number, dtypes)))
        except _Wrong as wrong:
            problems += [f"node {number}{reason}" for reason in wrong.args]
    if problems:
        raise _Wrong(*problems)
    return tuple(nodes)


def _node(given: object, scope: Scope) -> Node:
    if (
        not isinstance(given, dict)
        or set(given) != {"op", "args"}
        or not isinstance(given["args"], dict)
    ):
        raise _Wrong(": must have exactly: op, args")
    op = given["op"]
    if not isinstance(op, str) or op not in OPERATORS:
        raise _Wrong(
            f": there is no operator {str(op)[:60]!r} among the {len(OPERATORS)} that a packed net may use"
        )
    kinds, args, problems = OPERATORS[op].arguments, {}, []
    problems += [
        f" ({op}): it has no argument {str(name)[:40]!r}"
        for name in given["args"]
        if name not in kinds
    ]
    for name, kind in kinds.items():
        if name not in given["args"]:
            if not isinstance(kind, Maybe):
                problems.append(f" ({op}): {name} is missing")
            continue
        try:
            args[name] = kind.read(given["args"][name], scope)
        except ValueError as error:
            problems.append(f" ({op}): {name}: expected {error}")
    if problems:
        raise _Wrong(*problems)
    return Node(op, args)


def _references(node: Node) -> Iterator[At | Weight]:
    for value in node.args.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, At | Weight):
                yield item


def _input(node: Node) -> int:
    source = node.args["input"]
    return source.node if isinstance(source, At) else -1


def _names(nodes: Sequence[Node], weights: int) -> tuple[tuple[str, ...], dict[int, str]]:
    """What each weight is called in the net's state, and which nodes are modules of their own."""
    users: dict[int, list[int]] = {number: [] for number in range(weights)}
    heard = {len(nodes)}
    for number, node in enumerate(nodes, 1):
        for one in _references(node):
            if isinstance(one, Weight):
                users[one.number].append(number)
            else:
                heard.add(one.node)
    problems = [
        f"node {number} leads nowhere" for number in range(len(nodes) + 1) if number not in heard
    ]
    problems += [f"weight {number} is used by no node" for number, who in users.items() if not who]
    names = [f"w{number}" for number in range(weights)]
    layers: dict[int, str] = {}
    norms: dict[tuple[object, ...], str] = {}
    for number, node in enumerate(nodes, 1):
        if node.op == "batch_norm":
            own = {name: arg for name, arg in node.args.items() if isinstance(arg, Weight)}
            key = (*sorted((name, arg.number) for name, arg in own.items()), node.args["eps"])
            layers[number] = norms.setdefault(key, f"norm{number}")
            for name, arg in own.items():
                names[arg.number] = f"{layers[number]}.{name}"
        elif (
            node.op == "linear"
            and number == len(nodes)
            and all(_alone(node, name, users) for name in ("weight", "bias"))
        ):
            layers[number] = "head"
            for name in ("weight", "bias"):
                if name in node.args:
                    names[node.args[name].number] = f"head.{name}"
    for number, who in users.items():
        kinds = {layers.get(user, f"the {nodes[user - 1].op} of node {user}") for user in who}
        if any(user in layers for user in who) and (len(kinds) > 1 or len(who) != len(set(who))):
            problems.append(
                f"weight {number} belongs to {' and to '.join(sorted(kinds))}: a layer's weights are its own"
            )
    if problems:
        raise _Wrong(*problems)
    return tuple(names), layers


def _alone(node: Node, name: str, users: Mapping[int, list[int]]) -> bool:
    """Whether the argument is a weight that nobody else uses, or left out."""
    arg = node.args.get(name)
    return (arg is None and name == "bias") or (
        isinstance(arg, Weight) and len(users[arg.number]) == 1
    )


def _follow(
    nodes: Sequence[Node],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    input_shape: Shape,
    num_classes: int,
) -> tuple[tuple[int, ...], int, int]:
    """The ranks of all values, the work and the elements of one image; shapes are followed
    without any memory.
    """
    weights = [
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    values = {batch: [torch.empty(batch, *input_shape, device="meta")] for batch in _BATCHES}
    work, elements, passing = 0, math.prod(input_shape), 0
    for number, node in enumerate(nodes, 1):
        where = f"node {number} ({node.op}): "
        for batch, known in values.items():
            args = {name: _filled(arg, known, weights, batch) for name, arg in node.args.items()}
            result, cost = _tried(node, args, where)
            known.append(result)
            if batch == 1:
                work, elements, passing = (
                    work + cost.work,
                    elements + result.numel(),
                    max(passing, cost.passing),
                )
                if elements + passing > MAX_ELEMENTS:
                    raise _Wrong(
                        f"{where}its values for one image have more than {MAX_ELEMENTS:,} elements"
                    )
                if work > MAX_WORK:
                    raise _Wrong(
                        f"{where}it takes more than {MAX_WORK:,} multiplications for one image"
                    )
        one, two, many = (values[batch][number].numel() for batch in _BATCHES)
        if (two, many) not in ((one, one), (2 * one, 1000 * one)):
            raise _Wrong(f"{where}its result does not grow with the batch as it must")
    for batch, known in values.items():
        if tuple(known[-1].shape) != (batch, num_classes):
            shape = list(known[-1].shape)
            raise _Wrong(
                f"its last node gives {shape} for {batch} images and {num_classes} classes"
            )
    return tuple(value.dim() for value in values[1]), work, elements + passing


def _tried(node: Node, args: Mapping[str, Any], where: str) -> tuple[Tensor, Any]:
    operator = OPERATORS[node.op]
    problem = operator.check(args)
    if problem is not None:
        raise _Wrong(where + problem)
    if node.op == "index_select":
        args = {**args, "index": torch.empty(len(args["index"]), dtype=torch.int64, device="meta")}
    try:
        result = operator.call(**args)
    except (
        RuntimeError,
        ValueError,
        IndexError,
        TypeError,
    ) as error:  # torch refuses shapes that do not fit together
        raise _Wrong(
            f"{where}{str(error).splitlines()[0][:200] if str(error) else 'torch refuses it'}"
        ) from None
    if result.dim() > MAX_RANK or not result.numel():
        raise _Wrong(f"{where}its result has the shape {list(result.shape)}")
    return result, operator.cost(args, result)


def _filled(
    arg: Any, values: Sequence[Tensor | None], weights: Sequence[Tensor], batch: int
) -> Any:
    """An argument with tensors and numbers in the places of references."""
    if isinstance(arg, At):
        return values[arg.node]
    if isinstance(arg, Weight):
        return weights[arg.number]
    if isinstance(arg, Batch):
        return arg.times * batch
    if isinstance(arg, tuple):
        return tuple(_filled(item, values, weights, batch) for item in arg)
    return arg


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _title(options: Mapping[str, Any]) -> str:
    """A graph's name in tables and records: its digest and its size."""
    text = str(options.get("graph", ""))
    digest, nodes = hashlib.sha256(text.encode()).hexdigest()[:12], text.count('"op":')
    return f"graph:{digest} ({nodes} nodes)"


class GraphNet(nn.Module):
    """The module of a checked graph; its weights are zeros until a state is loaded."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        for shape, dtype, name in zip(graph.shapes, graph.dtypes, graph.names, strict=True):
            if "." not in name:
                tensor = torch.zeros(shape, dtype=dtype)
                if dtype is torch.float32:
                    self.register_parameter(name, nn.Parameter(tensor))
                else:
                    self.register_buffer(name, tensor)
        self._last: list[list[int]] = [
            [] for _ in graph.nodes
        ]  # values that nobody asks for after a node
        seen: set[int] = {len(graph.nodes)}
        for number in range(len(graph.nodes), 0, -1):
            node = graph.nodes[number - 1]
            asked = {one.node for one in _references(node) if isinstance(one, At)} - seen
            self._last[number - 1] = sorted(asked)
            seen |= asked
            if number in graph.layers:
                self._add_layer(graph.layers[number], number, node)
            elif node.op == "index_select":
                self.register_buffer(
                    f"index{number}", torch.tensor(node.args["index"]), persistent=False
                )

    def _add_layer(self, name: str, number: int, node: Node) -> None:
        if name in self._modules:
            return
        shapes = {
            key: self.graph.shapes[arg.number]
            for key, arg in node.args.items()
            if isinstance(arg, Weight)
        }
        if name == "head":
            width, inputs = shapes["weight"]
            head = nn.Linear(inputs, width, bias="bias" in shapes)
            self.add_module(name, head)
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
            return
        kind = nn.BatchNorm2d if self.graph.ranks[number] == 4 else nn.BatchNorm1d
        self.add_module(
            name, kind(shapes["running_mean"][0], eps=node.args["eps"], affine="weight" in shapes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self._walk(x, len(self.graph.nodes))

    def features(self, x: Tensor) -> Tensor:
        """What the last linear layer sees."""
        if "head" not in self._modules:
            raise SpecError(
                "This packed net does not end in a linear layer of its own: it has no penultimate features."
            )
        return self._walk(x, _input(self.graph.nodes[-1]))

    def _walk(self, x: Tensor, goal: int) -> Tensor:
        values: list[Tensor | None] = [x]
        weights = [
            x if "." in name else getattr(self, name) for name in self.graph.names
        ]  # layers have their own
        for number, node in enumerate(self.graph.nodes[:goal], 1):
            if number in self.graph.layers:
                source = _filled(node.args["input"], values, weights, len(x))
                result: Tensor = self._modules[self.graph.layers[number]](source)  # type: ignore[misc]
            else:
                args = {
                    name: _filled(arg, values, weights, len(x)) for name, arg in node.args.items()
                }
                if node.op == "index_select":
                    args["index"] = self.get_buffer(f"index{number}")
                result = OPERATORS[node.op].call(**args)
            values.append(result)
            for done in self._last[number - 1]:
                if done != goal:
                    values[done] = None
        found = values[goal]
        assert found is not None
        return found


@register(
    "graph",
    "any PyTorch classifier, packed by `attar pack`: a graph of allowed operators that travels in the upload",
    title=_title,
    longest_option=MAX_TEXT,
)
def packed_net(input_shape: Shape, num_classes: int, *, graph: str) -> nn.Module:
    return GraphNet(read_graph(graph, input_shape, num_classes))
