"""FedProx: FedAvg whose clients are held near the model that they were sent.

Paper: T. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2.

    client k:  minimise F_k(w) + (mu / 2) ||w - w_t||^2         (local/objectives.py, ``proximal``)
    server:    w_(t+1) = sum_k (n_k / n) w_k

Departures: clients are drawn uniformly and averaged by their examples, as FedAvg does (and the
experiments that compare the two); the paper also draws by examples and averages plainly
(``weights="uniform"``). mu = 0 is FedAvg, bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attar.blocks.student import averaged
from attar.core import Needs, Part, Phase, Result, Server, State, Upload
from attar.settings import require
from attar.training import Objective


@dataclass(frozen=True)
class FedProx:
    """FedAvg with a proximal term in local training (Li et al. 2020)."""

    paper: ClassVar[str] = "Li et al., MLSys 2020"
    cost: ClassVar[str] = "one pass over the weights"
    needs: ClassVar[Needs] = Needs(same_architecture=True, different_classes=False, student=False)

    mu: float = 0.01  # the paper tries 0.001, 0.01, 0.1, 1
    weights: Literal["examples", "uniform"] = "examples"  # n_k / n, or 1 / K

    def __post_init__(self) -> None:
        require(self, may_be_zero="mu")

    @property
    def objective(self) -> Objective:
        return Objective(proximal=self.mu)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Part:
        return averaged(uploads, torch.ones(len(uploads)) if self.weights == "uniform" else None)

    def start(self, context: Part) -> State:
        return State()

    def phases(self, context: Part) -> Sequence[Phase]:
        return ()

    def result(self, context: Part, state: State) -> Result:
        return Result({"average": context})
