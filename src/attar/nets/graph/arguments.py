"""What an argument of a packed net's operator may be: each kind reads it strictly, from plain
JSON, before torch sees it.

Whole numbers within bounds, references backwards only, words from a list of ours; a ValueError
says what was expected.
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
    """The value of an earlier node; 0 is the batch of images."""

    node: int


@dataclass(frozen=True)
class Weight:
    """One of the tensors that travel beside the graph."""

    number: int


@dataclass(frozen=True)
class Batch:
    """So many times the number of images in the batch."""

    times: int


@dataclass(frozen=True)
class Scope:
    """What a node may refer to: the nodes before it, and the weights by their types."""

    nodes: int
    weights: Sequence[torch.dtype]


class Kind(Protocol):
    """One kind of argument: plain JSON -> a checked value, or a ValueError that says what was
    expected.
    """

    def read(self, given: object, scope: Scope) -> Any: ...


@dataclass(frozen=True)
class Value:
    """A node, or a weight of float32; a number, too, where that is said."""

    number: bool = False

    def read(self, given: object, scope: Scope) -> Any:
        if self.number and not isinstance(given, dict):
            return Number().read(given, scope)
        found = _reference(given, scope)
        if isinstance(found, Weight) and scope.weights[found.number] is not torch.float32:
            raise ValueError("a weight of float32")
        return found


@dataclass(frozen=True)
class OwnWeight:
    """A weight of one type, and nothing else."""

    dtype: torch.dtype = torch.float32

    def read(self, given: object, scope: Scope) -> Weight:
        found = _reference(given, scope)
        if not isinstance(found, Weight) or scope.weights[found.number] is not self.dtype:
            raise ValueError(f"a weight of {str(self.dtype).removeprefix('torch.')}")
        return found


@dataclass(frozen=True)
class Values:
    """A list of nodes and weights."""

    def read(self, given: object, scope: Scope) -> tuple[Any, ...]:
        if not isinstance(given, list) or not 1 <= len(given) <= 1024:
            raise ValueError("a list of 1 to 1024 references")
        return tuple(Value().read(item, scope) for item in given)


@dataclass(frozen=True)
class Whole:
    low: int
    high: int

    def read(self, given: object, scope: Scope) -> int:
        if (
            not isinstance(given, int)
            or isinstance(given, bool)
            or not self.low <= given <= self.high
        ):
            raise ValueError(f"a whole number from {self.low} to {self.high}")
        return given


@dataclass(frozen=True)
class Wholes:
    """A list of ``least`` to ``most`` whole numbers."""

    low: int
    high: int
    least: int
    most: int

    def read(self, given: object, scope: Scope) -> tuple[int, ...]:
        if not isinstance(given, list) or not self.least <= len(given) <= self.most:
            many = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            raise ValueError(f"a list of {many} whole numbers")
        return tuple(Whole(self.low, self.high).read(item, scope) for item in given)


@dataclass(frozen=True)
class Sizes:
    """A shape: whole numbers from 1, or multiples of the batch."""

    def read(self, given: object, scope: Scope) -> tuple[int | Batch, ...]:
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_RANK:
            raise ValueError(f"a list of 1 to {MAX_RANK} sizes")
        return tuple(self._size(item, scope) for item in given)

    def _size(self, given: object, scope: Scope) -> int | Batch:
        whole = Whole(1, MAX_LENGTH)
        if isinstance(given, dict):
            if set(given) != {"batch"}:
                raise ValueError('sizes as whole numbers or {"batch": times}')
            return Batch(whole.read(given["batch"], scope))
        return whole.read(given, scope)


@dataclass(frozen=True)
class Number:
    low: float = -MAX_NUMBER
    high: float = MAX_NUMBER

    def read(self, given: object, scope: Scope) -> float:
        known = isinstance(given, int | float) and not isinstance(given, bool)
        if not known or not self.low <= given <= self.high:  # type: ignore[operator]  # false for NaN and infinities
            raise ValueError(f"a number from {self.low:g} to {self.high:g}")
        return float(given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Flag:
    def read(self, given: object, scope: Scope) -> bool:
        if not isinstance(given, bool):
            raise ValueError("true or false")
        return given


@dataclass(frozen=True)
class Choice:
    words: tuple[str, ...]

    def read(self, given: object, scope: Scope) -> str:
        for word in self.words:  # what is used is our own word, not the file's
            if isinstance(given, str) and given == word:
                return word
        raise ValueError(f"one of {', '.join(self.words)}")


@dataclass(frozen=True)
class Maybe:
    """An argument that may be left out."""

    kind: Kind

    def read(self, given: object, scope: Scope) -> Any:
        return self.kind.read(given, scope)


def _reference(given: object, scope: Scope) -> At | Weight:
    if isinstance(given, dict) and len(given) == 1:
        ((key, number),) = given.items()
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
