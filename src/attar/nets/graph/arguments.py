"""The arguments of a packed net's operators, read strictly from plain JSON before torch sees them.

Whole numbers are within bounds, references point backwards only, and words come from a list. A
``ValueError`` says what was expected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MAX_RANK = 8
MAX_LENGTH = 2**30  # of an axis or a product of sizes, for one image
MAX_WINDOW = 1024  # kernels, strides, dilations, paddings
MAX_LIST = 65_536  # entries of a list
MAX_NUMBER = 1e30


@dataclass(frozen=True)
class At:
    """The value of an earlier node.

    Attributes:
        node: its number; 0 is the batch of images.
    """

    node: int


@dataclass(frozen=True)
class Weight:
    """One of the tensors that travel beside the graph.

    Attributes:
        number: in the list of weights.
    """

    number: int


@dataclass(frozen=True)
class Batch:
    """A size that is proportional to the number of images.

    Attributes:
        times: its factor.
    """

    times: int


@dataclass(frozen=True)
class Scope:
    """What a node may refer to.

    Attributes:
        nodes: how many nodes come before it, with the images.
        weights: the data type of each weight.
    """

    nodes: int
    weights: Sequence[torch.dtype]


class Kind(Protocol):
    """One kind of argument."""

    def read(self, value: object, scope: Scope) -> Any:
        """Read an argument.

        Args:
            value: plain JSON from an untrusted sender.
            scope: what it may refer to.

        Returns:
            The checked value.

        Raises:
            ValueError: saying what was expected, for example ``"true or false"``.
        """


@dataclass(frozen=True)
class Value:
    """A reference to a node or to a float32 weight.

    Attributes:
        number: whether a number may stand in its place.
    """

    number: bool = False

    def read(self, value: object, scope: Scope) -> Any:
        if self.number and not isinstance(value, dict):
            return Number().read(value, scope)
        reference = _reference(value, scope)
        if isinstance(reference, Weight) and scope.weights[reference.number] is not torch.float32:
            raise ValueError("a weight of float32")
        return reference


@dataclass(frozen=True)
class OwnWeight:
    """A reference to a weight.

    Attributes:
        dtype: that the weight must have.
    """

    dtype: torch.dtype = torch.float32

    def read(self, value: object, scope: Scope) -> Weight:
        reference = _reference(value, scope)
        if not isinstance(reference, Weight) or scope.weights[reference.number] is not self.dtype:
            raise ValueError(f"a weight of {str(self.dtype).removeprefix('torch.')}")
        return reference


@dataclass(frozen=True)
class Values:
    """A list of references to nodes and float32 weights."""

    def read(self, value: object, scope: Scope) -> tuple[Any, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= 1024:
            raise ValueError("a list of 1 to 1024 references")
        return tuple(Value().read(item, scope) for item in value)


@dataclass(frozen=True)
class Whole:
    """A whole number.

    Attributes:
        low: the least.
        high: the most.
    """

    low: int
    high: int

    def read(self, value: object, scope: Scope) -> int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not self.low <= value <= self.high:  # type: ignore[operator]
            raise ValueError(f"a whole number from {self.low} to {self.high}")
        return value  # type: ignore[return-value]


@dataclass(frozen=True)
class Wholes:
    """A list of whole numbers.

    Attributes:
        low: the least of each.
        high: the most of each.
        least: how many at least.
        most: how many at most.
    """

    low: int
    high: int
    least: int
    most: int

    def read(self, value: object, scope: Scope) -> tuple[int, ...]:
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            many = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            raise ValueError(f"a list of {many} whole numbers")
        return tuple(Whole(self.low, self.high).read(item, scope) for item in value)


@dataclass(frozen=True)
class Sizes:
    """A shape: whole numbers from 1, or multiples of the batch."""

    def read(self, value: object, scope: Scope) -> tuple[int | Batch, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_RANK:
            raise ValueError(f"a list of 1 to {MAX_RANK} sizes")
        return tuple(self._size(item, scope) for item in value)

    def _size(self, value: object, scope: Scope) -> int | Batch:
        whole = Whole(1, MAX_LENGTH)
        if isinstance(value, dict):
            if set(value) != {"batch"}:
                raise ValueError('sizes as whole numbers or {"batch": times}')
            return Batch(whole.read(value["batch"], scope))
        return whole.read(value, scope)


@dataclass(frozen=True)
class Number:
    """A number.

    Attributes:
        low: the least.
        high: the most.
    """

    low: float = -MAX_NUMBER
    high: float = MAX_NUMBER

    def read(self, value: object, scope: Scope) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # The comparison is false for NaN and infinities.
        if not number or not self.low <= value <= self.high:  # type: ignore[operator]
            raise ValueError(f"a number from {self.low:g} to {self.high:g}")
        return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def read(self, value: object, scope: Scope) -> bool:
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value


@dataclass(frozen=True)
class Choice:
    """A word from a list.

    Attributes:
        words: the list.
    """

    words: tuple[str, ...]

    def read(self, value: object, scope: Scope) -> str:
        for word in self.words:  # returns the word from this list, not the file's
            if isinstance(value, str) and value == word:
                return word
        raise ValueError(f"one of {', '.join(self.words)}")


@dataclass(frozen=True)
class Maybe:
    """An argument that may be left out.

    Attributes:
        kind: what it is otherwise.
    """

    kind: Kind

    def read(self, value: object, scope: Scope) -> Any:
        return self.kind.read(value, scope)


def _reference(value: object, scope: Scope) -> At | Weight:
    if isinstance(value, dict) and len(value) == 1:
        ((key, number),) = value.items()
        whole = isinstance(number, int) and not isinstance(number, bool)
        if key == "node" and whole:
            if not 0 <= number < scope.nodes:
                raise ValueError(f"an earlier node, 0 to {scope.nodes - 1}")
            return At(number)
        if key == "weight" and whole:
            if not 0 <= number < len(scope.weights):
                raise ValueError(f"a weight that there is, of {len(scope.weights)}")
            return Weight(number)
    raise ValueError('{"node": number} or {"weight": number}')
