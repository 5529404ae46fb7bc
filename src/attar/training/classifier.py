"""Local training of classifiers: a stack of clients, equal to training them one by one.

In each epoch every client shuffles its images and goes through them in batches, the last of which
may be smaller. Random numbers are drawn from the run's seed for the client's name and the epoch,
so that a client's result does not depend on who else trains. Dropout is the exception: in a stack
its masks come from one stream for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from attar import seeds
from attar.blocks.execution import Runner, isolate_randomness
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DataError, SettingsError, SpecError
from attar.nets.registry import Shape
from attar.training import stacking
from attar.training.clients import ClientData, check_clients, check_initial, count_labels
from attar.training.early_stopping import (
    StoppingState,
    all_ended,
    best_state,
    keep_best,
    update_best,
)
from attar.training.objectives import PLAIN, Objective
from attar.training.optimisers import Tensors, clip_gradients
from attar.training.options import LocalTraining
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
    validation_scores,
)
from attar.training.sam import perturb_weights
from attar.training.stacking import Call
from attar.training.step import (
    TrainingState,
    Weights,
    apply_gradients,
    choose_runner,
    compute_gradients,
    fetch_weights,
    start_state,
    weights_from,
    weights_of,
)


@dataclass(frozen=True)
class ClassifierTraining:
    """The training of K clients of one architecture.

    It is used like a method: ``start``, ``phases``, and at the end ``uploads``. A step of its one
    phase trains epoch ``state.step``; whoever drives the phase increments ``state.step``.

    Attributes:
        clients: With one image shape and one class list.
        spec: The architecture.
        preprocess: How images reach the net.
        training: The hyper-parameters.
        seed: Decides everything that is random.
        device: Where they train.
        initial: A model that every client starts from; None for fresh nets.
        objective: What the method asks for beside the cross entropy.
        round_input: What a round adds.
        run: Executes steps; as is fastest on the device unless given.

    Raises:
        DataError: There is no client, or their images or classes differ.
        SpecError: The net is no classifier, or ``initial`` does not fit.
        SettingsError: The settings do not fit the objective.
    """

    clients: Sequence[ClientData]
    spec: ModelSpec
    preprocess: Preprocess
    training: LocalTraining
    seed: int = 0
    device: str = "cpu"
    initial: Part | None = None
    objective: Objective = PLAIN
    round_input: RoundInput = ONLY_ROUND
    run: Runner | None = None

    def __post_init__(self) -> None:
        check_clients(self.clients)
        if not self.clients:
            raise DataError("There is no client to train.")
        if len({(client.image_shape, client.classes) for client in self.clients}) > 1:
            raise DataError(
                "Clients with different image shapes or class lists do not train as one stack.",
                problems=[
                    f"{client.name}: {client.image_shape}, {len(client.classes)} classes"
                    for client in self.clients
                ],
                fix="call train_classifiers, which groups them",
            )
        if self.spec.kind != "classifier":
            raise SpecError(
                f"{self.spec} is a {self.spec.kind}, not a classifier.",
                fix="train it with --kind cvae",
            )
        if self.initial is not None:
            check_initial(self.initial, [(client.name, self.spec) for client in self.clients])
            if self.initial.preprocess != self.preprocess:
                raise SpecError(
                    "The model to start from prepares its images differently.",
                    fix="use its preprocess",
                )
        if problems := self.objective.problems(self.training):
            raise SettingsError("Local training that does not fit the method:", problems=problems)

    @cached_property
    def _order(self) -> StackOrder:
        return order_clients(self.clients, self.training, self.seed)

    @property
    def ordered(self) -> tuple[ClientData, ...]:
        """The clients in the order of the stack."""
        return self._order.clients

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

    def build_code(self) -> nn.Module:
        """Return the net for its layers; its weights are not used."""
        return self._build(0)

    def _build(self, seed: int) -> nn.Module:
        return self.spec.build(self.preprocess.input_shape, len(self.clients[0].classes), seed)

    def start(self) -> TrainingState:
        """Return the state before the first step.

        Fresh weights are the same for all clients, or each client's own. The same holds for the
        fresh head that those of ``initial`` get where the classes differ.
        """
        weights = self._initial_weights()
        client_state = self.round_input.client_state
        references = self.objective.references(
            [params for params, _ in weights],
            self.round_input.broadcast,
            [client_state.get(name, {}) for name in self._order.names],
        )
        if self.round_input.resident is None:
            state = start_state(weights, self.training, self.device, references)
            return keep_best(state) if self.training.patience else state
        return self.round_input.resident.start_state(weights, self.training, references)

    def _initial_weights(self) -> list[Weights]:
        clients = self._order.clients
        if self.initial is not None:
            return self._from_initial(self.initial, clients)
        if self.training.init == "shared":
            return [weights_of(self._build(seeds.derive(self.seed, "init")))] * len(clients)
        return [
            weights_of(self._build(seeds.derive(self.seed, "init", client.name)))
            for client in clients
        ]

    def _from_initial(self, initial: Part, clients: Sequence[ClientData]) -> list[Weights]:
        """The weights of ``initial``; a head for other classes is shared, or each client's own."""
        net, classes = self._resident.net, clients[0].classes
        if self.training.init == "shared":
            shared = initial.for_classes(classes, seeds.derive(self.seed, "head"))
            return [weights_from(net, shared.state)] * len(clients)
        parts = [
            initial.for_classes(classes, seeds.derive(self.seed, "head", client.name))
            for client in clients
        ]
        return [weights_from(net, part.state) for part in parts]

    def phases(self) -> Sequence[Phase]:
        """Return the one phase, whose steps are epochs."""
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """Train all clients for one epoch.

        Returns:
            The mean loss, and the mean accuracy on images that are held out, where there are any.
            Nothing once all clients have ended early.
        """
        if all_ended(state):
            return {}
        resident = self._resident
        images = resident.images.select(self._order.names)
        # each round has random orders of its own
        epoch = (self.round_input.round - 1) * self.training.epochs + state.step
        batches = epoch_batches(
            resident, images, epoch, self.training, self.preprocess, self.seed, state.dtype
        )
        loss = EpochLoss(images)
        with isolate_randomness(resident.device):
            for call, inputs, labels in batches:
                loss.add(call, self._step(state, call, inputs, labels))
        metrics: dict[str, float | Tensor] = {"loss": loss.mean()}
        if self.training.validation:
            names = self._order.names
            scores = validation_scores(resident, names, state, self.preprocess)
            if isinstance(state, StoppingState):
                update_best(state, names, scores, self.training.patience)
            if scores:
                metrics["accuracy"] = torch.stack([share for share, _ in scores.values()]).mean()
        return metrics

    def _step(self, state: TrainingState, call: Call, inputs: Tensor, labels: Tensor) -> Tensor:
        """Take one step for the clients of a call, in place; return their losses before it."""
        resident = self._resident
        net = resident.net
        training = self.training
        params = resident.slicer(state.params, call)
        buffers = resident.slicer(state.buffers, call)
        references = {
            name: resident.slicer(values, call) for name, values in state.references.items()
        }

        def gradients(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:
            grads: Tensors
            losses, grads = stacking.cross_entropy_gradients(net, params, buffers, inputs, labels)
            if training.sam:
                perturbed = perturb_weights(params, grads, training.sam)
                # running statistics follow the first pass alone
                copies = {name: buffer.clone() for name, buffer in buffers.items()}
                _, grads = stacking.cross_entropy_gradients(net, perturbed, copies, inputs, labels)
            grads = self.objective.modify_gradients(grads, params, references)
            if training.clip is not None:
                grads = clip_gradients(grads, training.clip)
            return losses, grads

        run = choose_runner(resident.run, call, training.batch_size)
        losses, grads = compute_gradients(gradients, (inputs, labels), state, call, run)
        lr = training.rate(state.step)
        apply_gradients(grads, state, call, training, lr, slicer=resident.slicer)
        return losses

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the outcome, but the images, the seed and the clients."""
        initial = None if self.initial is None else self.initial.fingerprint()
        return {"net": str(self.spec), "training": self.training.describe(), "initial": initial}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Return the accuracy of each client on the images that it holds out, by name.

        Clients too small to hold any image out are absent.
        """
        accuracies = validation_accuracies(
            self._resident, self._order.names, best_state(state), self.preprocess
        )
        names = [client.name for client in self.clients if client.name in accuracies]
        return {name: float(accuracies[name]) for name in names}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """Return what each client sends, in the order of ``clients``.

        Args:
            state: After training.
            withhold_counts: Whether to leave out the number of images of each class. Numbers are
                those of the images trained on, without those held out.
        """
        state = best_state(state)
        net = self._build(0).to(state.dtype)
        fetched = fetch_weights(state, len(self.clients))
        steps = state.counts.tolist()
        uploads = {}
        for index, client in enumerate(self._order.clients):
            # not strict: neither tied weights nor buffers that are not stored have both keys
            net.load_state_dict({name: rows[index] for name, rows in fetched.items()}, strict=False)
            weights = {name: value.clone() for name, value in net.state_dict().items()}
            part = Part(self.spec, weights, client.classes, self.preprocess)
            extra_parts = self.objective.extra_parts(
                self.round_input.broadcast, part, steps[index], self.training
            )
            labels = self._order.training_labels(client)
            uploads[client.name] = Upload(
                client=client.name,
                parts={"classifier": part, **extra_parts},
                num_examples=len(labels),
                label_counts=None if withhold_counts else count_labels(labels, client.classes),
                round=self.round_input.round,
                local_steps=steps[index],
            )
        return [uploads[client.name] for client in self.clients]

    def next_client_states(
        self, state: TrainingState, uploads: Sequence[Upload]
    ) -> dict[str, dict[str, Part]]:
        """Return the parts that each client stores for the next round, by client.

        Clients that store nothing are absent: all of them, unless the objective needs it.

        Args:
            state: After training.
            uploads: What the clients send.
        """
        client_states = {}
        for upload in uploads:
            stored = self.round_input.client_state.get(upload.client, {})
            if parts := self.objective.next_client_state(stored, upload):
                client_states[upload.client] = parts
        return client_states


def fresh_preprocess(spec: ModelSpec, image_shape: Shape, training: LocalTraining) -> Preprocess:
    """Return how images of this shape reach a net that starts fresh.

    Args:
        spec: The architecture.
        image_shape: Of the clients' images, which the net sees in their own size.
        training: Says whether pixels are centred.

    Raises:
        SpecError: The net cannot be built for that shape.
    """
    spec.skeleton(image_shape, num_classes=2)
    if training.normalise == "plain":
        return Preprocess.plain(image_shape)
    return Preprocess.centred(image_shape)
