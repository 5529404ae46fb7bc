"""What an operator of an ONNX graph is given: images' values, constants, and sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from attar.packing.onnx.file import Array, OnnxNode

Sizes = list[Any]
"""Whole numbers that were computed from shapes; those of the batch are symbolic."""
Value = Tensor | Array | Sizes | None


class Refused(Exception):
    """A use of an operator that a packed net does not have, in words."""


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes:
        node: the node.
        opset: version of the standard operators.
        given: its inputs; None for one that was left out.
        as_tensor: a constant as a tensor that the net holds, by its name.
    """

    node: OnnxNode
    opset: int
    given: Sequence[Value]
    as_tensor: Callable[[str], Tensor]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return self.node.attributes.get(name, default)

    def has(self, place: int) -> bool:
        """Whether an input was given."""
        return place < len(self.given) and self.given[place] is not None

    def value(self, place: int = 0) -> Value:
        """An input as it is."""
        return self.given[place] if place < len(self.given) else None

    def tensor(self, place: int = 0) -> Tensor:
        """An input that takes part in the computation."""
        value = self.value(place)
        if isinstance(value, Tensor):
            return value
        if isinstance(value, np.ndarray):
            return self.as_tensor(self.node.inputs[place])
        raise Refused("computes with sizes as if they were values" if value else "lacks an input")

    def optional(self, place: int) -> Tensor | None:
        """An input that may be left out."""
        return self.tensor(place) if self.has(place) else None

    def constant(self, place: int) -> Array:
        """An input that must not depend on the images."""
        value = self.value(place)
        if not isinstance(value, np.ndarray):
            raise Refused(f"its input {place + 1} depends on the images; it must be constant")
        return value

    def number(self, place: int) -> float:
        """A constant of one number."""
        constant = self.constant(place)
        if constant.size != 1:
            raise Refused(f"its input {place + 1} has {constant.size} numbers in place of one")
        return float(constant.reshape(()))

    def sizes(self, place: int) -> Sizes:
        """An input that is a list of whole numbers."""
        value = self.value(place)
        if isinstance(value, list):
            return value
        return [int(number) for number in self.constant(place).reshape(-1)]

    def listed(self, name: str, place: int) -> Sizes | None:
        """Whole numbers that older versions have as an attribute and newer ones as an input."""
        if self.has(place):
            return self.sizes(place)
        value = self.attribute(name)
        return None if value is None else list(value)
