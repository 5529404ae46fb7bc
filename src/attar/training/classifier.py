"""Local training of classifiers: clients of one architecture as one stacked program, equal to
training them one by one.

Each epoch every client shuffles its images and walks over them in batches, the last of which may
be smaller. What is random is drawn from the run's seed for the client's name and the epoch, so
that a client's result does not depend on who else trains. (Dropout is the exception: in a stack
its masks come from one stream for all.)
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from attar import seeds
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DataError, SettingsError, SpecError
from attar.nets.registry import Shape
from attar.training import sam, stacking
from attar.training.clients import ClientData, check_clients, check_initial, checked_groups
from attar.training.objectives import PLAIN, Objective
from attar.training.optimisers import Tensors
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
from attar.training.step import TrainingState, at_hand, row_from, row_of, start_state, step

__all__ = [
    "ClassifierTraining",
    "ClientData",
    "LocalTraining",
    "TrainingState",
    "Watch",
    "fresh_preprocess",
    "group_clients",
    "train_classifiers",
]

ALONE = Visit()


@dataclass(frozen=True)
class ClassifierTraining:
    """One architecture, K clients. Like a method: ``start``, ``phases``, and at the end ``uploads``.

    A phase's step trains epoch ``state.step``; whoever drives the phase counts ``state.step``
    on.
    """

    clients: Sequence[ClientData]
    spec: ModelSpec
    preprocess: Preprocess
    training: LocalTraining
    seed: int = 0
    device: str = "cpu"
    initial: Part | None = None  # a model to start from, for every client
    objective: Objective = PLAIN
    visit: Visit = ALONE  # what a round adds

    def __post_init__(self) -> None:
        check_clients(self.clients)
        if not self.clients:
            raise DataError("There is no client to train.")
        if len({(client.image_shape, client.classes) for client in self.clients}) > 1:
            raise DataError(
                "Clients with different image shapes or class lists do not train as one stack.",
                problems=[
                    f"{c.name}: {c.image_shape}, {len(c.classes)} classes" for c in self.clients
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

    def code(self) -> nn.Module:
        """The net, for its layers."""
        return self._build(0)

    def _build(self, seed: int) -> nn.Module:
        return self.spec.build(self.preprocess.input_shape, len(self.clients[0].classes), seed)

    def start(self) -> TrainingState:
        """Fresh weights, the same for all or each client's own; or those of ``initial``, for
        other classes with one fresh head.
        """
        if self.initial is not None:
            initial = self.initial.for_classes(
                self.clients[0].classes, seeds.derive(self.seed, "head")
            )
            rows = [row_from(self._place.net, initial.state)] * len(self.clients)
        elif self.training.init == "shared":
            rows = [row_of(self._build(seeds.derive(self.seed, "init")))] * len(self.clients)
        else:
            rows = [
                row_of(self._build(seeds.derive(self.seed, "init", client.name)))
                for client in self._seating.ordered
            ]
        homes = [self.visit.homes.get(name, {}) for name in self._seating.names]
        given = self.objective.given([params for params, _ in rows], self.visit.received, homes)
        if self.visit.workplace is None:
            return start_state(rows, self.training, self.device, given)
        return self.visit.workplace.seat(rows, self.training, given)

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """One epoch of all clients: mean loss, and mean accuracy on the images kept back where
        there are any.
        """
        epoch = (
            self.visit.round - 1
        ) * self.training.epochs + state.step  # a new round shuffles otherwise
        lr, dtype = self.training.rate(state.step), next(iter(state.params.values())).dtype

        def take(call: Call, images: Tensor, labels: Tensor) -> Tensor:
            return self._step(state, call, images, labels, lr)

        place, training = self._place, self.training
        loss = one_epoch(
            place, self._seating.names, epoch, training, self.preprocess, self.seed, dtype, take
        )
        metrics: dict[str, float | Tensor] = {"loss": loss}
        if training.validation and (measured := list(self._accuracies(state).values())):
            metrics["accuracy"] = torch.stack(measured).mean()
        return metrics

    def _step(
        self, state: TrainingState, call: Call, images: Tensor, labels: Tensor, lr: float
    ) -> Tensor:
        """One gradient step of a slice of clients, in place; their losses before it."""
        settings, net, view = self.training, self._place.net, self._place.view
        params, buffers = view(state.params, call), view(state.buffers, call)
        given = {name: view(values, call) for name, values in state.given.items()}

        def gradients(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:
            losses, grads = stacking.gradients(net, params, buffers, images, labels)
            if settings.sam:
                apart = {
                    name: buffer.clone() for name, buffer in buffers.items()
                }  # statistics follow the first pass alone
                climbed = sam.climb(params, grads, settings.sam)
                _, grads = stacking.gradients(net, climbed, apart, images, labels)
            return losses, self.objective.bent(grads, params, given)

        return step(
            settings, state, call, self._place.run, gradients, (images, labels), lr, view=view
        )

    def _accuracies(self, state: TrainingState) -> dict[str, Tensor]:
        return kept_accuracies(self._place, self._seating.names, state, self.preprocess)

    def describe(self) -> dict[str, Any]:
        """Everything about it that decides the outcome, but the images."""
        initial = None if self.initial is None else self.initial.fingerprint()
        return {"net": str(self.spec), "training": asdict(self.training), "initial": initial}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Accuracy of each client on the images it kept back; clients too small to keep any are absent."""
        measured = self._accuracies(state)
        return {c.name: float(measured[c.name]) for c in self.clients if c.name in measured}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """What each client sends, in the order of ``clients``. Examples are those trained on,
        not those kept back.
        """
        net = self._build(0).to(next(iter(state.params.values())).dtype)
        steps = state.counts.tolist()
        by_name, fetched = {}, at_hand(state, len(self.clients))
        for index, client in enumerate(self._seating.ordered):
            own = {name: value[index] for name, value in fetched.items()}
            net.load_state_dict(
                own, strict=False
            )  # neither tied weights nor passing buffers have keys on both sides
            weights = {name: value.clone() for name, value in net.state_dict().items()}
            part = Part(self.spec, weights, client.classes, self.preprocess)
            labels = self._seating.train_labels(client)
            counts = (
                None
                if withhold_counts
                else tuple(labels.bincount(minlength=len(client.classes)).tolist())
            )
            beside = self.objective.sent(self.visit.received, part, steps[index], self.training)
            by_name[client.name] = Upload(
                client.name,
                {"classifier": part, **beside},
                len(labels),
                counts,
                self.visit.round,
                steps[index],
            )
        return [by_name[client.name] for client in self.clients]

    def homes(self, state: TrainingState, uploads: Sequence[Upload]) -> dict[str, dict[str, Part]]:
        """What each client keeps for the next round; nothing, unless the objective remembers something."""
        found = {
            u.client: self.objective.kept(self.visit.homes.get(u.client, {}), u) for u in uploads
        }
        return {name: parts for name, parts in found.items() if parts}


