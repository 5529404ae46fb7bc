"""SCAFFOLD: control variates keep clients from drifting towards their own data.

Paper: S. P. Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, ICML 2020, Algorithm 1.

    client k:  y <- x;  K times: y <- y - eta_l (g(y) - c_k + c)         (local/objectives.py, ``control``)
               c_k+ = c_k - c + (x - y) / (K eta_l)                      option II; y and c_k+ - c_k are sent
    server:    x <- x + eta_g mean_k (y_k - x);   c <- c + (|S| / N) mean_k (c_k+ - c_k)

| symbol | here |
|---|---|
| x, c | ``server.initial`` and ``server.memory["control"]``: both are sent to the clients of a round; c = 0 at first and not sent |
| c_k | stays at the client's home |
| S, N | the uploads; ``server.population`` |

Departures: with momentum rho, K steps go as far as ``steps_added_up`` plain ones, and x - y is
divided by that: c_k stays a mean of gradients (the paper has no momentum). BatchNorm statistics
are averaged; they have no control variate. Files of a single round may come without control
variates: nothing but the next round asks for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attar.blocks.ensemble import average
from attar.core import Needs, Part, Phase, Result, Server, State, Upload
from attar.settings import require
from attar.training import CONTROL, Objective


@dataclass(frozen=True)
class Context:
    model: Part
    control: Part | None  # c for the next round


@dataclass(frozen=True)
class Scaffold:
    """Averages models whose local steps were corrected by control variates (Karimireddy et al.
    2020).
    """

    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    cost: ClassVar[str] = "one pass over the weights; twice the bytes of fedavg"

    global_lr: float = 1.0  # eta_g

    def __post_init__(self) -> None:
        require(self)

    @property
    def needs(self) -> Needs:
        # With eta_g = 1 the model that was sent cancels out.
        return Needs(
            same_architecture=True,
            different_classes=False,
            initial=self.global_lr != 1,
            student=False,
        )

    @property
    def objective(self) -> Objective:
        return Objective(control=True)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        parts = [upload.parts["classifier"] for upload in uploads]
        mean = average([part.state for part in parts], torch.ones(len(parts)))
        first = parts[0]
        if self.global_lr != 1:
            assert server.initial is not None, "needs.initial was checked"
            sent = server.initial.state
            for name in first.parameter_names():
                mean[name] = sent[name].cpu() + self.global_lr * (mean[name] - sent[name].cpu())
        return Context(
            Part(first.spec, mean, first.classes, first.preprocess), self._control(uploads, server)
        )

    def _control(self, uploads: Sequence[Upload], server: Server) -> Part | None:
        """c + (|S| / N) mean_k (c_k+ - c_k)."""
        changes = [upload.parts[CONTROL] for upload in uploads if CONTROL in upload.parts]
        if not changes:
            return server.memory.get(CONTROL)
        share = len(changes) / (server.population or len(uploads))
        mean = average([change.state for change in changes], torch.ones(len(changes)))
        before, control = server.memory.get(CONTROL), dict[str, Tensor]()
        for name, value in mean.items():
            step = share * value if value.is_floating_point() else value
            control[name] = step if before is None else before.state[name].cpu() + step
        return Part(changes[0].spec, control, changes[0].classes, changes[0].preprocess)

    def start(self, context: Context) -> State:
        return State()

    def phases(self, context: Context) -> Sequence[Phase]:
        return ()

    def result(self, context: Context, state: State) -> Result:
        return Result(
            {"average": context.model},
            memory={} if context.control is None else {CONTROL: context.control},
        )
