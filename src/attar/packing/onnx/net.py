"""An ONNX graph as a module of torch, which the export of packed nets then follows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attar.errors import PackError
from attar.packing.export import first_line
from attar.packing.onnx.file import MOST_LISTED, Array, OnnxGraph, OnnxNode
from attar.packing.onnx.layout import ImageInput
from attar.packing.onnx.operators import OPERATORS
from attar.packing.onnx.outputs import LINEAR, Logits
from attar.packing.onnx.values import Call, Refused, Value


class OnnxNet(nn.Module):
    """Computes the logits of an ONNX graph.

    Args:
        graph: of the file.
        nodes: those that lead to the logits.
        constants: what they use beside each other's results.
        logits: where they end.
        images: what goes in.

    Raises:
        PackError: with every operator that a packed net does not have.
    """

    def __init__(
        self,
        graph: OnnxGraph,
        nodes: Sequence[OnnxNode],
        constants: Mapping[str, Array],
        logits: Logits,
        images: ImageInput,
    ) -> None:
        super().__init__()
        _check_operators(nodes)
        self._graph = graph
        self._nodes = tuple(nodes)
        self._constants = dict(constants)
        self._logits = logits
        self._images = images
        self._places: dict[str, str] = {}  # of a constant -> of its buffer
        used = {name for node in nodes for name in node.inputs}
        for name in sorted(used & set(constants)):
            array = constants[name]
            if array.dtype.kind in "fb":
                self._places[name] = f"c{len(self._places)}"
                tensor = torch.from_numpy(np.array(array))
                tensor = tensor if tensor.dtype is torch.bool else tensor.float()
                self.register_buffer(self._places[name], tensor)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, C, H, W)."""
        values: dict[str, Any] = {self._graph.input: self._images.arrange(images)}
        for node in self._nodes:
            if self._images.is_undone_by(node, self._graph.input):
                values[node.outputs[0]] = images
                continue
            given = [self._find(name, values) for name in node.inputs]
            call = Call(node, self._graph.opset, given, self._tensor)
            try:
                made: Any = OPERATORS[node.op](call)
            except Refused as reason:
                raise PackError(f"{node.title} {reason}.", fix=_FIX) from None
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                raise PackError(
                    f"{node.title} cannot be computed on {len(images)} images:",
                    problems=[first_line(error)],
                    fix="export the net for batches of any size, and check --sample-shape",
                ) from error
            results = made if _is_several(node) else [made]
            values |= zip(node.outputs, results, strict=False)
        result = values[self._logits.value]
        if not isinstance(result, Tensor):
            raise PackError("The net's result does not depend on the images.")
        if self._logits.ending == "pair":
            return result / 2
        return _two_classes(result) if self._logits.ending == "sigmoid" else result

    def _find(self, name: str, values: Mapping[str, Any]) -> Value:
        if not name:
            return None
        found: Value = values[name] if name in values else self._constants[name]
        return found

    def _tensor(self, name: str) -> Tensor:
        """A constant as a tensor."""
        if name in self._places:
            return self.get_buffer(self._places[name])
        return torch.from_numpy(np.array(self._constants[name])).float()


_FIX = "docs/foreign-models.md lists the operators and what to do about the others"


def _is_several(node: OnnxNode) -> bool:
    return node.op in ("Split", LINEAR)


def _two_classes(scores: Tensor) -> Tensor:
    """The logits of two classes whose softmax is the sigmoid of one score."""
    if scores.dim() != 2 or scores.shape[1] != 1:
        raise PackError(
            f"The net ends in a sigmoid over {scores.shape[-1]} numbers: each class is judged by "
            "itself, which no method expects.",
            fix="train it with a softmax, or export it without the sigmoid if one class is meant",
        )
    return scores * torch.tensor([[-0.5, 0.5]])


def _check_operators(nodes: Sequence[OnnxNode]) -> None:
    wrong = [node for node in nodes if node.op not in OPERATORS]
    if not wrong:
        return
    problems = [f"{node.title}: this operator is not supported" for node in wrong]
    if len(problems) > MOST_LISTED:
        rest = sorted({node.op for node in wrong[MOST_LISTED:]})
        problems = [
            *problems[:MOST_LISTED],
            f"and {len(wrong) - MOST_LISTED} more: {', '.join(rest)}",
        ]
    raise PackError(
        "The net has operators that a packed net does not have:", problems=problems, fix=_FIX
    )