Watch = Callable[[ClassifierTraining, TrainingState, Metrics], None]


def fresh_preprocess(spec: ModelSpec, image_shape: Shape, training: LocalTraining) -> Preprocess:
    """Of a net that starts fresh, in the images' own shape; one that cannot be built for that
    shape says so here.
    """
    spec.skeleton(image_shape, num_classes=2)
    return (
        Preprocess.plain(image_shape)
        if training.normalise == "plain"
        else Preprocess.centred(image_shape)
    )


def group_clients(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    training: LocalTraining,
    *,
    seed: int = 0,
    device: str = "cpu",
    initial: Part | None = None,
) -> list[ClassifierTraining]:
    """The stacks that train together: clients of one spec (``specs`` has one for each), image
    shape and class list.
    """
    groups = checked_groups(clients, specs)
    if initial is not None:
        check_initial(
            initial, [(c.name, spec) for (spec, _, _), some in groups.items() for c in some]
        )
    return [
        ClassifierTraining(
            members,
            spec,
            initial.preprocess if initial is not None else fresh_preprocess(spec, shape, training),
            training,
            seed,
            device,
            initial,
        )
        for (spec, shape, _), members in groups.items()
    ]


def train_classifiers(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec | str],
    training: LocalTraining,
    *,
    seed: int = 0,
    device: str = "cpu",
    initial: Part | None = None,
    withhold_counts: bool = False,
    watch: Watch | None = None,
) -> list[Upload]:
    """Train every client to the end; uploads in the clients' order. ``watch`` sees the metrics
    after each epoch.

    ``specs`` has a net for each client, or its name.
    """
    nets = [ModelSpec.parse(spec) if isinstance(spec, str) else spec for spec in specs]
    uploads = {}
    for stack in group_clients(clients, nets, training, seed=seed, device=device, initial=initial):
        state = stack.start()
        for number, phase in enumerate(stack.phases()):
            state.phase, state.step = number, 0
            for _ in range(phase.steps):
                metrics = phase.step(state)
                state.step += 1
                if watch is not None:
                    watch(stack, state, metrics)
        uploads.update(
            {
                upload.client: upload
                for upload in stack.uploads(state, withhold_counts=withhold_counts)
            }
        )
    return [uploads[client.name] for client in clients]
