"""Local heads: what clients of one backbone reach without adding their sums.

A baseline. Every client's head is fitted to its own sums alone, as it would be at home; the heads
are then averaged like weights (FedAvg), or stand side by side as an ensemble.

    average    W = sum_k (n_k / n) W_k
    ensemble   p(c|x) = mean_k softmax(W_k phi(x) + b_k)_c, over the clients that hold class c

The heads are ``gaussian-head`` (LDA) or ``analytic`` (ridge) of one client. Unlike those of the
sum, the result depends on who holds what.

Departures: there is no paper. Weights are averaged where clients hold different classes, too: a
class that a client does not hold gets no vote from it (``average``: nothing of its weights).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attar.blocks.heads import (
    SUMS,
    Choice,
    Halves,
    LinearHead,
    Moments,
    add_clients,
    choose_gaussian,
    choose_ridge,
    gaussian_head,
    hide_absent,
    moments_of,
    regression,
)
from attar.core import Mixture, Needs, Part, Result, Server, State, Upload
from attar.errors import NeedsError
from attar.methods.feature_groups import Group, make_groups
from attar.methods.without_phases import no_phases, no_state
from attar.settings import Fraction, settings


@dataclass(frozen=True, eq=False)
class Local:
    """The head of one client.

    Attributes:
        classes: that it holds.
        head: over these.
        examples: its images.
    """

    classes: tuple[str, ...]
    head: LinearHead
    examples: float


@dataclass(frozen=True, eq=False)
class Context:
    """The clients' heads and the backbone."""

    group: Group
    heads: tuple[Local, ...]
    classes: tuple[str, ...]


@settings()
@dataclass(frozen=True)
class LocalHeads:
    """The average or the ensemble of heads that each client fits alone: a baseline."""

    paper: ClassVar[str] = "baseline"
    cost: ClassVar[str] = "a few matrix factorisations for each client"

    combine: Literal["average", "ensemble"] = "ensemble"  # of the clients' heads
    head: Literal["lda", "ridge"] = "lda"  # what each client fits to its own sums
    shrinkage: Fraction | None = None  # None: each client's own, from its two halves

    @property
    def needs(self) -> Needs:
        """Sums of features of one backbone from every client; no student."""
        return Needs(parts=(SUMS,), same_architecture=True, student=False)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Fit a head to each client's sums."""
        (group,) = make_groups(uploads, server)
        heads = tuple(self.fit(group, client) for client in group.named)
        classes = group.totals.classes
        held = {name for local in heads for name in local.classes}
        if missing := [name for name in classes if name not in held]:
            raise NeedsError(
                f"No client has an image of {', '.join(missing)}.",
                fix="name the classes of the task with --classes",
            )
        return Context(group, heads, classes)

    def fit(self, group: Group, client: str) -> Local:
        """The head of one client, over the classes that it holds."""
        totals = add_clients({client: group.named[client]}, group.totals.classes)
        halves = Halves.of(totals)

        def lda(moments: Moments, share: float) -> LinearHead:
            head = gaussian_head(moments, "lda", share, moments.counts.clamp(min=1).log())
            assert isinstance(head, LinearHead), "LDA is linear"
            return head

        if self.shrinkage is not None:
            choice = Choice(self.shrinkage, "given")
        elif self.head == "lda":
            choice = choose_gaussian(halves, "lda", lda)
        else:
            choice = choose_ridge(halves)
        moments = moments_of(totals)
        if self.head == "lda":
            head = lda(moments, choice.shrinkage)
        else:
            head = hide_absent(regression(moments).head(choice.shrinkage), moments.held)
        rows = moments.held.nonzero().squeeze(1)
        classes = tuple(totals.classes[row] for row in rows.tolist())
        return Local(classes, head.of_classes(rows), moments.number)

    start = no_state
    phases = no_phases

    def result(self, context: Context, state: State) -> Result:
        """One net with the averaged head, or an ensemble of one net per client."""
        if self.combine == "average":
            return Result({"average": context.group.part(average_heads(context))})
        members = tuple(part_of(context.group, local) for local in context.heads)
        return Result({"ensemble": Mixture(members, "probabilities", None, context.classes)})


def average_heads(context: Context) -> LinearHead:
    """sum_k (n_k / n) W_k, with n over the clients that hold the class."""
    classes = context.classes
    weight = torch.zeros(len(classes), context.group.totals.width, dtype=torch.float64)
    bias = torch.zeros(len(classes), dtype=torch.float64)
    examples = torch.zeros(len(classes), dtype=torch.float64)
    for local in context.heads:
        rows = torch.tensor([classes.index(name) for name in local.classes])
        weight[rows] += local.examples * local.head.weight
        bias[rows] += local.examples * local.head.bias
        examples[rows] += local.examples
    return LinearHead(weight / examples[:, None], bias / examples)


def part_of(group: Group, local: Local) -> Part:
    """The backbone with the head of one client."""
    options = group.options
    return group.backbone.classifier(
        local.head.weight,
        local.head.bias,
        local.classes,
        int(options["dimensions"]),
        float(options["clip"]),
    )
