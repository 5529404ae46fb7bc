"""SCAFFOLD: control variates keep clients from drifting towards their own data.

Paper: S. P. Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, ICML 2020, Algorithm 1.

    client k:  y <- x;  K times: y <- y - eta_l (g(y) - c_k + c)
               c_k+ = c_k - c + (x - y) / (K eta_l)           option II; y and c_k+ - c_k are sent
    server:    x <- x + eta_g mean_k (y_k - x)
               c <- c + (|S| / N) mean_k (c_k+ - c_k)

The client's half is in training/objectives.py (``control``).

| symbol | here |
|---|---|
| x | ``server.initial``, sent to the clients of a round |
| c | ``server.memory["control"]``, sent with x; 0 and not sent at first |
| c_k | stays with the client |
| S, N | the uploads; ``server.population`` |

Departures:

- With momentum rho, K steps go as far as ``effective_steps`` plain ones, and x - y is divided by
  that: c_k remains a mean of gradients. The paper has no momentum.
- BatchNorm statistics are averaged; they have no control variate.
- Uploads of a single round may come without control variates, which only the next round needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attar.blocks.ensemble import average
from attar.core import Needs, Part, Result, Server, State, Upload
from attar.methods.without_phases import no_phases, no_state
from attar.settings import Positive, settings
from attar.training import CONTROL, Objective


@dataclass(frozen=True)
class Context:
    """The fused model x, and c for the next round; None where no client sent a control variate."""

    model: Part
    control: Part | None


@settings()
@dataclass(frozen=True)
class Scaffold:
    """Averages models whose local steps control variates corrected (Karimireddy et al. 2020).

    The client's half is the term ``control`` of training/objectives.py.
    """

    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    cost: ClassVar[str] = "one pass over the weights; twice the bytes of fedavg"

    global_lr: Positive = 1.0  # eta_g

    @property
    def needs(self) -> Needs:
        """The model x that was sent, unless eta_g = 1, with which it cancels out."""
        return Needs(
            same_architecture=True,
            different_classes=False,
            initial=self.global_lr != 1,
            student=False,
        )

    @property
    def objective(self) -> Objective:
        """The clients' gradients are corrected by control variates."""
        return Objective(control=True)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """The new model x and the new control variate c."""
        return Context(self._model(uploads, server), self._control(uploads, server))

    def _model(self, uploads: Sequence[Upload], server: Server) -> Part:
        """x + eta_g mean_k (y_k - x)."""
        parts = [upload.parts["classifier"] for upload in uploads]
        model = average([part.state for part in parts], torch.ones(len(parts)))  # mean_k y_k
        if self.global_lr != 1:
            assert server.initial is not None, "needs.initial was checked"
            sent = server.initial.state  # x
            for name in parts[0].parameter_names():
                start = sent[name].cpu()
                model[name] = start + self.global_lr * (model[name] - start)
        return replace(parts[0], state=model)

    def _control(self, uploads: Sequence[Upload], server: Server) -> Part | None:
        """c + (|S| / N) mean_k (c_k+ - c_k)."""
        before = server.memory.get(CONTROL)  # c
        changes = [upload.parts[CONTROL] for upload in uploads if CONTROL in upload.parts]
        if not changes:
            return before
        share = len(changes) / (server.population or len(uploads))  # |S| / N
        mean = average([change.state for change in changes], torch.ones(len(changes)))
        control: dict[str, Tensor] = {}
        for name, value in mean.items():
            step = share * value if value.is_floating_point() else value
            control[name] = step if before is None else before.state[name].cpu() + step
        return replace(changes[0], state=control)

    start = no_state
    phases = no_phases

    def result(self, context: Context, state: State) -> Result:
        """The new model; c is kept for the next round."""
        return Result(
            {"average": context.model},
            memory={} if context.control is None else {CONTROL: context.control},
        )
