"""What a method asks of local training beside the cross entropy, as plain terms that may be
combined.

A round method names its ``objective``; a method that names none is content with plain training.

| field | gradient | sent beside the model | kept at home |
|---|---|---|---|
| ``proximal`` (FedProx) | g + mu (w - w_t), that of (mu / 2) ||w - w_t||^2 | | |
| ``control`` (SCAFFOLD) | g - c_k + c | part "control": c_k+ - c_k | part "control": c_k+ |
| ``momentum`` (FedNova) | g, by SGD whose momentum the server knows | | |
| ``mutual`` (FedKEM) | of two nets that teach each other, see ``mutual.py`` | the knowledge network alone | the deployed model |

w_t and c come from the server (what was received), c_k from home.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch

from attar.blocks.ensemble import steps_added_up
from attar.core import AnyMethod, ModelSpec, Part, Upload
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining

CONTROL = "control"  # a part whose tensors are a control variate, one for each parameter

Peer = Literal["updated", "detached", "attached"]
Distance = Literal["kl", "mse"]


@dataclass(frozen=True)
class Mutual:
    """A knowledge network trained beside the deployed model (FedKEM, Algorithm 1).

    ``peer``: "updated", the deployed model steps first and the knowledge network learns from it
    as it is then (Algorithm 1 as printed); "detached", both learn from one pass; "attached",
    gradients flow into the peer, too (the authors' code). ``distance``: the KL divergence of Eq.
    (2), or the mean squared difference of logits (the authors' code).
    """

    knowledge: ModelSpec
    peer: Peer = "updated"
    distance: Distance = "kl"


@dataclass(frozen=True)
class Objective:
    """What clients minimise, send and keep."""

    proximal: float = 0.0  # mu
    control: bool = False
    momentum: float | None = None  # that the server counts on; None: any
    mutual: Mutual | None = None

    @property
    def travels(self) -> str:
        """The part that goes to and fro."""
        return "classifier" if self.mutual is None else "knowledge"

    def problems(self, training: LocalTraining) -> list[str]:
        """Why clients cannot train like this; empty when they can."""
        problems = []
        if self.control and training.init == "separate":
            problems.append(
                "init = separate: control variates are about one model that all clients start from, shared"
            )
        if self.control or self.momentum is not None:
            if training.optimiser != "sgd":
                problems.append(f"optimiser = {training.optimiser}: the method counts steps of sgd")
            if training.schedule != "constant":
                problems.append(
                    f"schedule = {training.schedule}: the method counts steps of one size, constant"
                )
            if training.epochs == 0:
                problems.append("epochs = 0: the method divides by the number of steps")
        if self.momentum is not None and training.momentum != self.momentum:
            problems.append(
                f"momentum = {training.momentum}: the method was told {self.momentum} (its setting momentum)"
            )
        return problems

    def given(
        self,
        starts: Sequence[Tensors],
        received: Mapping[str, Part],
        homes: Sequence[Mapping[str, Part]],
    ) -> dict[str, list[Tensors]]:
        """What the gradients are compared with, a row for each client: w_t, where its training
        starts, and c - c_k.
        """
        given: dict[str, list[Tensors]] = {}
        if self.proximal:
            given["start"] = list(starts)
        if self.control:
            server = received.get(CONTROL)
            rows = zip(starts, homes, strict=True)
            given["correction"] = [
                _correction(start, server, home.get(CONTROL)) for start, home in rows
            ]
        return given

    def bent(self, grads: Tensors, params: Tensors, given: Mapping[str, Tensors]) -> Tensors:
        """The gradients of the cross entropy, made those of this objective."""
        if self.proximal:
            start = given["start"]
            grads = {
                name: grad.add(params[name] - start[name], alpha=self.proximal)
                for name, grad in grads.items()
            }
        if self.control:
            grads = {name: grad + given["correction"][name] for name, grad in grads.items()}
        return grads

    def sent(
        self, received: Mapping[str, Part], trained: Part, steps: int, training: LocalTraining
    ) -> dict[str, Part]:
        """The parts that travel beside the trained model."""
        if not self.control:
            return {}
        travelled = training.lr * steps_added_up(steps, training.momentum)
        return {
            CONTROL: control_change(
                received["classifier"], received.get(CONTROL), trained, travelled
            )
        }

    def kept(self, home: Mapping[str, Part], upload: Upload) -> dict[str, Part]:
        """The parts that stay at home for the next round: c_k+ is c_k and the change that was sent."""
        if not self.control:
            return {}
        change, own = upload.parts[CONTROL], home.get(CONTROL)
        if own is None:
            return {CONTROL: change}
        added = {name: own.state[name].to(value) + value for name, value in change.state.items()}
        return {CONTROL: Part(change.spec, added, change.classes, change.preprocess)}


PLAIN = Objective()


@runtime_checkable
class AsksOfClients(Protocol):
    """A method that wants more of its clients than the cross entropy."""

    @property
    def objective(self) -> Objective: ...


def objective_of(method: AnyMethod) -> Objective:
    return method.objective if isinstance(method, AsksOfClients) else PLAIN


def _correction(start: Tensors, server: Part | None, own: Part | None) -> Tensors:
    """c - c_k of each parameter, both zero at first."""
    correction = {name: torch.zeros_like(value) for name, value in start.items()}
    for control, sign in ((server, 1), (own, -1)):
        if control is not None:
            for name, value in correction.items():
                value.add_(control.state[name].to(value), alpha=sign)
    return correction


def control_change(start: Part, server: Part | None, trained: Part, travelled: float) -> Part:
    """SCAFFOLD's option II: c_k+ - c_k = -c + (x - y) / (K eta), ``travelled`` being K eta; 0
    for what is not learned.
    """
    learned, change = trained.parameter_names(), {}
    for name, value in trained.state.items():
        change[name] = torch.zeros_like(value)
        if name in learned:
            change[name] = (start.state[name].to(value) - value) / travelled
            if server is not None:
                change[name] -= server.state[name].to(value)
    return Part(trained.spec, change, trained.classes, trained.preprocess)
