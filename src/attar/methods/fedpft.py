"""FedPFT: features are sampled from Gaussians, and a head is trained on them.

Paper: M. Beitollahi et al., Parametric Feature Transfer: One-shot Federated Learning with
Foundation Models, 2024.

    client k, class c:  N(mu_kc, S_kc) fitted to the features of its images of class c
    server:             draw features from all of them, n_kc of n_c for client k, and minimise the
                        cross entropy of a linear head on them

| symbol | here |
|---|---|
| mu_kc, S_kc | ``Moments.means`` and ``.covariance`` of client k's sums |
| number of samples | ``samples`` for each class, shared out by n_kc |

It is an approximation, unlike ``gaussian-head`` and ``analytic``: the result depends on the split
of the data, on the seed and on the number of samples.

Departures:

- The paper's clients fit mixtures of several Gaussians by EM: ``gaussians=mixtures``, for files
  with the part "mixtures" (``training/feature_mixtures.py``). Else there is one Gaussian, from
  sums, for each class of a client, so all images of a class together are a mixture of as many as
  there are clients. Without squares by class its covariance is the client's pooled one.
- ``gaussians=sum`` draws from one Gaussian for each class of all clients together. That depends on
  the split no more, and clients can join and leave (`attar update`).
- The head is trained on standardised features, which changes its conditioning alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import skip_init
from torch.optim import Adam, Optimizer

from attar.blocks.heads import (
    SUMS,
    LinearHead,
    Moments,
    add_clients,
    factorise,
    moments_of,
    options_of,
    unpack,
)
from attar.core import Metrics, Needs, Part, Phase, Result, Server, State, Upload
from attar.errors import NeedsError
from attar.methods.feature_groups import Group, combine_heads, make_groups
from attar.nets.statistics import clip_length
from attar.seeds import rng
from attar.settings import NonNegative, NonNegativeInt, Positive, PositiveInt, settings
from attar.uploads import MIXTURES

_LEAST_SPREAD = 1e-6
_SAMPLED_FROM = {
    "client": "one Gaussian for each class of each client",
    "sum": "one Gaussian for each class",
    "mixtures": "the clients' mixtures",
}


class Source(NamedTuple):
    """Where features of one class are drawn from.

    Attributes:
        name: of the client, or "all".
        label: place of the class among those of the group.
        images: that the distribution was fitted to.
        draw: so many features (N, D) in double precision, from a generator.
    """

    name: str
    label: int
    images: float
    draw: Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Sampled:
    """Features of one backbone that nobody has.

    Attributes:
        group: the clients.
        phi: standardised, (N, D), single precision, on the device.
        labels: (N,), places in the classes of the group.
        mean: (D,) that was taken off.
        spread: (D,) by which they were divided.
    """

    group: Group
    phi: Tensor
    labels: Tensor
    mean: Tensor
    spread: Tensor

    def head(self, net: nn.Linear) -> LinearHead:
        """The head that was trained on standardised features, for features as they are."""
        weight = net.weight.detach().cpu().double() / self.spread
        return LinearHead(weight, net.bias.detach().cpu().double() - weight @ self.mean)


@dataclass(frozen=True, eq=False)
class Context:
    """What is learned from, and what a model is made of."""

    sampled: tuple[Sampled, ...]
    uploads: Sequence[Upload]
    server: Server


@dataclass
class HeadState(State):
    """The heads and their optimisers, and where the order of the features comes from."""

    heads: list[nn.Module]
    optimisers: list[Optimizer]
    draws: torch.Generator


@settings()
@dataclass(frozen=True)
class FedPft:
    """A head trained on features sampled from the clients' Gaussians (Beitollahi et al. 2024)."""

    paper: ClassVar[str] = "Beitollahi et al., 2024"
    cost: ClassVar[str] = "a factorisation for each client and class, epochs of a linear head"

    # one Gaussian for each class of each client, or for each class of all of them; or the mixtures
    # of several that the clients fitted and sent beside the sums
    gaussians: Literal["client", "sum", "mixtures"] = "client"
    covariance: Literal["full", "diagonal", "spherical"] = "full"  # of the Gaussians
    samples: PositiveInt = 1000  # features drawn of each class
    epochs: NonNegativeInt = 50  # of the head, over the drawn features
    batch_size: PositiveInt = 256  # features in a batch
    lr: Positive = 1e-3  # of Adam, which trains the head
    weight_decay: NonNegative = 1e-4  # of the same

    @property
    def needs(self) -> Needs:
        """Sums of features from at least one client; classifiers from the others; no student."""
        return Needs(parts=(SUMS, "classifier"), at_least=((SUMS, 1),), student=False)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Add the sums and sample features."""
        groups = make_groups(uploads, server)
        mixtures = self.mixtures(uploads)
        sampled = tuple(self.sample(group, server, mixtures) for group in groups)
        return Context(sampled, uploads, server)

    def mixtures(self, uploads: Sequence[Upload]) -> dict[str, Part]:
        """The mixtures that are drawn from, by client; none unless ``gaussians`` says so."""
        if self.gaussians != "mixtures":
            return {}
        senders = [upload for upload in uploads if SUMS in upload.parts]
        if lacking := [upload.client for upload in senders if MIXTURES not in upload.parts]:
            raise NeedsError(
                f"No mixtures were sent by {', '.join(lacking)}.",
                fix="let them write their files with --mixture 10, or set gaussians=client",
            )
        return {upload.client: upload.parts[MIXTURES] for upload in senders}

    def sample(
        self, group: Group, server: Server, mixtures: Mapping[str, Part] | None = None
    ) -> Sampled:
        """Features of the classes of a group."""
        features: list[Tensor] = []
        labels: list[Tensor] = []
        pooled = moments_of(group.totals)
        sources = _of_mixtures(group, mixtures) if mixtures else self.sources(group, pooled)
        for name, label, images, draw in sources:
            share = images / float(pooled.counts[label].clamp(min=1))
            number = max(1, round(share * self.samples))
            draws = rng(server.seed, "fedpft", name, group.totals.classes[label])
            features.append(draw(number, draws))
            labels.append(torch.full((number,), label))
        phi = torch.cat(features)
        clip = float(group.options["clip"])
        phi = clip_length(phi, clip) if clip else phi
        mean = phi.mean(0)
        spread = phi.std(0, correction=0).clamp(min=_LEAST_SPREAD)
        short = ((phi - mean) / spread).float()
        return Sampled(
            group, short.to(server.device), torch.cat(labels).to(server.device), mean, spread
        )

    def sources(self, group: Group, pooled: Moments) -> Iterator[Source]:
        """The Gaussian of each class, of each client or of all of them."""
        for name, moments in self.moments(group):
            for label in moments.held.nonzero().squeeze(1).tolist():
                root = self.root(moments, pooled, label)
                draw = partial(_draw_gaussian, moments.means[label], root)
                yield Source(name, label, float(moments.counts[label]), draw)

    def moments(self, group: Group) -> Iterator[tuple[str, Moments]]:
        """Whose Gaussians are drawn from: each client's, in the order of names, or those of all."""
        if self.gaussians == "sum":
            yield "all", moments_of(group.totals)
            return
        for client in sorted(group.named):
            totals = add_clients({client: group.named[client]}, group.totals.classes)
            yield client, _at_places(moments_of(totals), totals.classes, group.totals.classes)

    def root(self, moments: Moments, pooled: Moments, label: int) -> Tensor:
        """R with R R^T the covariance of a class; that of all clients where one has too few."""
        enough = moments.number > float(moments.held.sum())
        covariance = (moments if enough else pooled).covariance(label)
        if self.covariance == "full":
            return factorise(covariance)
        variances = covariance.diagonal().clamp(min=0)
        if self.covariance == "spherical":
            variances = variances.mean().expand_as(variances)
        return variances.sqrt().diag()

    def start(self, context: Context) -> HeadState:
        """Heads that know nothing."""
        heads: list[nn.Module] = []
        for sampled in context.sampled:
            width, classes = sampled.phi.shape[1], len(sampled.group.totals.classes)
            net = skip_init(nn.Linear, width, classes)
            nn.init.zeros_(net.weight)
            nn.init.zeros_(net.bias)
            heads.append(net.to(context.server.device))
        optimisers: list[Optimizer] = [
            Adam(net.parameters(), lr=self.lr, weight_decay=self.weight_decay) for net in heads
        ]
        return HeadState(heads, optimisers, rng(context.server.seed, "fedpft", "order"))

    def phases(self, context: Context) -> Sequence[Phase]:
        """Epochs over the sampled features."""
        number = sum(len(sampled.labels) for sampled in context.sampled)
        return [Phase("train", self.epochs, partial(self.epoch, context), lambda _: float(number))]

    def epoch(self, context: Context, state: HeadState) -> Metrics:
        """One pass over all sampled features, in a new order."""
        total = torch.zeros((), device=context.server.device)
        batches = 0
        for sampled, net, optimiser in zip(
            context.sampled, state.heads, state.optimisers, strict=True
        ):
            order = torch.randperm(len(sampled.labels), generator=state.draws)
            for rows in order.to(sampled.phi.device).split(self.batch_size):
                loss = cross_entropy(net(sampled.phi[rows]), sampled.labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach()
                batches += 1
        return {"loss": total / batches}

    def result(self, context: Context, state: HeadState) -> Result:
        """The backbone with the trained head, or a mixture of several."""
        heads = []
        for sampled, net in zip(context.sampled, state.heads, strict=True):
            assert isinstance(net, nn.Linear), "start made it"
            heads.append((sampled.group, sampled.head(net)))
        model = combine_heads(heads, [1.0] * len(heads), context.uploads, context.server)
        exact = self.gaussians == "sum"
        kept = tuple(sampled.group.kept() for sampled in context.sampled) if exact else ()
        number = sum(len(sampled.labels) for sampled in context.sampled)
        remark = (
            f"Trained on {number:,} features sampled from {_SAMPLED_FROM[self.gaussians]}: an "
            f"approximation, which depends on the seed{'' if exact else ' and on who holds what'}."
        )
        return Result({"head": model}, remarks=(remark,), sums=kept)


def _draw_gaussian(mean: Tensor, root: Tensor, number: int, draws: torch.Generator) -> Tensor:
    noise = torch.randn(number, len(mean), generator=draws, dtype=torch.float64)
    return mean + noise @ root.T


def _of_mixtures(group: Group, mixtures: Mapping[str, Part]) -> Iterator[Source]:
    """The mixture of each class of each client, in the order of names."""
    for client in sorted(group.named):
        part = mixtures[client]
        counts, weights, means, spreads = (
            part.state[name] for name in ("counts", "weights", "means", "spreads")
        )
        for row in counts.nonzero().squeeze(1).tolist():
            covariance = str(options_of(part)["covariance"])
            draw = partial(
                draw_mixture,
                weights[row].double(),
                means[row].double(),
                spreads[row].double(),
                covariance,
            )
            label = group.totals.classes.index(part.classes[row])
            yield Source(client, label, float(counts[row]), draw)


def draw_mixture(
    weights: Tensor,
    means: Tensor,
    spreads: Tensor,
    covariance: str,
    number: int,
    draws: torch.Generator,
) -> Tensor:
    """Features of a mixture of Gaussians, (N, D).

    Args:
        weights: (K,).
        means: (K, D).
        spreads: (K, 1 or D) variances, or (K, D (D + 1) / 2) triangles of factors.
        covariance: ``"spherical"``, ``"diagonal"`` or ``"full"``.
        number: N.
        draws: where they come from.
    """
    chosen = torch.multinomial(weights, number, replacement=True, generator=draws)
    noise = torch.randn(number, means.shape[1], generator=draws, dtype=torch.float64)
    if covariance != "full":
        return means[chosen] + noise * spreads[chosen].sqrt()
    for component in chosen.unique().tolist():
        rows = chosen == component
        noise[rows] = noise[rows] @ unpack(spreads[component]).tril().T
    return means[chosen] + noise


def _at_places(moments: Moments, own: Sequence[str], classes: Sequence[str]) -> Moments:
    """The moments of a client's classes at their places among those of the group."""
    places = torch.tensor([list(classes).index(name) for name in own])
    counts = moments.counts.new_zeros(len(classes)).index_copy(0, places, moments.counts)
    sums = moments.sums.new_zeros(len(classes), moments.width).index_copy(0, places, moments.sums)
    squares = moments.squares
    if moments.per_class:
        whole = squares.new_zeros(len(classes), moments.width, moments.width)
        squares = whole.index_copy(0, places, squares)
    return Moments(counts, sums, squares, moments.noisy, moments.unit)
