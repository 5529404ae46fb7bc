"""Gaussian heads: a frozen backbone with a head in closed form, the same for any split.

Paper: F. Turazza, M. Picone and M. Mamei, The Gaussian-Head OFL Family: One-Shot Federated Learning
from Client Global Statistics, ICLR 2026 (GH-OFL: NB, LDA, QDA).

    n_c = sum_k n_kc,  s_c = sum_k s_kc,  G = sum_k G_k         integers: order does not matter
    mu_c = s_c / n_c,  S = (G - sum_c n_c mu_c mu_c^T) / (n - C)
    head: see blocks/heads/heads.py

| symbol | here |
|---|---|
| n_kc, s_kc, G_k | the ``sums`` part of client k: ``counts``, ``sums``, ``squares`` |
| mu_c, S, S_c | ``Moments.means``, ``.within``, ``.covariance`` |
| a, the shrinkage | ``shrinkage`` |

Departures:

- Shrinkage is chosen at the server from two halves of the images (blocks/heads/choice.py). GH-OFL's
  FisherMix is ``fisher-mix``; Proto-Hyper is not here.
- Naive Bayes has one variance per feature for all classes, so that it is linear.
- Clients of several backbones, and clients that sent a classifier, become one mixture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from attar.blocks.heads import (
    SUMS,
    Choice,
    Estimate,
    Halves,
    Head,
    Kind,
    Moments,
    Prior,
    choose_gaussian,
    estimate_head,
    gaussian_head,
    log_prior_of,
    moments_of,
)
from attar.core import Needs, Result, Server, State, Upload
from attar.internal.text import list_some
from attar.methods.contributions import measure_contributions
from attar.methods.feature_groups import Group, combine_heads, make_groups
from attar.methods.without_phases import no_phases, no_state
from attar.settings import Fraction, NonNegativeInt, settings


@dataclass(frozen=True, eq=False)
class Solved:
    """A head and what is known about it.

    Attributes:
        group: the clients.
        head: fitted to all images.
        choice: of the shrinkage.
        estimate: from the halves; None where one of them is empty.
        contributions: by client, what its images add to the accuracy of drawn scores.
    """

    group: Group
    head: Head
    choice: Choice
    estimate: Estimate | None
    contributions: dict[str, float]

    @property
    def temperature(self) -> float:
        """By which logits are divided to be log-odds; 1 where nothing is known."""
        return 1.0 if self.estimate is None else self.estimate.temperature

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "clients": len(self.group.named),
            "images": self.group.examples,
            "squares": "by class" if self.group.totals.per_class else "shared",
            "choice": self.choice.as_json(),
            "estimate": None if self.estimate is None else self.estimate.as_json(),
            "contributions": self.contributions,
        }

    def remarks(self) -> list[str]:
        """What a reader of the record should know."""
        title = self.group.title
        lines = [f"{title}: shrinkage {self.choice.shrinkage:g} ({self.choice.criterion})"]
        if self.estimate is not None:
            source = "each class" if self.group.totals.per_class else "all classes together"
            low, high = (100 * end for end in (self.estimate.low, self.estimate.high))
            lines.append(
                f"{title}: accuracy of drawn scores {100 * self.estimate.accuracy:.1f} %, with the "
                f"covariance of {source}. Features are no Gaussians and this reads high; expect "
                f"{low:.0f} to {high:.0f} % on new images"
            )
        if self.contributions:
            shares = sorted(self.contributions.items(), key=lambda item: -item[1])
            named = [f"{client} {100 * share:.1f}" for client, share in shares]
            lines.append(
                f"{title}: without one client that accuracy falls, in points, by {list_some(named)}"
            )
        if self.group.totals.noisy:
            lines.append(
                f"{title}: clients added noise; negative eigenvalues and counts of the sum were "
                "set to 0"
            )
        return [f"{line}." for line in lines]


@dataclass(frozen=True, eq=False)
class Context:
    """What was solved, and what a model is made of."""

    solved: tuple[Solved, ...]
    uploads: Sequence[Upload]
    server: Server


@settings()
@dataclass(frozen=True)
class GaussianHead:
    """A head in closed form on a frozen backbone, from sums of features (Turazza et al. 2026)."""

    paper: ClassVar[str] = "Turazza et al., ICLR 2026"
    cost: ClassVar[str] = "one pass over the sums, a few matrix factorisations"

    kind: Kind = "lda"  # the head: what the Gaussians of the classes share
    shrinkage: Fraction | None = None  # a; None: chosen from the two halves
    prior: Prior = "counts"  # of the classes: their shares of the images, or even
    contributions: NonNegativeInt = 30  # most clients for which leaving one out is computed

    @property
    def needs(self) -> Needs:
        """Sums of features from at least one client; classifiers from the others; no student."""
        return Needs(
            parts=(SUMS, "classifier"),
            at_least=((SUMS, 1),),
            squares_by_class=self.kind == "qda",
            student=False,
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Add the sums and solve for the heads."""
        groups = make_groups(uploads, server)
        prior = federation_counts(groups, server)
        solved = tuple(self.solve(group, prior) for group in groups)
        return Context(solved, uploads, server)

    def solve(self, group: Group, prior_counts: dict[str, float]) -> Solved:
        """The head of clients with one backbone."""
        counts = torch.tensor(
            [prior_counts[name] for name in group.totals.classes], dtype=torch.float64
        )
        log_prior = log_prior_of(counts, self.prior)
        halves = Halves.of(group.totals)
        if self.shrinkage is None:
            choice = choose_gaussian(halves, self.kind, partial(self.fit, log_prior))
        else:
            choice = Choice(self.shrinkage, "given")

        def fit(moments: Moments) -> Head:
            return self.fit(log_prior, moments, choice.shrinkage)

        return Solved(
            group,
            fit(moments_of(group.totals)),
            choice,
            estimate_head(halves, fit, exact=False),
            measure_contributions(group, halves, fit, most=self.contributions),
        )

    def fit(self, log_prior: Tensor, moments: Moments, shrinkage: float) -> Head:
        """The head of some images."""
        return gaussian_head(moments, self.kind, shrinkage, log_prior)

    start = no_state
    phases = no_phases

    def result(self, context: Context, state: State) -> Result:
        """The backbone with its head, or a mixture of several."""
        return deliver(context.solved, context.uploads, context.server)


def federation_counts(groups: Sequence[Group], server: Server) -> dict[str, float]:
    """Images of each class in all groups, so that all heads have one prior."""
    counts = dict.fromkeys(server.task.classes, 0.0)
    for group in groups:
        own = group.totals.counts.sum(0).clamp(min=0).tolist()
        for name, number in zip(group.totals.classes, own, strict=True):
            counts[name] += number
    return counts


def deliver(solved: Sequence[Solved], uploads: Sequence[Upload], server: Server) -> Result:
    """The result of heads: one model, the sums that it was made from, and what is known of it."""
    model = combine_heads(
        [(one.group, one.head) for one in solved],
        [one.temperature for one in solved],
        uploads,
        server,
    )
    return Result(
        {"head": model},
        remarks=tuple(line for one in solved for line in one.remarks()),
        sums=tuple(one.group.kept() for one in solved),
        details={"heads": {one.group.title: one.as_json() for one in solved}},
    )
