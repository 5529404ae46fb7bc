"""Analytic learning: ridge regression on a frozen backbone, the same for any split.

Paper: R. He et al., AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained
Models, CVPR 2025.

    W = (sum_k X_k + l I)^-1 sum_k Y_k

| symbol | here |
|---|---|
| X_k, sum of phi phi^T | ``squares`` of client k |
| Y_k, sum of phi times one-hot labels | ``sums`` of client k |
| l | a / (1 - a) tr X / D, with a the ``shrinkage`` |

Departures:

- AFL's clients send their own solutions with a penalty, and the server combines them and takes the
  penalties out again ("absolute aggregation law"). The sum of the clients' normal equations, which
  is solved here, has the same solution without rounding on the way.
- AFL ends with no penalty. Here ``shrinkage`` stays, chosen by the squared error of one half of the
  images under the solution of the other, which sums give exactly; ``shrinkage=0`` is AFL's.
- AFL has no intercept: ``intercept=false``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attar.blocks.heads import (
    SUMS,
    Choice,
    Halves,
    Head,
    Moments,
    choose_ridge,
    estimate_head,
    hide_absent,
    moments_of,
    regression,
)
from attar.core import Needs, Result, Server, State, Upload
from attar.methods.contributions import measure_contributions
from attar.methods.feature_groups import Group, make_groups
from attar.methods.gaussian_head import Context, Solved, deliver
from attar.methods.without_phases import no_phases, no_state
from attar.settings import Fraction, NonNegativeInt, settings


@settings()
@dataclass(frozen=True)
class Analytic:
    """Ridge regression on a frozen backbone, from sums of features (He et al. 2025)."""

    paper: ClassVar[str] = "He et al., CVPR 2025"
    cost: ClassVar[str] = "one pass over the sums, a few matrix factorisations"

    shrinkage: Fraction | None = None  # a; None: chosen by the squared error of the halves
    intercept: bool = True  # fit a constant, which is not shrunk
    contributions: NonNegativeInt = 30  # most clients for which leaving one out is computed

    @property
    def needs(self) -> Needs:
        """Sums of features from at least one client; classifiers from the others; no student."""
        return Needs(parts=(SUMS, "classifier"), at_least=((SUMS, 1),), student=False)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Add the sums and solve the normal equations."""
        solved = tuple(self.solve(group) for group in make_groups(uploads, server))
        return Context(solved, uploads, server)

    def solve(self, group: Group) -> Solved:
        """The head of clients with one backbone."""
        halves = Halves.of(group.totals)
        if self.shrinkage is None:
            choice = choose_ridge(halves, intercept=self.intercept)
        else:
            choice = Choice(self.shrinkage, "given")

        def fit(moments: Moments) -> Head:
            return regression(moments, intercept=self.intercept).head(choice.shrinkage)

        everything = moments_of(group.totals)
        head = regression(everything, intercept=self.intercept).head(choice.shrinkage)
        return Solved(
            group,
            hide_absent(head, everything.held),
            choice,
            estimate_head(halves, fit, exact=True),
            measure_contributions(group, halves, fit, most=self.contributions),
        )

    start = no_state
    phases = no_phases

    def result(self, context: Context, state: State) -> Result:
        """The backbone with its head, or a mixture of several."""
        return deliver(context.solved, context.uploads, context.server)
