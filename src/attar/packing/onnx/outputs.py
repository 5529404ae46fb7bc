"""Finds the logits of an ONNX graph: methods average and distil logits, and exporters often end in
a softmax.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attar.errors import PackError
from attar.packing.onnx.file import OnnxGraph, OnnxNode

Ending = Literal["logits", "softmax", "logarithm", "sigmoid", "pair"]
LINEAR = "LinearClassifier"  # of scikit-learn's operators, with its softmax inside
# Usual names of the result, the likeliest first.
USUAL = ("logits", "output_logits", "probabilities", "output_probability", "probability")
_SAME = ("Identity", "Cast", "Dropout")


@dataclass(frozen=True)
class Logits:
    """Where an ONNX graph has its logits.

    Attributes:
        value: the name of the value.
        ending: what came after it and is left out; ``pair`` is a sigmoid over one score and its
            negative.
        nodes: those that lead to it, in order.
        classes: their names, where the file has them.
    """

    value: str
    ending: Ending
    nodes: tuple[OnnxNode, ...]
    classes: tuple[str, ...] | None


def find_logits(graph: OnnxGraph, asked: str | None) -> Logits:
    """Find the logits.

    Args:
        graph: of the file.
        asked: name of the result to take; None: the one that is usual.

    Raises:
        PackError: if there are several results of which none is usual, or none of that name.
    """
    value = _choose_output(graph, asked)
    classes = _named_in_file(graph)
    node = _before_copies(graph, value)
    if node is not None and node.op == "ZipMap":  # a list of dictionaries, one for each image
        classes = classes or _labels(node)
        value = node.inputs[0]
        node = _before_copies(graph, value)
    if node is not None and node.op == "Normalizer":  # of what a softmax made: it changes nothing
        before = _before_copies(graph, node.inputs[0])
        node = before if before is not None and before.op == LINEAR else node
        value = node.outputs[-1]
    ending: Ending = "logits"
    if (score := _score_of_two(graph, node)) is not None:
        value, ending = score, "sigmoid"
    elif node is not None and node.op in ("Softmax", "LogSoftmax", "Sigmoid"):
        ending = "sigmoid" if node.op == "Sigmoid" else "softmax"
        ending = "logarithm" if node.op == "LogSoftmax" else ending
        value = node.inputs[0]
    elif node is not None and node.op == LINEAR and len(node.outputs) == 2:
        ending = _ending_inside(node)
        classes = classes or _labels(node)
    return Logits(value, ending, _leading_to(graph, value), classes)


def _score_of_two(graph: OnnxGraph, node: OnnxNode | None) -> str | None:
    """The score s of a result [1 - sigmoid(s), sigmoid(s)]; None where it is another."""
    if node is None or node.op != "Concat" or len(node.inputs) != 2:
        return None
    rest, sure = (_before_copies(graph, name) for name in node.inputs)
    if rest is None or sure is None or (rest.op, sure.op) != ("Sub", "Sigmoid"):
        return None
    return sure.inputs[0] if rest.inputs[1] in sure.outputs else None


def _ending_inside(node: OnnxNode) -> Ending:
    """What scikit-learn's linear classifier does with its scores.

    Raises:
        PackError: if that is not a softmax, and not the sigmoid of a classifier of two classes.
    """
    kind = node.attributes.get("post_transform", "NONE")
    if kind in ("NONE", "SOFTMAX"):
        return "softmax" if kind == "SOFTMAX" else "logits"
    numbers = node.attributes["coefficients"]
    half = len(numbers) // 2
    two = len(node.attributes.get("intercepts", ())) == 2
    if kind == "LOGISTIC" and two and np.allclose(numbers[:half], np.negative(numbers[half:])):
        return "pair"
    raise PackError(
        f"{node.title} judges each class by itself ({kind.lower()}), which no method expects.",
        fix="train it for all classes at once: multi_class='multinomial', or MLPClassifier",
    )


def as_logits(graph: OnnxGraph, logits: Logits) -> Any:
    """The file's model with the logits as its only result, for onnxruntime."""
    from onnx import ModelProto, ValueInfoProto, helper

    model = ModelProto()
    model.CopyFrom(graph.model)
    wanted = {node.outputs for node in logits.nodes}
    kept = [node for node in model.graph.node if tuple(node.output) in wanted]
    for node in kept:
        if node.op_type == LINEAR and logits.value in node.output:  # its softmax is an attribute
            others = [entry for entry in node.attribute if entry.name != "post_transform"]
            del node.attribute[:]
            node.attribute.extend([*others, helper.make_attribute("post_transform", "NONE")])
    del model.graph.node[:]
    model.graph.node.extend(kept)
    del model.graph.output[:]
    del model.graph.value_info[:]
    model.graph.output.append(ValueInfoProto(name=logits.value))
    return model


