"""What a method asks of local training beside the cross entropy: terms that combine.

A round method names its ``objective``; a method that names none asks for plain training.

| field | gradient | sent beside the model | stored by the client |
|---|---|---|---|
| ``proximal`` (FedProx) | g + mu (w - w_t) | | |
| ``control`` (SCAFFOLD) | g - c_k + c | part "control": c_k+ - c_k | part "control": c_k+ |
| ``momentum`` (FedNova) | g, by SGD whose momentum the server knows | | |
| ``mutual`` (FedKEM) | of two nets, see ``mutual.py`` | knowledge network alone | deployed model |

mu (w - w_t) is the gradient of (mu / 2) ||w - w_t||^2. The server broadcasts w_t and c, the client
stores c_k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch

from attar.blocks.ensemble import effective_steps
from attar.core import AnyMethod, ModelSpec, Part, Upload
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining

CONTROL = "control"  # a part whose tensors are a control variate, one for each parameter

Peer = Literal["updated", "detached", "attached", "accumulated"]
Distance = Literal["kl", "mse"]


@dataclass(frozen=True)
class Mutual:
    """A knowledge network trained beside the deployed model (FedKEM, Algorithm 1).

    Attributes:
        knowledge: Its architecture.
        peer: "updated": the deployed model steps first, and the knowledge network learns from it
            as it is then (Algorithm 1 as printed); "detached": both learn from one pass;
            "attached": gradients flow into the peer, too; "accumulated" (the authors' code): the
            deployed model steps first, and the knowledge network keeps the gradient that flowed
            into it then, so that it counts its distance twice: from the deployed model before and
            after that step.
        distance: "kl": the KL divergence of Eq. (2); "mse": the mean squared difference of logits
            (the authors' code).
    """

    knowledge: ModelSpec
    peer: Peer = "updated"
    distance: Distance = "kl"


@dataclass(frozen=True)
class Objective:
    """What clients minimise, send and store for the next round.

    Attributes:
        proximal: mu of FedProx; 0 for none.
        control: Whether gradients are corrected by SCAFFOLD's control variates.
        momentum: The momentum that the server assumes; None for any.
        mutual: A second net to train beside the first; None for none.
    """

    proximal: float = 0.0
    control: bool = False
    momentum: float | None = None
    mutual: Mutual | None = None

    @property
    def exchanged_part(self) -> str:
        """The part that server and clients exchange."""
        return "classifier" if self.mutual is None else "knowledge"

    def problems(self, training: LocalTraining) -> list[str]:
        """Return why clients cannot train like this; an empty list when they can."""
        problems = []
        if self.control and training.init == "separate":
            problems.append(
                "init = separate: control variates need one model that all clients start from, "
                "init = shared"
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
                f"momentum = {training.momentum}: the method assumes {self.momentum} "
                "(its setting momentum)"
            )
        return problems

    def references(
        self,
        starts: Sequence[Tensors],
        broadcast: Mapping[str, Part],
        client_states: Sequence[Mapping[str, Part]],
    ) -> dict[str, list[Tensors]]:
        """Return what the gradients of each client are compared with.

        Args:
            starts: w_t, the parameters that each client starts from.
            broadcast: The parts that the server sent.
            client_states: The parts that each client stored.

        Returns:
            "start": w_t of each client, for ``proximal``; "correction": c - c_k, for ``control``.
        """
        references: dict[str, list[Tensors]] = {}
        if self.proximal:
            references["start"] = list(starts)
        if self.control:
            server = broadcast.get(CONTROL)
            references["correction"] = [
                _correction(start, server, stored.get(CONTROL))
                for start, stored in zip(starts, client_states, strict=True)
            ]
        return references

    def modify_gradients(
        self, grads: Tensors, params: Tensors, references: Mapping[str, Tensors]
    ) -> Tensors:
        """Return the gradients of this objective.

        Args:
            grads: Gradients of the cross entropy, by parameter.
            params: The parameters where they were taken.
            references: What ``references`` returned, stacked.
        """
        if self.proximal:
            start = references["start"]
            grads = {
                name: grad.add(params[name] - start[name], alpha=self.proximal)
                for name, grad in grads.items()
            }
        if self.control:
            correction = references["correction"]
            grads = {name: grad + correction[name] for name, grad in grads.items()}
        return grads

    def extra_parts(
        self, broadcast: Mapping[str, Part], trained: Part, steps: int, training: LocalTraining
    ) -> dict[str, Part]:
        """Return the parts that are sent beside the trained model.

        Args:
            broadcast: The parts that the server sent.
            trained: The trained model.
            steps: How many steps the client took.
            training: Its settings.
        """
        if not self.control:
            return {}
        step_length = training.lr * effective_steps(steps, training.momentum)
        server = broadcast.get(CONTROL)
        change = control_change(broadcast["classifier"], server, trained, step_length)
        return {CONTROL: change}

    def next_client_state(
        self, client_state: Mapping[str, Part], upload: Upload
    ) -> dict[str, Part]:
        """Return the parts that a client stores for the next round.

        For ``control`` this is c_k+, the sum of c_k and the change that was sent.

        Args:
            client_state: The parts that it stored so far.
            upload: What it sends.
        """
        if not self.control:
            return {}
        change = upload.parts[CONTROL]
        stored = client_state.get(CONTROL)
        if stored is None:
            return {CONTROL: change}
        added = {name: stored.state[name].to(value) + value for name, value in change.state.items()}
        return {CONTROL: Part(change.spec, added, change.classes, change.preprocess)}


PLAIN = Objective()


@runtime_checkable
class HasObjective(Protocol):
    """A method that asks its clients for more than the cross entropy."""

    @property
    def objective(self) -> Objective:
        """What it asks for."""
        ...


def get_objective(method: AnyMethod) -> Objective:
    """Return what a method asks of its clients; plain training where it names no objective."""
    return method.objective if isinstance(method, HasObjective) else PLAIN


def _correction(start: Tensors, server: Part | None, client: Part | None) -> Tensors:
    """Return c - c_k of each parameter; a control variate that is not there yet is zero."""
    correction = {name: torch.zeros_like(value) for name, value in start.items()}
    for control, sign in ((server, 1), (client, -1)):
        if control is not None:
            for name, value in correction.items():
                value.add_(control.state[name].to(value), alpha=sign)
    return correction


def control_change(start: Part, server: Part | None, trained: Part, step_length: float) -> Part:
    """Return c_k+ - c_k = -c + (x - y) / (K eta), SCAFFOLD's option II.

    Args:
        start: x, the model that the server sent.
        server: c; None before the first round, which is zero.
        trained: y, the model after training.
        step_length: K eta, the sum of the lengths of all steps.

    Returns:
        A part with zeros for what is not learned.
    """
    learned = trained.parameter_names()
    change = {}
    for name, value in trained.state.items():
        change[name] = torch.zeros_like(value)
        if name in learned:
            change[name] = (start.state[name].to(value) - value) / step_length
            if server is not None:
                change[name] -= server.state[name].to(value)
    return Part(trained.spec, change, trained.classes, trained.preprocess)
