"""The module of a packed net, which runs the nodes of its graph one by one.

BatchNorms are real modules, so that whoever looks for BatchNorm statistics finds them; a final
linear layer is ``head``.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attar.errors import SpecError
from attar.nets.graph.arguments import At, Weight
from attar.nets.graph.format import MAX_TEXT, Graph, input_of, read_graph, references
from attar.nets.graph.operators import OPERATORS
from attar.nets.graph.shapes import Node, fill_argument
from attar.nets.registry import Shape, register


class GraphNet(nn.Module):
    """The module of a checked graph; its weights are zeros until a state is loaded.

    Args:
        graph: from ``read_graph``.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        for shape, dtype, name in zip(graph.shapes, graph.dtypes, graph.names, strict=True):
            if "." in name:  # belongs to a layer
                continue
            tensor = torch.zeros(shape, dtype=dtype)
            if dtype is torch.float32:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        # For each node, the values that no later node uses.
        self._unused_after: list[list[int]] = [[] for _ in graph.nodes]
        seen: set[int] = {len(graph.nodes)}
        for number in range(len(graph.nodes), 0, -1):
            node = graph.nodes[number - 1]
            used = {one.node for one in references(node) if isinstance(one, At)} - seen
            self._unused_after[number - 1] = sorted(used)
            seen |= used
            if number in graph.layers:
                self._add_layer(graph.layers[number], number, node)
            elif node.op == "index_select":
                index = torch.tensor(node.args["index"])
                self.register_buffer(f"index{number}", index, persistent=False)

    def _add_layer(self, name: str, number: int, node: Node) -> None:
        if name in self._modules:
            return
        weights = {name: arg for name, arg in node.args.items() if isinstance(arg, Weight)}
        shapes = {name: self.graph.shapes[arg.number] for name, arg in weights.items()}
        if name == "head":
            width, inputs = shapes["weight"]
            head = nn.Linear(inputs, width, bias="bias" in shapes)
            self.add_module(name, head)
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
            return
        kind = nn.BatchNorm2d if self.graph.ranks[number] == 4 else nn.BatchNorm1d
        channels = shapes["running_mean"][0]
        norm = kind(channels, eps=node.args["eps"], affine="weight" in shapes)
        self.add_module(name, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (B, C, H, W)."""
        return self._run(x, len(self.graph.nodes))

    def features(self, x: Tensor) -> Tensor:
        """The input of the last linear layer, (B, F).

        Raises:
            SpecError: if the net does not end in a linear layer with its own weights.
        """
        if "head" not in self._modules:
            reason = "it does not end in a linear layer with its own weights"
            raise SpecError(f"This packed net has no penultimate features: {reason}.")
        return self._run(x, input_of(self.graph.nodes[-1]))

    def _run(self, x: Tensor, goal: int) -> Tensor:
        """The value of the node ``goal``."""
        values: list[Tensor | None] = [x]
        # A layer has its weights itself; x only holds their places in the list.
        weights = [x if "." in name else getattr(self, name) for name in self.graph.names]
        for number, node in enumerate(self.graph.nodes[:goal], 1):
            if number in self.graph.layers:
                source = fill_argument(node.args["input"], values, weights, x.shape[0])
                layer = self._modules[self.graph.layers[number]]
                assert layer is not None
                result: Tensor = layer(source)
            else:
                args = {
                    name: fill_argument(arg, values, weights, x.shape[0])
                    for name, arg in node.args.items()
                }
                if node.op == "index_select":
                    args["index"] = self.get_buffer(f"index{number}")
                result = OPERATORS[node.op].call(**args)
            values.append(result)
            for unused in self._unused_after[number - 1]:
                if unused != goal:
                    values[unused] = None
        reached = values[goal]
        assert reached is not None
        return reached


def _title(options: Mapping[str, Any]) -> str:
    """A graph's name in tables and records: its digest and its size."""
    text = str(options.get("graph", ""))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    nodes = text.count('"op":')
    return f"graph:{digest} ({nodes} nodes)"


@register(
    "graph",
    "any PyTorch classifier, packed by `attar pack`: a graph of allowed operators that travels in "
    "the upload",
    title=_title,
    longest_option=MAX_TEXT,
)
def packed_net(input_shape: Shape, num_classes: int, *, graph: str) -> nn.Module:
    """A packed net.

    Args:
        input_shape: (C, H, W) that it was packed for.
        num_classes: outputs.
        graph: its text, see ``format.py``.

    Raises:
        SpecError: with what is wrong with the text.
    """
    return GraphNet(read_graph(graph, input_shape, num_classes))