def _choose_output(graph: OnnxGraph, asked: str | None) -> str:
    names = graph.outputs
    listed = ", ".join(names)
    if asked is not None:
        if asked not in names:
            raise PackError(f"The file has no result {asked!r}.", fix=f"--output: {listed}")
        return asked
    if len(names) == 1:
        return names[0]
    for usual in USUAL:
        if usual in names:
            return usual
    raise PackError(
        f"The file has {len(names)} results: {listed}.", fix="name the logits with --output NAME"
    )


def _before_copies(graph: OnnxGraph, value: str) -> OnnxNode | None:
    """The node that computed a value, past copies."""
    node = graph.node_of(value)
    while node is not None and node.op in _SAME:
        node = graph.node_of(node.inputs[0])
    return node


def _leading_to(graph: OnnxGraph, value: str) -> tuple[OnnxNode, ...]:
    """The nodes that a value depends on, in their order."""
    wanted = {value}
    kept = []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            if node.op == LINEAR and value in node.outputs:  # its scores alone are wanted
                node = replace(node, attributes={**node.attributes, "post_transform": "NONE"})
            kept.append(node)
    return tuple(reversed(kept))


def _labels(node: OnnxNode) -> tuple[str, ...] | None:
    """The names of classes among a node's attributes; numbers are no names."""
    for key in ("classlabels_strings", "classlabels_string"):
        if labels := node.attributes.get(key):
            return tuple(
                label.decode(errors="replace") if isinstance(label, bytes) else str(label)
                for label in labels
            )
    return None


def _named_in_file(graph: OnnxGraph) -> tuple[str, ...] | None:
    """The names that ``attar export`` writes into a file."""
    try:
        names = json.loads(graph.facts.get("classes", "null"))
    except ValueError:
        return None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    return None


def join_products(nodes: Sequence[OnnxNode], constants: Any) -> list[OnnxNode]:
    """Write a product with a constant matrix and the sum after it as one linear layer.

    TensorFlow and scikit-learn export dense layers as two nodes; as one, the last of them is the
    head of the packed net.

    Args:
        nodes: in their order.
        constants: arrays by name.
    """
    users: dict[str, list[OnnxNode]] = {}
    for node in nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    joined: dict[int, OnnxNode] = {}
    dropped: set[int] = set()
    for node in nodes:
        if node.op != "MatMul" or node.inputs[1] not in constants:
            continue
        matrix = constants[node.inputs[1]]
        after = users.get(node.outputs[0], [])
        if matrix.ndim != 2 or len(after) != 1 or after[0].op != "Add":
            continue
        (bias,) = [name for name in after[0].inputs if name != node.outputs[0]] or [""]
        if (
            bias in constants
            and constants[bias].size == matrix.shape[1] == constants[bias].shape[-1]
        ):
            inputs = (*node.inputs, bias)
            joined[after[0].number] = replace(node, inputs=inputs, outputs=after[0].outputs)
            dropped.add(node.number)
    return [joined.get(node.number, node) for node in nodes if node.number not in dropped]
