"""FedAvg: the weighted average of the clients' weights, once.

Paper: H. B. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017. With several architectures there is nothing to average; ``mixed="vote"``
averages within each architecture and lets the averages vote, as FedMHO 5.1.2 says of its FedAvg;
"mean-logits" takes the mean of what they say, as that paper's code does.

    theta = sum_k (n_k / n) theta_k        n_k: examples of client k

Departures: none in one round. BatchNorm statistics are averaged like weights; ties of a vote go
to the higher mean probability.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attar.blocks.ensemble import REDUCTIONS, RuleName
from attar.blocks.student import averaged
from attar.core import Deployable, Mixture, Needs, Part, Phase, Result, Server, State, Upload


@dataclass(frozen=True)
class Context:
    averages: tuple[Part, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class FedAvg:
    """The weighted average of the clients' weights (McMahan et al. 2017)."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    cost: ClassVar[str] = "one pass over the weights"

    weights: Literal["examples", "uniform"] = "examples"  # n_k / n, or 1 / K
    mixed: Literal["error", "vote", "mean-logits"] = (
        "error"  # several architectures: refuse, or combine their averages
    )

    @property
    def needs(self) -> Needs:
        return Needs(
            same_architecture=self.mixed == "error",
            different_classes=self.mixed != "error",
            student=False,
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        groups: dict[tuple[object, ...], list[Upload]] = defaultdict(list)
        for upload in uploads:
            part = upload.parts["classifier"]
            groups[(part.spec, part.preprocess, part.classes)].append(upload)
        equal = self.weights == "uniform"
        averages = [
            averaged(group, torch.ones(len(group)) if equal else None) for group in groups.values()
        ]
        return Context(tuple(averages), server.task.classes)

    def start(self, context: Context) -> State:
        return State()

    def phases(self, context: Context) -> Sequence[Phase]:
        return ()

    def result(self, context: Context, state: State) -> Result:
        if len(context.averages) == 1 and context.averages[0].classes == context.classes:
            return Result({"average": context.averages[0]})
        rule: RuleName = "mean-logits" if self.mixed == "mean-logits" else "vote"
        model: Deployable = Mixture(context.averages, REDUCTIONS[rule], None, context.classes)
        return Result({rule: model})
