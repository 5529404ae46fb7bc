"""Sums of several clients, as one: integers, so neither order nor grouping matters.

A ``Totals`` has the numbers of a ``FeatureSums`` (``nets/feature_sums.py``) over more classes
and more clients. Clients are added one at a time, in place: memory holds one client's sums and
the total, however many clients there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import NeedsError
from attar.nets.feature_sums import HALVES
from attar.nets.registry import find
from attar.settings import Scalar

SUMS = "sums"  # the part of an upload
LARGEST = 2**63 - 1


@dataclass
class Totals:
    """Sums of clients that have one backbone and one grid.

    Attributes:
        classes: names, in the order of the first axis of the tensors below.
        counts: (2, C) int64, images of each half and class.
        sums: (2, C, D) int64, in units of 2^-bits.
        squares: (2, 1 or C, D (D + 1) / 2) int64, the lower triangle row by row, in the same units.
        bits: of the grid.
        epsilon: the largest that a client declares for its noise; 0 if none has added noise.
        delta: the largest of these clients.
        largest: what no number above can exceed in size, whatever was added so far.
    """

    classes: tuple[str, ...]
    counts: Tensor
    sums: Tensor
    squares: Tensor
    bits: int
    epsilon: float = 0.0
    delta: float = 0.0
    largest: int = 0

    @classmethod
    def empty(cls, classes: Sequence[str], width: int, *, per_class: bool, bits: int) -> "Totals":
        """No image yet.

        Args:
            classes: names.
            width: D.
            per_class: whether there is a matrix of squares for each class.
            bits: of the grid.
        """
        matrices = len(classes) if per_class else 1
        shapes = (
            (HALVES, len(classes)),
            (HALVES, len(classes), width),
            (HALVES, matrices, width * (width + 1) // 2),
        )
        counts, sums, squares = (torch.zeros(shape, dtype=torch.int64) for shape in shapes)
        return cls(tuple(classes), counts, sums, squares, bits)

    @property
    def width(self) -> int:
        """D."""
        return self.sums.shape[-1]

    @property
    def per_class(self) -> bool:
        """Whether there is a matrix of squares for each class."""
        return self.squares.shape[1] > 1 or len(self.classes) == 1

    @property
    def noisy(self) -> bool:
        """Whether some client has added noise."""
        return self.epsilon > 0

    def add(self, part: Part, client: str) -> None:
        """Add the sums of a client in place.

        Args:
            part: a ``feature-sums`` part with this grid. Its classes are some of these classes; a
                client with squares for each class may join where there is one matrix.
            client: its name, for errors.

        Raises:
            NeedsError: if a number could leave 64 bits; nothing was added then.
        """
        self._move(part, client, 1)

    def remove(self, part: Part, client: str) -> None:
        """Take the sums of a client out again; the inverse of ``add``, bit for bit."""
        self._move(part, client, -1)

    def copy(self) -> "Totals":
        """The same numbers in tensors of their own."""
        return Totals(
            self.classes,
            self.counts.clone(),
            self.sums.clone(),
            self.squares.clone(),
            self.bits,
            self.epsilon,
            self.delta,
            self.largest,
        )

    def _move(self, part: Part, client: str, sign: int) -> None:
        columns = torch.tensor([self.classes.index(name) for name in part.classes])
        counts, sums, squares = (part.state[name] for name in ("counts", "sums", "squares"))
        matrices = squares.shape[1]
        if not self.per_class and matrices > 1:
            squares = squares.sum(1, keepdim=True)
        largest = max(_largest(values) for values in (counts, sums, squares)) * matrices
        if self.largest + largest > LARGEST:
            raise NeedsError(
                f"The sums of {client} cannot be added: a number could leave 64 bits.",
                fix=f"let the clients use a coarser grid than 2^-{self.bits}, or a clip",
            )
        self.largest += largest
        options = options_of(part)
        self.epsilon = max(self.epsilon, float(options["epsilon"]))
        self.delta = max(self.delta, float(options["delta"]))
        self.counts.index_add_(1, columns, counts, alpha=sign)
        self.sums.index_add_(1, columns, sums, alpha=sign)
        if self.squares.shape[1] > 1:
            self.squares.index_add_(1, columns, squares, alpha=sign)
        else:
            self.squares.add_(squares, alpha=sign)

    def as_part(self, like: ModelSpec, preprocess: Preprocess) -> Part:
        """The same numbers as the sums of one client, to be kept, sent or added elsewhere.

        Args:
            like: spec of a client's sums; grid, backbone and clip are taken from it.
            preprocess: of the backbone.
        """
        options = {
            **dict(like.options),
            "per_class": self.squares.shape[1] > 1,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }
        spec = ModelSpec.of(like.arch, options)
        state = {"counts": self.counts, "sums": self.sums, "squares": self.squares}
        return Part(spec, state, self.classes, preprocess)


def add_clients(named: Mapping[str, Part], classes: Sequence[str]) -> Totals:
    """The sums of clients with one fingerprint.

    Squares are kept for each class only if every client sent them so.

    Args:
        named: the parts by client.
        classes: in the order that the total is to have; those that no client names are left out.
    """
    parts = list(named.values())
    known = {name for part in parts for name in part.classes}
    per_class = all(bool(options_of(part)["per_class"]) for part in parts)
    options = options_of(parts[0])
    totals = Totals.empty(
        [name for name in classes if name in known],
        int(options["dimensions"] or options["features"]),
        per_class=per_class,
        bits=int(options["bits"]),
    )
    for client, part in named.items():
        totals.add(part, client)
    return totals


def options_of(part: Part) -> dict[str, Scalar]:
    """All options of a ``sums`` part, those that have their default, too."""
    parameters = find(part.spec.arch).options
    defaults = {name: option.default for name, option in parameters.items()}
    return {**defaults, **dict(part.spec.options)}


def _largest(values: Tensor) -> int:
    if not values.numel():
        return 0
    low, high = values.aminmax()
    return max(abs(int(low)), abs(int(high)))
