"""Accord's teacher: clients weighted by class and by image. docs/methods/accord.md derives it.

    p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c

    s_kc      share of client k in class c, from label counts: ``evidence_shares``
    gate_k    softmax over clients of -b score_k(x); the score says how unlike x is to the images
              that client k was trained on: ``FeatureDistance``, or ``BatchNormGap``
    t         temperature

The method ``accord`` distils this teacher, and a model folder of the rule "accord" is this teacher.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from attar.blocks.ensemble.hooks import batchnorms_of_maps
from attar.blocks.ensemble.rules import combine
from attar.blocks.ensemble.teachers import Teachers
from attar.core import Gate, ModelSpec, Part

STATISTICS_SHARPNESS = 0.25  # b of a gate from feature statistics
BATCHNORM_SHARPNESS = 1.0  # b of a gate from BatchNorm
TEMPERATURE = 1.5  # t
# evidence of a class, summed over clients, from which on its shares are used undiminished: about
# 100 images of anything else
ENOUGH_EVIDENCE = 10.0
_TINY = 1e-12


# --- class shares -----------------------------------------------------------------------------


def even_shares(known: Tensor) -> Tensor:
    """1 / (number of clients that know c) for each client that knows c, else 0.

    Args:
        known: (K, C), whether client k has class c.

    Returns:
        Shares (K, C); the column of a class that some client knows sums to 1.
    """
    return known.float() / known.sum(0).clamp(min=1)


def evidence(counts: Tensor) -> Tensor:
    """e_kc = sqrt(n_kc (1 - n_kc / n_k)): how well client k can tell class c from other classes.

    It is 0 for a client that has images of one class alone: its net gives this class to every
    image. What is learned of n images is precise to 1 / sqrt(n), hence the root.

    Args:
        counts: n_kc (K, C), images of each class at each client.

    Returns:
        e_kc (K, C).
    """
    total = counts.sum(1, keepdim=True).clamp(min=_TINY)
    return (counts * (1 - counts / total)).clamp(min=0).sqrt()


def reliability(counts: Tensor) -> Tensor:
    """b_c = P(c) + (1 - P(c)) min(1, sum_k e_kc / 10), a factor for the shares of class c.

    A client with hardly any images of other classes gives its class to every image, with
    certainty. Where no gate looks at the image, this answer carries no more information than the
    class frequency P(c), and must not outweigh the clients that tell classes apart.

    Args:
        counts: n_kc (K, C).

    Returns:
        b_c (C,); 1 for a class without images.
    """
    images = counts.sum(0)
    frequency = images / images.sum().clamp(min=_TINY)
    certainty = (evidence(counts).sum(0) / ENOUGH_EVIDENCE).clamp(max=1)
    return torch.where(images > 0, frequency + (1 - frequency) * certainty, 1.0)


def evidence_shares(counts: Tensor, known: Tensor, *, gated: bool) -> Tensor:
    """s_kc = e_kc / sum_j e_jc over the clients that know c, times b_c where there is no gate.

    A class without any evidence (all clients that have images of it have no others) is shared in
    proportion to sqrt(n_kc); a class without any images evenly.

    Args:
        counts: n_kc (K, C).
        known: (K, C), whether client k has class c.
        gated: whether a gate weights the clients for each image, so that b_c is not needed.

    Returns:
        Shares (K, C).
    """
    weights = torch.where(known, evidence(counts), 0.0)
    weights = torch.where(weights.sum(0) > 0, weights, torch.where(known, counts.sqrt(), 0.0))
    total = weights.sum(0)
    shares = torch.where(total > 0, weights / total.clamp(min=_TINY), even_shares(known))
    return shares if gated else shares * reliability(counts)


# --- scores: how unlike an image is to what a client was trained on -------------------------------


class FeatureDistance(nn.Module):
    """Scores from feature statistics: the z-score of an image's distance to the class means.

    A client that sent no statistics gets the mean score of the others.
    """

    missing: Tensor  # (K, 1) bool, clients without statistics

    def __init__(self, teachers: Teachers, statistics: Sequence[Part | None]) -> None:
        super().__init__()
        missing = torch.tensor([[part is None] for part in statistics])
        self.register_buffer("missing", missing, persistent=False)
        self.wanted = [any(statistics[row] is not None for row in rows) for rows in teachers.rows]
        self.stacks = nn.ModuleList()
        self._groups: list[int] = []  # of teachers, for each stack
        for group, rows in enumerate(teachers.rows):
            alike: dict[tuple[ModelSpec, int], list[int]] = defaultdict(list)
            for place, row in enumerate(rows):
                if (part := statistics[row]) is not None:
                    alike[(part.spec, len(part.classes))].append(place)
            for places in alike.values():
                self.stacks.append(
                    _StatisticsStack(places, [rows[place] for place in places], statistics)
                )
                self._groups.append(group)

    def forward(self, teachers: Teachers, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (K, B, C) and scores (K, B) of images (B, C, H, W), in one pass."""
        logits, features = teachers.measure_groups(images, "features", self.wanted)
        scores = images.new_zeros(logits.shape[:2], dtype=torch.float32)
        for stack, group in zip(self.stacks, self._groups, strict=True):
            features_of_group = features[group]
            assert features_of_group is not None
            scores = scores.index_copy(0, stack.get_buffer("rows"), stack(features_of_group))
        mean_score = scores.sum(0) / (~self.missing).sum()
        return logits, torch.where(self.missing, mean_score, scores)


