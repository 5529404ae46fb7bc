"""How familiar an image looks to each client: z-scores of its features, and the gate that they
make.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from attar.blocks.ensemble.hooks import over_maps
from attar.blocks.ensemble.teachers import Teachers
from attar.core import ModelSpec, Part


def familiarity_gate(scores: Tensor, sharpness: float) -> Tensor:
    """gate_k(x) = softmax over clients of -b z_k(x): (K, B) -> (K, B); b = 0 makes no difference
    between them.
    """
    return (-sharpness * scores).softmax(0)


class Familiarity(nn.Module):
    """Teachers with the statistics that they came with: images -> logits (K, B, C) and z-scores
    (K, B), in one pass.

    A client that sent none is as familiar with an image as the others are on average.
    """

    silent: Tensor  # (K, 1) bool: who sent no statistics

    def __init__(self, teachers: Teachers, statistics: Sequence[Part | None]) -> None:
        super().__init__()
        self.teachers = [teachers]  # in a list: they belong to somebody else
        self.register_buffer(
            "silent", torch.tensor([[part is None] for part in statistics]), persistent=False
        )
        self.wanted = [any(statistics[row] is not None for row in rows) for rows in teachers.rows]
        self.stacks = nn.ModuleList()
        self._groups: list[int] = []  # of teachers, for each stack
        for number, rows in enumerate(teachers.rows):
            alike: dict[tuple[ModelSpec, int], list[int]] = defaultdict(list)
            for place, row in enumerate(rows):
                if (part := statistics[row]) is not None:
                    alike[(part.spec, len(part.classes))].append(place)
            for places in alike.values():
                self.stacks.append(_Stack(places, [rows[place] for place in places], statistics))
                self._groups.append(number)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = self.teachers[0].probed_where(self.wanted, images, "features")
        scores = images.new_zeros(logits.shape[:2], dtype=torch.float32)
        for stack, group in zip(self.stacks, self._groups, strict=True):
            found = features[group]
            assert found is not None
            scores = scores.index_copy(0, stack.get_buffer("rows"), stack(found))
        others = scores.sum(0) / (~self.silent).sum()
        return logits, torch.where(self.silent, others, scores)


class Spread(nn.Module):
    """The same where nobody sent statistics: how unlike an image's feature maps spread to what
    BatchNorm remembers of the training.

    The score is the mean over layers of log(mean over channels of |var(x) - running var| /
    running var): with b = 1 the gate is the inverse of that gap. A client without BatchNorm is
    as familiar with an image as the others are on average.
    """

    silent: Tensor  # (K, 1) bool: who has no BatchNorm

    def __init__(self, teachers: Teachers) -> None:
        super().__init__()
        self.teachers = [teachers]  # in a list: they belong to somebody else
        self.wanted = teachers.spread_known()
        silent = torch.ones(len(teachers.known), 1, dtype=torch.bool)
        for rows, there in zip(teachers.rows, self.wanted, strict=True):
            silent[list(rows)] = not there
        self.register_buffer("silent", silent, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        teachers = self.teachers[0]
        logits, found = teachers.probed_where(self.wanted, images, "spread")
        each = [
            images.new_zeros(len(rows), len(images)) if one is None else one
            for rows, one in zip(teachers.rows, found, strict=True)
        ]
        scores = torch.cat(each)[teachers.order]
        return logits, torch.where(self.silent, scores.sum(0) / (~self.silent).sum(), scores)


def gate_known(members: Sequence[Part], statistics: Sequence[Part | None]) -> bool:
    """Whether ``gate_from`` would find anything in these nets."""
    if any(part is not None for part in statistics):
        return True
    kinds = {(part.spec, part.preprocess.input_shape, len(part.classes)) for part in members}
    return any(over_maps(spec.skeleton(shape, classes)) for spec, shape, classes in kinds)


def gate_from(teachers: Teachers, statistics: Sequence[Part | None]) -> Familiarity | Spread | None:
    """What tells to whom an image looks familiar: the statistics that were sent, or else
    BatchNorm, or nothing.
    """
    if any(part is not None for part in statistics):
        return Familiarity(teachers, statistics)
    return Spread(teachers) if any(teachers.spread_known()) else None


class _Stack(nn.Module):
    """Statistics of one kind, of some members of one group of teachers: features (k, B, F) ->
    z-scores of these members.
    """

    def __init__(
        self, places: Sequence[int], rows: Sequence[int], statistics: Sequence[Part | None]
    ) -> None:
        super().__init__()
        nets = [part.build() for row in rows if (part := statistics[row]) is not None]
        self.net = nets[0]
        self._names = []
        for name, _ in self.net.named_buffers():
            if (
                name in self.net.state_dict()
            ):  # what passes with the architecture is the same for all
                each = torch.stack([net.get_buffer(name) for net in nets])
                self.register_buffer(f"stack_{name}", each, persistent=False)
                self._names.append(name)
        self.register_buffer("places", torch.tensor(places), persistent=False)
        self.register_buffer("rows", torch.tensor(rows), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        states = {name: self.get_buffer(f"stack_{name}") for name in self._names}

        def one(state: dict[str, Tensor], own: Tensor) -> Tensor:
            score: Tensor = functional_call(self.net, state, (own,))[1]
            return score

        scores: Tensor = vmap(one)(states, features[self.get_buffer("places")])
        return scores
