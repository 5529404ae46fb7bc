"""FedAvg: the weighted average of the clients' weights, once.

Paper: H. B. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017.

    theta = sum_k (n_k / n) theta_k

| symbol | here |
|---|---|
| theta_k | the upload of client k |
| n_k / n | ``data_shares``: its part of all examples |

Departures:

- None for clients of one architecture, in one round. BatchNorm statistics are averaged like
  weights.
- Nets of several architectures cannot be averaged. ``mixed="vote"`` averages within each
  architecture and lets the averages vote, as FedMHO 5.1.2 describes its FedAvg; ties go to the
  higher mean probability. ``mixed="mean-logits"`` takes the mean of the averages' logits, as
  FedMHO's code does.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from attar.blocks.ensemble import REDUCTIONS, RuleName, average, data_shares
from attar.core import Mixture, Needs, Part, Result, Server, State, Upload
from attar.methods.without_phases import no_phases, no_state
from attar.settings import settings


@dataclass(frozen=True)
class Context:
    """The averages, one for each kind of classifier, and the classes of the task."""

    averages: tuple[Part, ...]
    classes: tuple[str, ...]


@settings()
@dataclass(frozen=True)
class FedAvg:
    """The weighted average of the clients' weights (McMahan et al. 2017)."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    cost: ClassVar[str] = "one pass over the weights"

    weights: Literal["examples", "uniform"] = "examples"  # n_k / n, or 1 / K
    # several architectures: refuse, or combine their averages
    mixed: Literal["error", "vote", "mean-logits"] = "error"

    @property
    def needs(self) -> Needs:
        """One architecture and class list, unless averages are combined."""
        return Needs(
            same_architecture=self.mixed == "error",
            different_classes=self.mixed != "error",
            student=False,
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Average the uploads of each architecture, preprocessing and class list."""
        groups: dict[tuple[object, ...], list[Upload]] = defaultdict(list)
        for upload in uploads:
            part = upload.parts["classifier"]
            groups[(part.spec, part.preprocess, part.classes)].append(upload)
        averages = tuple(self.average(group) for group in groups.values())
        return Context(averages, server.task.classes)

    def average(self, uploads: Sequence[Upload]) -> Part:
        """theta = sum_k (n_k / n) theta_k, of clients with one architecture."""
        parts = [upload.parts["classifier"] for upload in uploads]
        uniform = self.weights == "uniform"
        shares = torch.ones(len(parts)) if uniform else data_shares(uploads)  # n_k / n
        theta = average([part.state for part in parts], shares)  # sum_k (n_k / n) theta_k
        return replace(parts[0], state=theta)

    start = no_state
    phases = no_phases

    def result(self, context: Context, state: State) -> Result:
        """The average, or the averages combined by ``mixed``."""
        if len(context.averages) == 1 and context.averages[0].classes == context.classes:
            return Result({"average": context.averages[0]})
        rule: RuleName = "mean-logits" if self.mixed == "mean-logits" else "vote"
        return Result({rule: Mixture(context.averages, REDUCTIONS[rule], None, context.classes)})
