"""FisherMix: a cosine head, trained on features sampled in the Fisher subspace.

Paper: F. Turazza, M. Picone and M. Mamei, The Gaussian-Head OFL Family: One-Shot Federated
Learning from Client Global Statistics, ICLR 2026 (GH-OFL).

    S_w = S(a), S_b = sum_c pi_c (mu_c - mu)(mu_c - mu)^T
    V:  S_w^-1/2 times the first k eigenvectors of S_w^-1/2 S_b S_w^-1/2, of which k have a share
        ``energy`` of the sum of the eigenvalues
    z = V^T mu_c + tau e, e ~ N(0, V^T S V), ``samples`` of each class
    logit_c(z) = s (cos(z, w_c) - m [c is the label]): cross entropy, AdamW

| symbol | here |
|---|---|
| mu_c, S, pi_c | ``Moments.means``, ``.within`` and shares of counts, of all clients |
| a, k | ``shrinkage``; at most ``most_dimensions`` |
| tau | ``spread``: samples are closer to their means than features are |
| s, m | ``scale``, ``margin`` |

The settings are those of the authors' code (github.com/FabioTur-dev/One-Shot-FL). The result does
not depend on the split of the data, but on the seed and on the number of samples.

Departures:

- The model is a linear head: w_c / |w_c| in the Fisher subspace, times ``scale`` over the mean
  length of a sample. It chooses the class of the greatest cosine, as the paper's does; its
  probabilities grow with the length of z, which the paper divides by.
- At least one dimension is kept, not two: two classes have but one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.optim import AdamW

from attar.blocks.heads import (
    SUMS,
    LinearHead,
    Moments,
    factorise,
    hide_absent,
    moments_of,
    shrink,
)
from attar.core import Metrics, Needs, Phase, Result, Server, State, Upload
from attar.methods.feature_groups import Group, combine_heads, make_groups
from attar.seeds import rng
from attar.settings import Fraction, NonNegative, NonNegativeInt, Positive, PositiveInt, settings

_START = 0.01  # standard deviation of the first weights


@dataclass(frozen=True, eq=False)
class Subspace:
    """The Fisher subspace of one backbone, and features sampled in it.

    Attributes:
        group: the clients.
        moments: of all their images.
        basis: V, (D, k).
        z: (N, k), single precision, on the device.
        labels: (N,), places among ``held``.
        held: places of the classes with images.
    """

    group: Group
    moments: Moments
    basis: Tensor
    z: Tensor
    labels: Tensor
    held: Tensor


@dataclass(frozen=True, eq=False)
class Context:
    """What is learned from, and what a model is made of."""

    subspaces: tuple[Subspace, ...]
    uploads: Sequence[Upload]
    server: Server


@dataclass
class CosineState(State):
    """The class vectors in each subspace, their optimisers, and where the order comes from."""

    heads: list[nn.Module]
    optimisers: list[torch.optim.Optimizer]
    draws: torch.Generator


@settings()
@dataclass(frozen=True)
class FisherMix:
    """A cosine head trained on features sampled in the Fisher subspace (GH-OFL)."""

    paper: ClassVar[str] = "Turazza et al., 2026"
    cost: ClassVar[str] = "an eigendecomposition, epochs of a small head"

    shrinkage: Fraction = 0.05  # of the covariance that defines the Fisher subspace
    energy: Fraction = 0.99  # share of the eigenvalues that is kept
    most_dimensions: PositiveInt = 128  # of the Fisher subspace
    samples: PositiveInt = 20_000  # features drawn of each class
    spread: Positive = 0.75  # factor by which samples are closer to their means than features
    epochs: NonNegativeInt = 60  # of the head, over the samples
    batch_size: PositiveInt = 1024  # samples in a batch
    lr: Positive = 1e-3  # of AdamW, which trains the head
    weight_decay: NonNegative = 5e-4  # of the same
    scale: Positive = 20.0  # by which cosines are multiplied
    margin: NonNegative = 0.0  # by which the cosine of the right class must be ahead

    @property
    def needs(self) -> Needs:
        """Sums of features from at least one client; classifiers from the others; no student."""
        return Needs(parts=(SUMS, "classifier"), at_least=((SUMS, 1),), student=False)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Add the sums, find the Fisher subspaces and sample features in them."""
        groups = make_groups(uploads, server)
        return Context(tuple(self.subspace(group, server) for group in groups), uploads, server)

    def subspace(self, group: Group, server: Server) -> Subspace:
        """The Fisher subspace of a group, and samples in it."""
        moments = moments_of(group.totals)
        held = moments.held.nonzero().squeeze(1)
        basis = fisher_basis(moments, self.shrinkage, energy=self.energy, most=self.most_dimensions)
        root = factorise(basis.T @ moments.within @ basis)
        draws = rng(server.seed, "fisher-mix", group.title)
        size = (len(held), self.samples, basis.shape[1])
        noise = torch.randn(size, generator=draws, dtype=torch.float64) @ root.T
        z = (moments.means[held] @ basis)[:, None] + self.spread * noise
        labels = torch.arange(len(held)).repeat_interleave(self.samples)
        return Subspace(
            group,
            moments,
            basis,
            z.flatten(0, 1).float().to(server.device),
            labels.to(server.device),
            held,
        )

    def start(self, context: Context) -> CosineState:
        """Small random class vectors."""
        heads: list[nn.Module] = []
        for subspace in context.subspaces:
            draws = rng(context.server.seed, "fisher-mix", "start", subspace.group.title)
            size = (len(subspace.held), subspace.basis.shape[1])
            weight = _START * torch.randn(size, generator=draws)
            heads.append(_Cosine(weight).to(context.server.device))
        optimisers: list[torch.optim.Optimizer] = [
            AdamW(net.parameters(), lr=self.lr, weight_decay=self.weight_decay) for net in heads
        ]
        return CosineState(heads, optimisers, rng(context.server.seed, "fisher-mix", "order"))

    def phases(self, context: Context) -> Sequence[Phase]:
        """Epochs over the samples."""
        number = sum(len(subspace.labels) for subspace in context.subspaces)
        return [Phase("train", self.epochs, partial(self.epoch, context), lambda _: float(number))]

    def epoch(self, context: Context, state: CosineState) -> Metrics:
        """One pass over all samples, in a new order."""
        total = torch.zeros((), device=context.server.device)
        batches = 0
        for subspace, net, optimiser in zip(
            context.subspaces, state.heads, state.optimisers, strict=True
        ):
            order = torch.randperm(len(subspace.labels), generator=state.draws)
            for rows in order.to(subspace.z.device).split(self.batch_size):
                loss = self.loss(net(subspace.z[rows]), subspace.labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach()
                batches += 1
        return {"loss": total / batches}

    def loss(self, cosines: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of s (cos - m [c is the label]).

        Args:
            cosines: (B, C).
            labels: (B,).
        """
        behind = torch.zeros_like(cosines).scatter_(1, labels[:, None], self.margin)
        return cross_entropy(self.scale * (cosines - behind), labels)

    def result(self, context: Context, state: CosineState) -> Result:
        """The backbone with the head, or a mixture of several."""
        heads = []
        for subspace, net in zip(context.subspaces, state.heads, strict=True):
            assert isinstance(net, _Cosine), "start made it"
            heads.append((subspace.group, self.head(subspace, net)))
        model = combine_heads(heads, [1.0] * len(heads), context.uploads, context.server)
        kept = tuple(subspace.group.kept() for subspace in context.subspaces)
        number = sum(len(subspace.labels) for subspace in context.subspaces)
        remark = (
            f"Trained on {number:,} features sampled in the Fisher subspace: an approximation, "
            "which depends on the seed."
        )
        return Result({"head": model}, remarks=(remark,), sums=kept)

    def head(self, subspace: Subspace, net: "_Cosine") -> LinearHead:
        """The head for features as they are."""
        directions = normalize(net.weight.detach().cpu().double(), dim=1)
        length = float(subspace.z.double().norm(dim=1).mean())
        moments = subspace.moments
        weight = torch.zeros(len(moments.counts), moments.width, dtype=torch.float64)
        weight[subspace.held] = directions @ subspace.basis.T * (self.scale / max(length, 1e-12))
        return hide_absent(LinearHead(weight, torch.zeros(len(weight)).double()), moments.held)


class _Cosine(nn.Module):
    """z (B, k) -> the cosines with the class vectors, (B, C)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, z: Tensor) -> Tensor:
        return normalize(z, dim=1) @ normalize(self.weight, dim=1).T


def fisher_basis(moments: Moments, shrinkage: float, *, energy: float, most: int) -> Tensor:
    """V, (D, k): directions in which class means differ most for the spread within classes.

    Args:
        moments: of the images.
        shrinkage: a, of the covariance within classes.
        energy: share of the sum of the eigenvalues that k of them must have.
        most: the largest k.
    """
    shares = moments.counts / moments.counts.sum().clamp(min=1)
    centred = (moments.means - shares @ moments.means) * shares.sqrt()[:, None]
    values, vectors = torch.linalg.eigh(shrink(moments.within, shrinkage))
    whiten = (vectors * values.clamp(min=1e-12).rsqrt()) @ vectors.T
    # The eigenvectors of W S_b W^T with S_b = M^T M are right singular vectors of M W.
    _, sizes, rows = torch.linalg.svd(centred @ whiten, full_matrices=False)
    sizes = sizes.square()
    reached = sizes.cumsum(0) >= energy * sizes.sum()
    kept = min(int((~reached).sum()) + 1, most, len(sizes))
    basis: Tensor = whiten @ rows[:kept].T
    return basis
