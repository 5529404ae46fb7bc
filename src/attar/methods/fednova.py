"""FedNova: a client that took more steps does not count more.

Paper: J. Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, NeurIPS 2020.

    d_k = (w_t - w_k) / tau_k                       the mean step of client k
    w_(t+1) = w_t - tau_eff sum_k p_k d_k,          tau_eff = sum_k p_k tau_k,   p_k = n_k / n

The client's half is plain SGD, whose momentum training/objectives.py checks (``momentum``).

| symbol | here |
|---|---|
| w_t | ``server.initial``, the model that was sent |
| w_k | the upload |
| tau_k | ``local_steps`` of the upload; with ``momentum`` rho, ||a_k||_1 (``effective_steps``) |

Departures:

- An upload carries its number of steps, so FedNova sends as many bytes as FedAvg. FedKEM 4.3 counts
  twice as many, for an extra vector that the server can compute.
- BatchNorm statistics are averaged with the weights p_k.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from attar.blocks.ensemble import average_normalised, data_shares, effective_steps
from attar.core import Needs, Part, Result, Server, State, Upload
from attar.errors import NeedsError, SettingsError
from attar.methods.without_phases import no_phases, no_state
from attar.settings import NonNegative, settings
from attar.training import Objective


@settings()
@dataclass(frozen=True)
class FedNova:
    """Averages the clients' mean steps in place of their weights (Wang et al. 2020).

    The client's half is plain SGD; training/objectives.py checks its ``momentum``.
    """

    paper: ClassVar[str] = "Wang et al., NeurIPS 2020"
    cost: ClassVar[str] = "one pass over the weights"
    needs: ClassVar[Needs] = Needs(
        same_architecture=True, different_classes=False, initial=True, student=False
    )

    momentum: NonNegative = 0.9  # rho of the clients' SGD, which they have to use

    def __post_init__(self) -> None:
        if self.momentum >= 1:
            raise SettingsError(f"momentum = {self.momentum}: expected below 1")

    @property
    def objective(self) -> Objective:
        """The clients' SGD has to use this momentum."""
        return Objective(momentum=self.momentum)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Part:
        """The new model w_(t+1)."""
        assert server.initial is not None, "needs.initial was checked"
        if idle := [upload.client for upload in uploads if not upload.local_steps]:
            raise NeedsError(
                f"FedNova divides by the steps of each client, but {', '.join(idle)} took none."
            )
        parts = [upload.parts["classifier"] for upload in uploads]
        steps = [effective_steps(upload.local_steps, self.momentum) for upload in uploads]
        weights = average_normalised(server.initial, parts, data_shares(uploads), steps)  # w_(t+1)
        return replace(parts[0], state=weights)

    start = no_state
    phases = no_phases

    def result(self, context: Part, state: State) -> Result:
        """The new model."""
        return Result({"average": context})
