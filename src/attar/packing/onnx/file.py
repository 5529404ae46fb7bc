"""Reads an ONNX file: nothing outside of it, no operators of its own, within limits."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attar.errors import PackError
from attar.internal.extras import import_extra
from attar.internal.text import human_bytes, list_some
from attar.packing.export import first_line

Array = NDArray[Any]

OLDEST, NEWEST = 9, 26  # of the standard operators (opset); docs/foreign-models.md says so, too
STANDARD = ("", "ai.onnx")
LEARNING = "ai.onnx.ml"  # scikit-learn's
MOST_BYTES = 2**31 - 1  # the format's own limit
MOST_NODES = 20_000
MOST_LISTED = 6  # problems in one message
_FLOATS = ("FLOAT", "FLOAT16", "DOUBLE")


@dataclass(frozen=True)
class OnnxNode:
    """One node of an ONNX graph.

    Attributes:
        number: its place in the graph, from 1.
        op: the operator.
        name: that its exporter gave it; may be empty.
        inputs: names of values; an empty one was left out.
        outputs: names of values.
        attributes: by name: numbers, texts, lists, or arrays.
    """

    number: int
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def title(self) -> str:
        """How messages call it: ``node 12 (Reshape 'flatten')``."""
        name = "".join(letter if letter.isprintable() else "?" for letter in self.name[:80])
        return f"node {self.number} ({self.op}{f' {name!r}' if name else ''})"


@dataclass(frozen=True)
class OnnxGraph:
    """The graph of an ONNX file.

    Attributes:
        model: the file as onnx reads it, with functions written out.
        opset: version of the standard operators.
        input: name of the images.
        input_sizes: of the images; None where a size is not fixed.
        outputs: names of all results.
        nodes: in the order in which they are computed.
        constants: arrays by name.
        facts: what the file says about itself, as texts.
    """

    model: Any
    opset: int
    input: str
    input_sizes: tuple[int | None, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Array]
    facts: Mapping[str, str]

    def node_of(self, value: str) -> OnnxNode | None:
        """The node that computes a value."""
        return next((node for node in self.nodes if value in node.outputs), None)


def read_onnx(path: Path) -> OnnxGraph:
    """Read a file.

    Raises:
        SettingsError: if a package is missing.
        PackError: if it cannot be read, refers to other files, has operators of its own, is of
            another version, or takes anything but images.
    """
    onnx = import_extra("onnx", "export")
    model = _load(onnx, path)
    _check_closed(onnx, path, model)
    opset = _check_versions(path, model)
    if len(model.functions):
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise PackError(
            f"{path} is not valid ONNX:",
            problems=[first_line(error)],
            fix="export it again",
        ) from None
    graph = model.graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    name, sizes = _find_input(onnx, path, graph, constants)
    nodes = tuple(_read_node(onnx, place, node) for place, node in enumerate(graph.node, 1))
    if len(nodes) > MOST_NODES:
        raise PackError(f"{path} has {len(nodes):,} nodes, more than {MOST_NODES:,}.")
    return OnnxGraph(
        model=model,
        opset=opset,
        input=name,
        input_sizes=sizes,
        outputs=tuple(output.name for output in graph.output),
        nodes=nodes,
        constants=constants,
        facts={entry.key: entry.value for entry in model.metadata_props},
    )


def _load(onnx: Any, path: Path) -> Any:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise PackError(f"There is no file {path}.", fix="check the path") from None
    if size > MOST_BYTES:
        raise PackError(f"{path} has {human_bytes(size)}; an ONNX file has at most 2 GiB.")
    try:
        return onnx.load_model_from_string(path.read_bytes())
    except Exception as error:  # protobuf's errors differ between its versions
        raise PackError(
            f"{path} is not an ONNX file:",
            problems=[first_line(error)],
            fix="name the .onnx file that tf2onnx, skl2onnx or torch.onnx wrote",
        ) from None


def _check_closed(onnx: Any, path: Path, model: Any) -> None:
    """Refuse what is outside of the file, and operators that are not ONNX's."""
    external = [
        tensor.name
        for tensor in _all_tensors(model)
        if tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data)
    ]
    if external:
        raise PackError(
            f"{path} keeps weights in other files, which attar does not open:",
            problems=[list_some(external)],
            fix="write them into the file: onnx.save(onnx.load(FILE), NEW)",
        )
    inner = (graph for node in _all_nodes(model) for graph in _graphs_in(node))
    if any(len(graph.sparse_initializer) for graph in (model.graph, *inner)):
        raise PackError(f"{path} has sparse weights.", fix="export it with dense ones")
    own = {function.domain for function in model.functions}
    allowed = {*STANDARD, LEARNING, *own}
    strange = Counter(
        f"{node.domain}: {node.op_type}" for node in _all_nodes(model) if node.domain not in allowed
    )
    if strange:
        raise PackError(
            f"{path} has operators that are not ONNX's own:",
            problems=[f"{name} ({count} nodes)" for name, count in strange.items()][:MOST_LISTED],
            fix="export the net without custom or fused operators, and before any runtime's "
            "optimisation or quantisation",
        )


