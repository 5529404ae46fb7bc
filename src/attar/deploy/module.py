"""A deployable model as plain layers with its preprocessing inside: what is exported.

It computes what ``Classifier`` computes, for images of one shape. It has no stacked calls and no
antialiased resizing, which other runtimes lack: to resize is to multiply by two matrices.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.blocks.ensemble import (
    Hook,
    attach_hooks,
    batchnorms_of_maps,
    combine,
    even_shares,
    gate_of,
    gated_probabilities,
    has_effect,
)
from attar.core import Deployable, Gate, Mixture, Part
from attar.nets import Preprocess, Shape


class Deployed(nn.Module):
    """Images (B, *image_shape) in [0, 1] -> logits and probabilities, each (B, classes).

    The logits are those of ``Classifier``, the probabilities their softmax.

    Args:
        model: a net, or a mixture of nets.
        image_shape: of every image, (C, H, W).
    """

    def __init__(self, model: Deployable, image_shape: Shape) -> None:
        super().__init__()
        if isinstance(model, Part):
            self.inner: nn.Module = DeployedNet(model, image_shape)
        else:
            self.inner = DeployedMixture(model, image_shape)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.inner(images)
        return logits, logits.softmax(-1)


class DeployedNet(nn.Module):
    """One net: images (B, *image_shape) -> logits (B, its classes).

    Args:
        part: the net.
        image_shape: of every image, (C, H, W).
    """

    def __init__(self, part: Part, image_shape: Shape) -> None:
        super().__init__()
        self.prepare = FixedPreprocess(part.preprocess, image_shape)
        self.net = part.build()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(self.prepare(images))
        return logits

    def measure(self, images: Tensor, hook: Hook) -> tuple[Tensor, Tensor]:
        """Logits, and what a hook measures, in one pass."""
        with attach_hooks(self.net, (hook,)) as terms:
            logits = self(images)
        return logits, sum(terms[hook][1:], terms[hook][0])


class FixedPreprocess(nn.Module):
    """``Preprocess`` for images of one shape.

    Args:
        preprocess: of a net.
        image_shape: of every image, (C, H, W).
    """

    def __init__(self, preprocess: Preprocess, image_shape: Shape) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.channels = preprocess.input_shape[0]
        height, width = preprocess.input_shape[1:]
        self.resizes = (height, width) != tuple(image_shape[1:])
        if self.resizes:
            shrinks = image_shape[1] > height or image_shape[2] > width
            rows = _resizing_matrix(image_shape[1], height, shrinks)
            columns = _resizing_matrix(image_shape[2], width, shrinks).T.contiguous()
            self.register_buffer("rows", rows)
            self.register_buffer("columns", columns)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] != self.channels:
            images = images.mean(1, keepdim=True).expand(-1, self.channels, -1, -1)
        if self.resizes:
            images = self.get_buffer("rows") @ images @ self.get_buffer("columns")
        return self.preprocess(images)  # of the right shape: it only normalises


class DeployedMixture(nn.Module):
    """A mixture: images (B, *image_shape) -> logits (B, classes).

    Args:
        mixture: the nets and the rule that combines them.
        image_shape: of every image, (C, H, W).
    """

    known: Tensor
    shares: Tensor | None

    def __init__(self, mixture: Mixture, image_shape: Shape) -> None:
        super().__init__()
        self.rule = mixture.rule
        self.num_classes = len(mixture.classes)
        self.members = nn.ModuleList(DeployedNet(part, image_shape) for part in mixture.members)
        column_of = {name: column for column, name in enumerate(mixture.classes)}
        known = torch.zeros(len(mixture.members), self.num_classes, dtype=torch.bool)
        for number, part in enumerate(mixture.members):
            columns = torch.tensor([column_of[name] for name in part.classes])
            known[number, columns] = True
            self.register_buffer(f"columns{number}", columns)
        self.register_buffer("known", known)
        gate = gate_of(mixture)
        self.gate = gate
        shares = mixture.weights
        if gate is not None and shares is None:
            shares = even_shares(known)
        self.register_buffer("shares", shares)
        self.score = None if gate is None else _choose_score(mixture, gate)

    def forward(self, images: Tensor) -> Tensor:
        if self.gate is None:
            return combine(self.rule, self._logits(images), self.known, self.shares)
        assert self.shares is not None
        if self.score is None:
            logits = self._logits(images) / self.gate.temperature
            return combine(self.rule, logits, self.known, self.shares)
        each = [self.score(number, member, images) for number, member in enumerate(self.members)]
        logits = torch.stack([self._place(number, one) for number, (one, _) in enumerate(each)])
        given = [score for _, score in each if score is not None]
        mean = torch.stack(given).mean(0)
        scores = torch.stack([mean if score is None else score for _, score in each])
        return gated_probabilities(logits, scores, self.known, self.shares, self.gate)

    def _logits(self, images: Tensor) -> Tensor:
        """Logits (K, B, classes)."""
        return torch.stack(
            [self._place(number, member(images)) for number, member in enumerate(self.members)]
        )

    def _place(self, number: int, logits: Tensor) -> Tensor:
        """The logits of a member over the classes of the mixture, 0 where it has none."""
        columns = self.get_buffer(f"columns{number}")
        placed = logits.new_zeros(logits.shape[0], self.num_classes)
        return placed.index_copy(1, columns, logits)


class StatisticsScore(nn.Module):
    """A member's score from its feature statistics; None for a member without.

    Args:
        gate: with the statistics of the members.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.owned = [part is not None for part in gate.statistics]
        self.nets = nn.ModuleList(
            nn.Identity() if part is None else part.build() for part in gate.statistics
        )

    def forward(
        self, number: int, member: DeployedNet, images: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and score (B,) of one member."""
        if not self.owned[number]:
            return member(images), None
        logits, features = member.measure(images, "features")
        return logits, self.nets[number](features)[1]


class BatchNormScore(nn.Module):
    """A member's score from its BatchNorm layers; None for a member without."""

    def forward(
        self, number: int, member: DeployedNet, images: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and score (B,) of one member."""
        if not batchnorms_of_maps(member.net):
            return member(images), None
        return member.measure(images, "variance gap")


def _choose_score(mixture: Mixture, gate: Gate) -> nn.Module | None:
    """As in ``GatedTeachers``; None where the gate does not distinguish the members."""
    if not has_effect(gate, mixture.members):
        return None
    if any(part is not None for part in gate.statistics):
        return StatisticsScore(gate)
    return BatchNormScore()


def _resizing_matrix(length: int, new_length: int, antialias: bool) -> Tensor:
    """(new_length, length): what ``to_shape`` does along one axis, which is linear."""
    lines = torch.eye(length)[None, None]
    resized: Tensor = F.interpolate(
        lines, (new_length, length), mode="bilinear", align_corners=False, antialias=antialias
    )
    return resized[0, 0]