class BatchNormGap(nn.Module):
    """Scores from BatchNorm: mean over layers of log mean over channels |var(x) - v| / v.

    v is the running variance; with b = 1 the gate is the inverse of this gap. A client without
    BatchNorm over feature maps gets the mean score of the others.
    """

    missing: Tensor  # (K, 1) bool, clients without BatchNorm

    def __init__(self, teachers: Teachers) -> None:
        super().__init__()
        self.wanted = teachers.groups_with_batchnorm_maps()
        missing = torch.ones(len(teachers.known), 1, dtype=torch.bool)
        for rows, wanted in zip(teachers.rows, self.wanted, strict=True):
            missing[list(rows)] = not wanted
        self.register_buffer("missing", missing, persistent=False)

    def forward(self, teachers: Teachers, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (K, B, C) and scores (K, B) of images (B, C, H, W), in one pass."""
        logits, gaps = teachers.measure_groups(images, "variance gap", self.wanted)
        each = [
            images.new_zeros(len(rows), len(images)) if gap is None else gap
            for rows, gap in zip(teachers.rows, gaps, strict=True)
        ]
        scores = torch.cat(each)[teachers.order]
        mean_score = scores.sum(0) / (~self.missing).sum()
        return logits, torch.where(self.missing, mean_score, scores)


class _StatisticsStack(nn.Module):
    """Statistics of one kind of some members of a group: features (k, B, F) -> scores (m, B)."""

    def __init__(
        self, places: Sequence[int], rows: Sequence[int], statistics: Sequence[Part | None]
    ) -> None:
        super().__init__()
        nets = [part.build() for row in rows if (part := statistics[row]) is not None]
        self.net = nets[0]
        self._names = []
        for name, _ in self.net.named_buffers():
            if name in self.net.state_dict():  # other buffers follow from the architecture
                each = torch.stack([net.get_buffer(name) for net in nets])
                self.register_buffer(f"stack_{name}", each, persistent=False)
                self._names.append(name)
        self.register_buffer("places", torch.tensor(places), persistent=False)
        self.register_buffer("rows", torch.tensor(rows), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        states = {name: self.get_buffer(f"stack_{name}") for name in self._names}

        def score(state: dict[str, Tensor], features: Tensor) -> Tensor:
            z: Tensor = functional_call(self.net, state, (features,))[1]
            return z

        scores: Tensor = vmap(score)(states, features[self.get_buffer("places")])
        return scores


# --- the gate, and the teacher --------------------------------------------------------------------


def choose_gate(
    statistics: Sequence[Part | None],
    *,
    statistics_sharpness: float = STATISTICS_SHARPNESS,
    batchnorm_sharpness: float = BATCHNORM_SHARPNESS,
    temperature: float = TEMPERATURE,
) -> Gate:
    """The gate from feature statistics where a client sent some, else the one from BatchNorm.

    Args:
        statistics: of each client, None for a client that sent none.
        statistics_sharpness: b of a gate from statistics; 0: statistics are not used.
        batchnorm_sharpness: b of a gate from BatchNorm; 0: BatchNorm is not used.
        temperature: t, of the clients' probabilities.
    """
    if statistics_sharpness and any(part is not None for part in statistics):
        return Gate(tuple(statistics), statistics_sharpness, temperature)
    return Gate((), batchnorm_sharpness, temperature)


def has_effect(gate: Gate, members: Sequence[Part]) -> bool:
    """Whether ``gate`` distinguishes between these members: there are scores, and b > 0."""
    if gate.sharpness == 0 or any(part is not None for part in gate.statistics):
        return gate.sharpness > 0
    kinds = {(part.spec, part.preprocess.input_shape, len(part.classes)) for part in members}
    return any(batchnorms_of_maps(spec.skeleton(shape, classes)) for spec, shape, classes in kinds)


def gate_weights(scores: Tensor, sharpness: float) -> Tensor:
    """gate_k(x) = softmax over clients of -b score_k(x): (K, B) -> (K, B)."""
    return (-sharpness * scores).softmax(0)


def gated_probabilities(
    logits: Tensor, scores: Tensor, known: Tensor, shares: Tensor, gate: Gate
) -> Tensor:
    """log p(c|x), p proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c.

    Args:
        logits: f_k(x) (K, B, C).
        scores: (K, B).
        known: (K, C), whether client k has class c.
        shares: s_kc (K, C).
        gate: its sharpness is b, its temperature t.

    Returns:
        (B, C).
    """
    weights = shares * gate_weights(scores, gate.sharpness).T[:, :, None]  # (B, K, C)
    return combine("accord", logits / gate.temperature, known, weights)


class GatedTeachers(nn.Module):
    """Accord's teacher, in training and as a deployed model: images -> log p(c|x)."""

    def __init__(self, teachers: Teachers, gate: Gate) -> None:
        super().__init__()
        self.teachers = teachers
        self.gate = gate
        self.scorer: FeatureDistance | BatchNormGap | None = None
        if gate.sharpness > 0:
            if any(part is not None for part in gate.statistics):
                self.scorer = FeatureDistance(teachers, gate.statistics)
            elif any(teachers.groups_with_batchnorm_maps()):
                self.scorer = BatchNormGap(teachers)

    def forward(self, images: Tensor, shares: Tensor) -> Tensor:
        """log p(c|x) (B, C) of images (B, C, H, W); ``shares`` s_kc (K, C).

        Without scores all members have the same gate.
        """
        known = self.teachers.known
        if self.scorer is None:
            logits = self.teachers(images) / self.gate.temperature
            return combine("accord", logits, known, shares)
        logits, scores = self.scorer(self.teachers, images)
        return gated_probabilities(logits, scores, known, shares, self.gate)
