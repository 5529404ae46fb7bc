"""Deep mutual learning of the deployed model and the knowledge network (FedKEM, section 3.1 and
Algorithm 1).

    L_theta = CE(theta(x), y) + KL(theta_g(x) || theta(x))                                 (1), (2), (3)
    for each batch: theta <- theta - eta gradient of L_theta;  theta_g <- theta_g - eta gradient of L_theta_g, likewise

The knowledge network theta_g starts from what the server sent and is all that is uploaded; the
deployed model theta stays at home and goes on from there when its client is asked again. Both
nets of all clients of one architecture are one stack.

Departures. (1) and (2) are printed as sums over the batch, the mean is taken here: the size of a
batch does not change the step. ``peer`` and ``distance`` of ``Mutual`` (objectives.py) choose
between the printed algorithm and the authors' code.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar import seeds
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DataError, SettingsError, SpecError
from attar.training import stacking
from attar.training.clients import ClientData, check_clients, check_initial
from attar.training.objectives import Distance, Mutual
from attar.training.optimisers import Tensors, clipped
from attar.training.options import LocalTraining
from attar.training.resident import (
    Seating,
    Visit,
    Workplace,
    kept_accuracies,
    one_epoch,
    open_workplace,
    seating,
)
from attar.training.stacking import Call
from attar.training.step import Row, TrainingState, at_hand, row_from, row_of, start_state, step

DEPLOYED, KNOWLEDGE = "deployed", "knowledge"


class Pair(nn.Module):
    """Two nets that see the same images."""

    def __init__(self, deployed: nn.Module, knowledge: nn.Module) -> None:
        super().__init__()
        self.deployed, self.knowledge = deployed, knowledge

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.deployed(images), self.knowledge(images)


def distance(kind: Distance, learner: Tensor, peer: Tensor) -> Tensor:
    """Of each client (K,), logits (K, B, C): Eq. (2), the mean over the batch of KL(peer ||
    learner); or of squared differences.
    """
    if kind == "mse":
        return (learner - peer).square().flatten(1).mean(1)
    divergence = F.kl_div(
        learner.log_softmax(-1), peer.log_softmax(-1), reduction="none", log_target=True
    )
    return divergence.sum(-1).mean(1)


def mutual_loss(kind: Distance, learner: Tensor, peer: Tensor, labels: Tensor) -> Tensor:
    """Eq. (3) of each client, (K,): the cross entropy of Eq. (1) and the distance from its peer."""
    cross_entropy = (
        F.cross_entropy(learner.flatten(0, 1), labels.flatten(), reduction="none")
        .view(labels.shape)
        .mean(1)
    )
    return cross_entropy + distance(kind, learner, peer)


@dataclass(frozen=True)
class MutualTraining:
    """One architecture of deployed models, K clients: like ``ClassifierTraining``, but the
    knowledge network is what is sent.
    """

    clients: Sequence[ClientData]
    spec: ModelSpec  # of the deployed model
    preprocess: Preprocess  # of both nets
    training: LocalTraining
    mutual: Mutual
    seed: int = 0
    device: str = "cpu"
    visit: Visit = Visit()

    def __post_init__(self) -> None:
        check_clients(self.clients)
        if (
            not self.clients
            or len({(client.image_shape, client.classes) for client in self.clients}) > 1
        ):
            raise DataError("A stack wants clients, all with one image shape and one class list.")
        for spec in (self.spec, self.mutual.knowledge):
            if spec.kind != "classifier":
                raise SpecError(f"{spec} is a {spec.kind}: mutual learning takes two classifiers.")
        if self.training.sam:
            raise SettingsError("sam: mutual learning has none.", fix="leave it out")
        if (sent := self.visit.received.get(KNOWLEDGE)) is not None:
            check_initial(sent, [(client.name, self.mutual.knowledge) for client in self.clients])

    @cached_property
    def _seating(self) -> Seating:
        return seating(self.clients, self.training, self.seed)

    @cached_property
    def _place(self) -> Workplace:
        return self.visit.workplace or open_workplace(
            self.clients,
            self.code(),
            self.preprocess,
            self.training,
            seed=self.seed,
            device=self.device,
        )

    def code(self) -> Pair:
        return Pair(self._build(self.spec, 0), self._build(self.mutual.knowledge, 0))

    def _build(self, spec: ModelSpec, seed: int) -> nn.Module:
        return spec.build(self.preprocess.input_shape, len(self.clients[0].classes), seed)

    def start(self) -> TrainingState:
        """The deployed models as they were left at home, or fresh; the knowledge network as the
        server sent it, or fresh.
        """
        pair = self._place.net
        assert isinstance(pair, Pair)
        sent = self.visit.received.get(KNOWLEDGE)
        if sent is None:
            knowledge = row_of(
                self._build(self.mutual.knowledge, seeds.derive(self.seed, KNOWLEDGE))
            )
        else:
            sent = sent.for_classes(self.clients[0].classes, seeds.derive(self.seed, "head"))
            knowledge = row_from(pair.knowledge, sent.state)
        rows = [_joined(deployed, knowledge) for deployed in self._deployed_rows(pair)]
        if self.visit.workplace is None:
            return start_state(rows, self.training, self.device)
        return self.visit.workplace.seat(rows, self.training, {})

    def _deployed_rows(self, pair: Pair) -> list[Row]:
        rows, shared = [], None
        for name in self._seating.names:
            home = self.visit.homes.get(name, {}).get(DEPLOYED)
            if home is not None:
                rows.append(row_from(pair.deployed, home.state))
            elif self.training.init == "separate":
                rows.append(row_of(self._build(self.spec, seeds.derive(self.seed, "init", name))))
            else:
                shared = shared or row_of(self._build(self.spec, seeds.derive(self.seed, "init")))
                rows.append(shared)
        return rows

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """One epoch of all clients: the mean over clients of the deployed model's loss."""
        epoch = (self.visit.round - 1) * self.training.epochs + state.step
        lr, dtype = self.training.rate(state.step), next(iter(state.params.values())).dtype

        def take(call: Call, images: Tensor, labels: Tensor) -> Tensor:
            return self._step(state, call, images, labels, lr)

        loss = one_epoch(
            self._place,
            self._seating.names,
            epoch,
            self.training,
            self.preprocess,
            self.seed,
            dtype,
            take,
        )
        return {"loss": loss}

    def _step(
        self, state: TrainingState, call: Call, images: Tensor, labels: Tensor, lr: float
    ) -> Tensor:
        """Algorithm 1, lines 6 and 7, for a slice of clients; the losses of their deployed
        models before it.
        """
        settings, run = (
            replace(self.training, clip=None),
            self._place.run,
        )  # each net is clipped by itself, see _gradients
        view, kind = self._place.view, self.mutual.distance
        params, buffers = view(state.params, call), view(state.buffers, call)

        def both(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:
            def loss(deployed: Tensor, knowledge: Tensor) -> Tensor:
                peers = (
                    (deployed, knowledge)
                    if self.mutual.peer == "attached"
                    else (deployed.detach(), knowledge.detach())
                )
                own = mutual_loss(kind, deployed, peers[1], labels)
                return torch.stack([own, mutual_loss(kind, knowledge, peers[0], labels)])

            losses, grads = self._gradients(params, buffers, images, loss)
            return losses[0], grads

        def deployed(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:  # line 6
            losses, grads = self._gradients(
                params,
                buffers,
                images,
                lambda mine, peer: mutual_loss(kind, mine, peer.detach(), labels),
                DEPLOYED,
            )
            return losses, grads

        def knowledge(
            images: Tensor, labels: Tensor
        ) -> tuple[Tensor, Tensors]:  # line 7, with the model of line 6
            apart = {
                name: buffer.clone() for name, buffer in buffers.items()
            }  # statistics followed the first pass
            losses, grads = self._gradients(
                params,
                apart,
                images,
                lambda peer, mine: mutual_loss(kind, mine, peer.detach(), labels),
                KNOWLEDGE,
            )
            return losses, grads

        if self.mutual.peer != "updated":
            return step(settings, state, call, run, both, (images, labels), lr, view=view)
        losses = step(settings, state, call, run, deployed, (images, labels), lr, view=view).clone()
        step(
            settings,
            state,
            call,
            run,
            knowledge,
            (images, labels),
            lr,
            part=", knowledge",
            view=view,
        )
        return losses

    def _gradients(
        self,
        params: Tensors,
        buffers: Tensors,
        images: Tensor,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        only: str | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses of both nets' logits and their gradients; with ``only``, those of one net alone."""
        net = self._place.net
        moving = {
            name: value
            for name, value in params.items()
            if only is None or name.startswith(f"{only}.")
        }
        still = {name: value for name, value in params.items() if name not in moving}

        def loss(leaves: Tensors) -> Tensor:
            return loss_of(*stacking.forward(net, {**still, **leaves}, buffers, images))

        losses, grads = stacking.gradients_of(loss, moving)
        if self.training.clip is not None:
            nets = [
                {name: g for name, g in grads.items() if name.startswith(f"{one}.")}
                for one in (DEPLOYED, KNOWLEDGE)
            ]
            grads = {
                name: g
                for own in nets
                if own
                for name, g in clipped(own, self.training.clip).items()
            }
        return losses, grads

    def describe(self) -> dict[str, Any]:
        """Everything about it that decides the outcome, but the images."""
        mutual = {**asdict(self.mutual), "knowledge": str(self.mutual.knowledge)}
        return {"net": str(self.spec), "training": asdict(self.training), "mutual": mutual}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Accuracy of each client's deployed model on the images it kept back."""
        measured = kept_accuracies(
            self._place, self._seating.names, state, self.preprocess, lambda output: output[0]
        )
        return {c.name: float(measured[c.name]) for c in self.clients if c.name in measured}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """What each client sends, in the order of ``clients``: the knowledge network, and
        nothing of the deployed model.
        """
        steps, by_name, fetched = (
            state.counts.tolist(),
            {},
            at_hand(state, len(self.clients), f"{KNOWLEDGE}."),
        )
        for index, client in enumerate(self._seating.ordered):
            part = self._part(fetched, index, KNOWLEDGE, client)
            labels = self._seating.train_labels(client)
            counts = (
                None
                if withhold_counts
                else tuple(labels.bincount(minlength=len(client.classes)).tolist())
            )
            by_name[client.name] = Upload(
                client.name, {KNOWLEDGE: part}, len(labels), counts, self.visit.round, steps[index]
            )
        return [by_name[client.name] for client in self.clients]

    def homes(self, state: TrainingState, uploads: Sequence[Upload]) -> dict[str, dict[str, Part]]:
        """The deployed models, where they were trained: on the device."""
        weights, ordered = {**state.params, **state.buffers}, self._seating.ordered
        return {
            client.name: {DEPLOYED: self._part(weights, row, DEPLOYED, client)}
            for row, client in enumerate(ordered)
        }

    def _part(self, weights: Tensors, index: int, net: str, client: ClientData) -> Part:
        spec = self.mutual.knowledge if net == KNOWLEDGE else self.spec
        wanted = spec.skeleton(self.preprocess.input_shape, len(client.classes)).state_dict()
        own = {name: weights[f"{net}.{name}"][index].clone() for name in wanted}
        return Part(spec, own, client.classes, self.preprocess)


def _joined(deployed: Row, knowledge: Row) -> Row:
    """Parameters and buffers of a ``Pair``."""
    first, second = (
        {
            f"{net}.{name}": value
            for net, row in ((DEPLOYED, deployed), (KNOWLEDGE, knowledge))
            for name, value in row[kind].items()
        }
        for kind in (0, 1)
    )
    return first, second