def _all_nodes(model: Any) -> Iterator[Any]:
    """Every node in the file: of the graph, of functions, and of graphs inside of nodes."""
    waiting = [*model.graph.node, *(node for one in model.functions for node in one.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for graph in _graphs_in(node):
            waiting.extend(graph.node)


def _graphs_in(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _all_tensors(model: Any) -> Iterator[Any]:
    """Every tensor in the file: weights, and those in attributes of nodes."""
    yield from model.graph.initializer
    for node in _all_nodes(model):
        for graph in _graphs_in(node):
            yield from graph.initializer
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_versions(path: Path, model: Any) -> int:
    versions = {entry.domain: entry.version for entry in model.opset_import}
    opset = next((versions[name] for name in STANDARD if name in versions), None)
    if opset is None:
        raise PackError(f"{path} does not say which operators it uses (no opset).")
    if not OLDEST <= opset <= NEWEST:
        raise PackError(
            f"{path} uses opset {opset}; attar reads {OLDEST} to {NEWEST}.",
            fix="export it with another opset, such as 18",
        )
    return int(opset)


def _find_input(
    onnx: Any, path: Path, graph: Any, constants: Mapping[str, Array]
) -> tuple[str, tuple[int | None, ...]]:
    """Name and sizes of the one input that is not a weight."""
    inputs = [given for given in graph.input if given.name not in constants]
    if len(inputs) != 1:
        raise PackError(
            f"{path} takes {len(inputs)} inputs: {list_some([one.name for one in inputs])}.",
            fix="export a net that takes one batch of images",
        )
    (given,) = inputs
    tensor = given.type.tensor_type
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if kind not in _FLOATS:
        raise PackError(
            f"The input {given.name} of {path} is of type {kind.lower()}: images are floats.",
            fix="export the net without the conversion from whole numbers; --std 0.00392157 "
            "(1/255) stands for pixels from 0 to 255",
        )
    sizes = tuple(
        int(side.dim_value) if side.HasField("dim_value") and side.dim_value > 0 else None
        for side in tensor.shape.dim
    )
    return given.name, sizes


def _read_node(onnx: Any, number: int, node: Any) -> OnnxNode:
    attributes = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        attributes[attribute.name] = value
    return OnnxNode(
        number, node.op_type, node.name, tuple(node.input), tuple(node.output), attributes
    )


def fold_constants(
    graph: OnnxGraph, nodes: Sequence[OnnxNode]
) -> tuple[list[OnnxNode], dict[str, Array]]:
    """Compute what does not depend on the images.

    Args:
        graph: of the file.
        nodes: those of its nodes that matter.

    Returns:
        The nodes that are left, and all constants by name.

    Raises:
        PackError: if something cannot be computed.
    """
    known = set(graph.constants)
    folded, left = [], []
    for node in nodes:
        if all(not name or name in known for name in node.inputs):
            folded.append(node)
            known.update(node.outputs)
        else:
            left.append(node)
    wanted = {name for node in left for name in node.inputs} - set(graph.constants)
    results = [name for node in folded for name in node.outputs if name in wanted]
    if not results:
        return left, dict(graph.constants)
    places = {node.number - 1 for node in folded}
    part = [node for place, node in enumerate(graph.model.graph.node) if place in places]
    return left, {**graph.constants, **_compute(graph, part, results)}


def _compute(graph: OnnxGraph, nodes: Sequence[Any], results: Sequence[str]) -> dict[str, Array]:
    """Run nodes that need no images in onnxruntime."""
    import onnxruntime
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(graph.model)
    for field in ("node", "input", "output", "value_info"):
        model.graph.ClearField(field)
    model.graph.node.extend(nodes)
    for name in results:
        model.graph.output.add(name=name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        arrays = session.run(list(results), {})
    except Exception as error:  # onnxruntime has its own errors
        raise PackError(
            "What does not depend on the images cannot be computed by onnxruntime:",
            problems=[first_line(error)],
        ) from None
    return dict(zip(results, map(np.asarray, arrays), strict=True))
