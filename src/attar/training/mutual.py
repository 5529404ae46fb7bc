"""Mutual learning of deployed model and knowledge network (FedKEM 3.1 and Algorithm 1).

    L_theta = CE(theta(x), y) + KL(theta_g(x) || theta(x))                         (1), (2), (3)
    for each batch:
        theta   <- theta   - eta gradient of L_theta
        theta_g <- theta_g - eta gradient of L_theta_g, likewise

The knowledge network theta_g starts from what the server sent and is all that is uploaded. The
client stores the deployed model theta, and continues from it when it is asked again. Both nets of
all clients of one architecture are one stack. A batch of it is in ``pairs.py``.

**Departures.** (1) and (2) are printed as sums over the batch, the mean is taken here: the size of
a batch does not change the step. ``peer`` and ``distance`` of ``Mutual`` (``objectives.py``) choose
between the printed algorithm and the authors' code.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from attar import seeds
from attar.blocks.execution import Runner, isolate_randomness
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DataError, SettingsError, SpecError
from attar.training.clients import ClientData, check_clients, check_initial, count_labels
from attar.training.objectives import Mutual
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining
from attar.training.pairs import DEPLOYED, KNOWLEDGE, NetPair, PairSteps
from attar.training.resident import (
    ONLY_ROUND,
    EpochLoss,
    ResidentClients,
    RoundInput,
    StackOrder,
    epoch_batches,
    load_clients,
    order_clients,
    validation_accuracies,
)
from attar.training.step import (
    TrainingState,
    Weights,
    fetch_weights,
    start_state,
    weights_from,
    weights_of,
)


@dataclass(frozen=True)
class MutualTraining:
    """The training of K clients with deployed models of one architecture.

    It works like ``ClassifierTraining``, but the knowledge network is what is sent.

    Attributes:
        clients: With one image shape and one class list.
        spec: The architecture of the deployed model.
        preprocess: How images reach both nets.
        training: The hyper-parameters of both nets.
        mutual: The knowledge network, and how the nets learn from each other.
        seed: Decides everything that is random.
        device: Where they train.
        round_input: What a round adds.
        run: Executes steps; as is fastest on the device unless given.

    Raises:
        DataError: There is no client, or their images or classes differ.
        SpecError: A net is no classifier, or what the server sent does not fit.
        SettingsError: A setting has no meaning for mutual learning.
    """

    clients: Sequence[ClientData]
    spec: ModelSpec
    preprocess: Preprocess
    training: LocalTraining
    mutual: Mutual
    seed: int = 0
    device: str = "cpu"
    round_input: RoundInput = ONLY_ROUND
    run: Runner | None = None

    def __post_init__(self) -> None:
        check_clients(self.clients)
        kinds = {(client.image_shape, client.classes) for client in self.clients}
        if len(kinds) != 1:
            raise DataError("A stack needs clients, all with one image shape and one class list.")
        for spec in (self.spec, self.mutual.knowledge):
            if spec.kind != "classifier":
                raise SpecError(f"{spec} is a {spec.kind}: mutual learning takes two classifiers.")
        if self.training.sam:
            raise SettingsError("sam: mutual learning has none.", fix="leave it out")
        sent = self.round_input.broadcast.get(KNOWLEDGE)
        if sent is not None:
            check_initial(sent, [(client.name, self.mutual.knowledge) for client in self.clients])

    @cached_property
    def _order(self) -> StackOrder:
        return order_clients(self.clients, self.training, self.seed)

    @cached_property
    def _resident(self) -> ResidentClients:
        return self.round_input.resident or load_clients(
            self.clients,
            self.build_code(),
            self.preprocess,
            self.training,
            seed=self.seed,
            device=self.device,
            run=self.run,
        )

    def build_code(self) -> NetPair:
        """Return the nets for their layers; their weights are not used."""
        return NetPair(self._build(self.spec, 0), self._build(self.mutual.knowledge, 0))

    def _build(self, spec: ModelSpec, seed: int) -> nn.Module:
        return spec.build(self.preprocess.input_shape, len(self.clients[0].classes), seed)

    def start(self) -> TrainingState:
        """Return the state before the first step.

        Deployed models are those that the clients stored, or fresh; the knowledge network is what
        the server sent, or fresh.
        """
        pair = self._resident.net
        assert isinstance(pair, NetPair)
        sent = self.round_input.broadcast.get(KNOWLEDGE)
        if sent is None:
            seed = seeds.derive(self.seed, KNOWLEDGE)
            knowledge = weights_of(self._build(self.mutual.knowledge, seed))
        else:
            sent = sent.for_classes(self.clients[0].classes, seeds.derive(self.seed, "head"))
            knowledge = weights_from(pair.knowledge, sent.state)
        weights = [_join(deployed, knowledge) for deployed in self._deployed_weights(pair)]
        if self.round_input.resident is None:
            return start_state(weights, self.training, self.device)
        return self.round_input.resident.start_state(weights, self.training, {})

    def _deployed_weights(self, pair: NetPair) -> list[Weights]:
        weights = []
        shared: Weights | None = None
        for name in self._order.names:
            stored = self.round_input.client_state.get(name, {}).get(DEPLOYED)
            if stored is not None:
                weights.append(weights_from(pair.deployed, stored.state))
            elif self.training.init == "separate":
                seed = seeds.derive(self.seed, "init", name)
                weights.append(weights_of(self._build(self.spec, seed)))
            else:
                if shared is None:
                    seed = seeds.derive(self.seed, "init")
                    shared = weights_of(self._build(self.spec, seed))
                weights.append(shared)
        return weights

    def phases(self) -> Sequence[Phase]:
        """Return the one phase, whose steps are epochs."""
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """Train all clients for one epoch; return the mean loss of the deployed models."""
        resident = self._resident
        images = resident.images.select(self._order.names)
        # each round has random orders of its own
        epoch = (self.round_input.round - 1) * self.training.epochs + state.step
        batches = epoch_batches(
            resident, images, epoch, self.training, self.preprocess, self.seed, state.dtype
        )
        assert isinstance(resident.net, NetPair)
        pairs = PairSteps(
            net=resident.net,
            mutual=self.mutual,
            training=self.training,
            slicer=resident.slicer,
            run=resident.run,
            rest_run=resident.rest_run,
        )
        loss = EpochLoss(images)
        with isolate_randomness(resident.device):
            for call, inputs, labels in batches:
                loss.add(call, pairs.step(state, call, inputs, labels))
        return {"loss": loss.mean()}

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the outcome, but the images, the seed and the clients."""
        mutual = {**asdict(self.mutual), "knowledge": str(self.mutual.knowledge)}
        return {"net": str(self.spec), "training": self.training.describe(), "mutual": mutual}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Return the accuracy of each client's deployed model on the images that it holds out."""
        accuracies = validation_accuracies(
            self._resident,
            self._order.names,
            state,
            self.preprocess,
            choose_logits=lambda pair: pair[0],
        )
        names = [client.name for client in self.clients if client.name in accuracies]
        return {name: float(accuracies[name]) for name in names}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """Return what each client sends, in the order of ``clients``: the knowledge network."""
        fetched = fetch_weights(state, len(self.clients), f"{KNOWLEDGE}.")
        steps = state.counts.tolist()
        uploads = {}
        for index, client in enumerate(self._order.clients):
            labels = self._order.training_labels(client)
            uploads[client.name] = Upload(
                client=client.name,
                parts={KNOWLEDGE: self._part(fetched, index, KNOWLEDGE, client)},
                num_examples=len(labels),
                label_counts=None if withhold_counts else count_labels(labels, client.classes),
                round=self.round_input.round,
                local_steps=steps[index],
            )
        return [uploads[client.name] for client in self.clients]

    def next_client_states(
        self, state: TrainingState, uploads: Sequence[Upload]
    ) -> dict[str, dict[str, Part]]:
        """Return what each client stores: its deployed model, on the device."""
        weights = {**state.params, **state.buffers}
        return {
            client.name: {DEPLOYED: self._part(weights, row, DEPLOYED, client)}
            for row, client in enumerate(self._order.clients)
        }

    def _part(self, weights: Tensors, index: int, net: str, client: ClientData) -> Part:
        """Return one net of one client."""
        spec = self.mutual.knowledge if net == KNOWLEDGE else self.spec
        skeleton = spec.skeleton(self.preprocess.input_shape, len(client.classes))
        state = {name: weights[f"{net}.{name}"][index].clone() for name in skeleton.state_dict()}
        return Part(spec, state, client.classes, self.preprocess)


def _join(deployed: Weights, knowledge: Weights) -> Weights:
    """Return the parameters and buffers of a ``NetPair``."""
    params: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for net, weights in ((DEPLOYED, deployed), (KNOWLEDGE, knowledge)):
        params |= {f"{net}.{name}": value for name, value in weights[0].items()}
        buffers |= {f"{net}.{name}": value for name, value in weights[1].items()}
    return params, buffers
