"""A packed net as text: any classifier as a graph, without its sender's code.

    {"graph": 1, "weights": [["float32", [8, 3, 3, 3]], …],
     "nodes": [{"op": "conv2d", "args": {"input": {"node": 0}, "weight": {"weight": 0}, …}}, …]}

Node 0 is the batch of images, the listed nodes follow from 1, and the last one is the logits.
References point backwards only, so there are no cycles. Every operator is one of ``OPERATORS``;
nothing in the text is ever used as a name: the tensors' names in the upload are chosen here
(``w3``, ``norm7.running_mean``, ``head.weight``).

``read_graph`` checks all of it: the text here, the shapes in ``shapes.py``, on torch's ``meta``
device where nothing is allocated. ``net.py`` then runs the nodes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from attar.errors import SpecError
from attar.internal.strict_json import strict_json
from attar.nets.graph.arguments import MAX_LENGTH, MAX_RANK, At, Maybe, Scope, Weight, Whole
from attar.nets.graph.operators import OPERATORS
from attar.nets.graph.shapes import InvalidGraph, Node, follow_shapes
from attar.nets.registry import Shape

FORMAT = 1
MAX_TEXT = 2**20  # characters
MAX_NODES = 4096
MAX_WEIGHTS = 8192
MAX_WEIGHT_ELEMENTS = 2**30  # of all weights together: 4 GiB
MAX_PROBLEMS = 6  # in one message

_DTYPES = {"float32": torch.float32, "bool": torch.bool}


@dataclass(frozen=True)
class Graph:
    """A graph that was checked for one image shape and number of classes.

    Attributes:
        nodes: in the order in which they are computed.
        shapes: of the weights.
        dtypes: of the weights.
        names: of the weights in the net's state.
        ranks: of the values, by node; 0 is the batch of images.
        layers: number of a node -> the name of its module, a BatchNorm or the head.
        work: multiply-accumulates for one image.
        elements: of all values for one image together.
    """

    nodes: tuple[Node, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    layers: Mapping[int, str]
    work: int
    elements: int

    def operators(self) -> dict[str, int]:
        """How often each operator occurs, the most frequent first."""
        names = [node.op for node in self.nodes]
        order = sorted(set(names), key=lambda name: (-names.count(name), name))
        return {name: names.count(name) for name in order}


def read_graph(text: str, input_shape: Shape, num_classes: int) -> Graph:
    """Read and check a packed net; no tensor is allocated.

    Args:
        text: JSON from an untrusted sender.
        input_shape: of one image, (C, H, W).
        num_classes: of the logits.

    Returns:
        The graph, safe to run.

    Raises:
        SpecError: with what is wrong.
    """
    try:
        return check_graph(text, input_shape, num_classes)
    except InvalidGraph as error:
        problems = [_make_printable(reason) for reason in error.args]
        more = len(problems) - MAX_PROBLEMS
        if more > 0:
            problems = [*problems[:MAX_PROBLEMS], f"and {more} more of this kind"]
        raise SpecError(
            "The packed net cannot be used:",
            problems=problems,
            fix="have it packed again with `attar pack`",
        ) from None


@lru_cache(maxsize=32)
def check_graph(text: str, input_shape: Shape, num_classes: int) -> Graph:
    """``read_graph`` with its own error, and cached.

    Raises:
        InvalidGraph: ``args`` are the problems, unchanged from the text.
    """
    if len(text) > MAX_TEXT:
        raise InvalidGraph(f"its graph has {len(text):,} characters, more than {MAX_TEXT:,}")
    try:
        content = strict_json(text)
    except ValueError as error:
        raise InvalidGraph(f"its graph is no JSON ({str(error)[:80]})") from None
    if not isinstance(content, dict) or set(content) != {"graph", "weights", "nodes"}:
        raise InvalidGraph("its graph must have exactly: graph, weights, nodes")
    if type(content["graph"]) is not int or content["graph"] != FORMAT:
        version = f"format {str(content['graph'])[:20]}, this attar reads {FORMAT}"
        raise InvalidGraph(f"its graph is of {version}: update one of the two")
    shapes, dtypes = _read_weights(content["weights"])
    nodes = _read_nodes(content["nodes"], dtypes)
    names, layers = _name_weights(nodes, len(shapes))
    ranks, work, elements = follow_shapes(nodes, shapes, dtypes, input_shape, num_classes)
    last = len(nodes)
    if layers.get(last) == "head" and ranks[input_of(nodes[-1])] != 2:
        reason = "the last layer must see one row of features per image"
        raise InvalidGraph(f"node {last} (linear): {reason}")
    return Graph(
        nodes=nodes,
        shapes=shapes,
        dtypes=dtypes,
        names=names,
        ranks=ranks,
        layers=layers,
        work=work,
        elements=elements,
    )


def _read_weights(value: object) -> tuple[tuple[tuple[int, ...], ...], tuple[torch.dtype, ...]]:
    """Shapes and data types of the weights."""
    if not isinstance(value, list) or len(value) > MAX_WEIGHTS:
        raise InvalidGraph(f"weights must be a list of at most {MAX_WEIGHTS}")
    shapes = []
    dtypes = []
    total = 0
    for number, entry in enumerate(value):
        where = f"weight {number}"
        pair = isinstance(entry, list) and len(entry) == 2
        if not pair or not isinstance(entry[0], str) or entry[0] not in _DTYPES:
            types = ", ".join(_DTYPES)
            raise InvalidGraph(f"{where}: must be [type, shape] with a type of {types}")
        dtype, sizes = entry
        if not isinstance(sizes, list) or len(sizes) > MAX_RANK:
            raise InvalidGraph(f"{where}: the shape must be a list of at most {MAX_RANK} sizes")
        try:
            shape = tuple(Whole(1, MAX_LENGTH).read(size, Scope(0, ())) for size in sizes)
        except ValueError as error:
            raise InvalidGraph(f"{where}: expected sizes, each {error}") from None
        total += math.prod(shape)
        if total > MAX_WEIGHT_ELEMENTS:
            raise InvalidGraph(f"its weights have more than {MAX_WEIGHT_ELEMENTS:,} elements")
        shapes.append(shape)
        dtypes.append(_DTYPES[dtype])
    return tuple(shapes), tuple(dtypes)


def _read_nodes(value: object, dtypes: tuple[torch.dtype, ...]) -> tuple[Node, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_NODES:
        raise InvalidGraph(f"nodes must be a list of 1 to {MAX_NODES}")
    nodes = []
    problems = []
    for number, entry in enumerate(value, 1):
        try:
            nodes.append(read_node(entry, Scope(number, dtypes)))
        except InvalidGraph as error:
            problems += [f"node {number}{reason}" for reason in error.args]
    if problems:
        raise InvalidGraph(*problems)
    return tuple(nodes)


def read_node(value: object, scope: Scope) -> Node:
    """Read one node from JSON.

    Args:
        value: from an untrusted sender.
        scope: the nodes and weights that it may refer to.

    Raises:
        InvalidGraph: with every argument that is missing, unknown or of another kind.
    """
    entries = {"op", "args"}
    if not isinstance(value, dict) or set(value) != entries or not isinstance(value["args"], dict):
        raise InvalidGraph(": must have exactly: op, args")
    op = value["op"]
    if not isinstance(op, str) or op not in OPERATORS:
        known = f"among the {len(OPERATORS)} that a packed net may use"
        raise InvalidGraph(f": there is no operator {str(op)[:60]!r} {known}")
    kinds = OPERATORS[op].arguments
    args = {}
    problems = []
    for name in value["args"]:
        if name not in kinds:
            problems.append(f" ({op}): it has no argument {str(name)[:40]!r}")
    for name, kind in kinds.items():
        if name not in value["args"]:
            if not isinstance(kind, Maybe):
                problems.append(f" ({op}): {name} is missing")
            continue
        try:
            args[name] = kind.read(value["args"][name], scope)
        except ValueError as error:
            problems.append(f" ({op}): {name}: expected {error}")
    if problems:
        raise InvalidGraph(*problems)
    return Node(op, args)


def references(node: Node) -> Iterator[At | Weight]:
    """The earlier nodes and the weights that a node uses."""
    for value in node.args.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, At | Weight):
                yield item


def input_of(node: Node) -> int:
    """The number of the node whose value is the argument ``input``; -1 if that is a weight."""
    source = node.args["input"]
    return source.node if isinstance(source, At) else -1


def _name_weights(nodes: Sequence[Node], weights: int) -> tuple[tuple[str, ...], dict[int, str]]:
    """The name of each weight in the net's state, and which nodes are modules."""
    users, problems = _find_users(nodes, weights)
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
        elif number == len(nodes) and _is_head(node, users):
            layers[number] = "head"
            for name in ("weight", "bias"):
                if name in node.args:
                    names[node.args[name].number] = f"head.{name}"
    for number, used_by in users.items():
        if not any(user in layers for user in used_by):
            continue
        owners = {layers.get(user, f"the {nodes[user - 1].op} of node {user}") for user in used_by}
        if len(owners) > 1 or len(used_by) != len(set(used_by)):
            shared = " and to ".join(sorted(owners))
            problems.append(f"weight {number} belongs to {shared}: layers cannot share weights")
    if problems:
        raise InvalidGraph(*problems)
    return tuple(names), layers


def _find_users(nodes: Sequence[Node], weights: int) -> tuple[dict[int, list[int]], list[str]]:
    """The nodes that use each weight, and what is used by none."""
    users: dict[int, list[int]] = {number: [] for number in range(weights)}
    used = {len(nodes)}
    for number, node in enumerate(nodes, 1):
        for reference in references(node):
            if isinstance(reference, Weight):
                users[reference.number].append(number)
            else:
                used.add(reference.node)
    unused = [number for number in range(len(nodes) + 1) if number not in used]
    problems = [f"node {number} leads nowhere" for number in unused]
    problems += [f"weight {number} is used by no node" for number, by in users.items() if not by]
    return users, problems


def _is_head(node: Node, users: Mapping[int, list[int]]) -> bool:
    """Whether a node is a linear layer whose weights no other node uses."""
    if node.op != "linear":
        return False
    for name in ("weight", "bias"):
        arg = node.args.get(name)
        if arg is None and name == "bias":
            continue
        if not isinstance(arg, Weight) or len(users[arg.number]) != 1:
            return False
    return True


def _make_printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
