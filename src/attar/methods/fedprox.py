"""FedProx: FedAvg whose clients stay near the model that they were sent.

Paper: T. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2.

    client k:  minimise F_k(w) + (mu / 2) ||w - w_t||^2
    server:    w_(t+1) = sum_k (n_k / n) w_k

The client's half is in training/objectives.py (``proximal``).

| symbol | here |
|---|---|
| w_t | the model that was sent to the clients |
| w_k | the upload of client k |
| n_k / n | ``data_shares`` |
| mu | ``mu`` |

Departures:

- Clients are drawn uniformly and averaged by their examples, as FedAvg does (and the experiments
  that compare the two). The paper also draws clients by their examples and averages them with
  equal weights (``weights="uniform"``).
- mu = 0 is FedAvg, bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from attar.blocks.ensemble import average, data_shares
from attar.core import Needs, Part, Result, Server, State, Upload
from attar.methods.without_phases import no_phases, no_state
from attar.settings import NonNegative, settings
from attar.training import Objective


@settings()
@dataclass(frozen=True)
class FedProx:
    """FedAvg with a proximal term in local training (Li et al. 2020).

    The client's half is the term ``proximal`` of training/objectives.py.
    """

    paper: ClassVar[str] = "Li et al., MLSys 2020"
    cost: ClassVar[str] = "one pass over the weights"
    needs: ClassVar[Needs] = Needs(same_architecture=True, different_classes=False, student=False)

    mu: NonNegative = 0.01  # the paper tries 0.001, 0.01, 0.1, 1
    weights: Literal["examples", "uniform"] = "examples"  # n_k / n, or 1 / K

    @property
    def objective(self) -> Objective:
        """The clients' loss has the term (mu / 2) ||w - w_t||^2."""
        return Objective(proximal=self.mu)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Part:
        """The new model w_(t+1)."""
        parts = [upload.parts["classifier"] for upload in uploads]
        uniform = self.weights == "uniform"
        shares = torch.ones(len(parts)) if uniform else data_shares(uploads)  # n_k / n
        model = average([part.state for part in parts], shares)  # sum_k (n_k / n) w_k
        return replace(parts[0], state=model)

    start = no_state
    phases = no_phases

    def result(self, context: Part, state: State) -> Result:
        """The new model."""
        return Result({"average": context})
