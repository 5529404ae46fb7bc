"""FedNova: clients that took more steps do not count more.

Paper: J. Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, NeurIPS 2020.

    d_k = (w_t - w_k) / tau_k                       the mean step of client k
    w_(t+1) = w_t - tau_eff sum_k p_k d_k,          tau_eff = sum_k p_k tau_k,   p_k = n_k / n

| symbol | here |
|---|---|
| w_t | ``server.initial``, the model that was sent; w_k: the upload |
| tau_k | ``local_steps`` of the upload; with ``momentum`` rho, ||a_k||_1, what so many steps add up to (``steps_added_up``) |

Departures: an upload carries its number of steps, so FedNova costs the bytes of FedAvg (FedKEM
4.3 counts the double, for an extra vector that the server can work out). BatchNorm statistics
are averaged by p_k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attar.blocks.ensemble import data_shares, normalised, steps_added_up
from attar.core import Needs, Part, Phase, Result, Server, State, Upload
from attar.errors import NeedsError, SettingsError
from attar.settings import require
from attar.training import Objective


@dataclass(frozen=True)
class FedNova:
    """Averages the clients' mean steps in place of their weights (Wang et al. 2020)."""

    paper: ClassVar[str] = "Wang et al., NeurIPS 2020"
    cost: ClassVar[str] = "one pass over the weights"
    needs: ClassVar[Needs] = Needs(
        same_architecture=True, different_classes=False, initial=True, student=False
    )

    momentum: float = 0.9  # rho of the clients' SGD, which they have to use

    def __post_init__(self) -> None:
        require(self, may_be_zero="momentum")
        if self.momentum >= 1:
            raise SettingsError(f"momentum = {self.momentum}: below 1.")

    @property
    def objective(self) -> Objective:
        return Objective(momentum=self.momentum)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Part:
        assert server.initial is not None, "needs.initial was checked"
        if idle := [upload.client for upload in uploads if not upload.local_steps]:
            raise NeedsError(
                f"FedNova divides by the steps of each client, but {', '.join(idle)} took none."
            )
        parts = [upload.parts["classifier"] for upload in uploads]
        steps = [steps_added_up(upload.local_steps, self.momentum) for upload in uploads]
        weights = normalised(server.initial, parts, data_shares(uploads), steps)
        return Part(parts[0].spec, weights, parts[0].classes, parts[0].preprocess)

    def start(self, context: Part) -> State:
        return State()

    def phases(self, context: Part) -> Sequence[Phase]:
        return ()

    def result(self, context: Part, state: State) -> Result:
        return Result({"average": context})
