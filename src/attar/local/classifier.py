"""Local training of classifiers: clients of one architecture as one stacked program, equal to training them one by one.

Each epoch every client shuffles its images and walks over them in batches, the last of which may be smaller. What is
random is drawn from the run's seed for the client's name and the epoch, so that a client's result does not depend on
who else trains. (Dropout is the exception: in a stack its masks come from one stream for all.)
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from attar import seeds
from attar.blocks.replay import Run, run_on
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload, fingerprint
from attar.errors import DataError, SpecError
from attar.local import sam, stacking
from attar.local.batches import Resident, canonical
from attar.local.clients import ClientData, check_clients, check_initial, split
from attar.local.descent import TrainingState, start_state, step
from attar.local.optimisers import Tensors
from attar.local.options import LocalTraining
from attar.local.randomness import own_randomness, reseed
from attar.local.stacking import Call, sliced
from attar.nets.registry import Shape

__all__ = [
    "ClassifierTraining",
    "ClientData",
    "LocalTraining",
    "TrainingState",
    "Watch",
    "default_preprocess",
    "group_clients",
    "train_classifiers",
]

EVAL_BATCH = 512


@dataclass(frozen=True)
class _Ready:
    """What an epoch needs and does not change: made once, never saved."""

    net: nn.Module  # lends its code; the weights are those of the state
    train: Resident
    kept: tuple[tuple[Tensor, Tensor], ...]  # each client's validation pixels and labels
    width: int
    run: Run


@dataclass(frozen=True)
class ClassifierTraining:
    """One architecture, K clients. Like a method: ``start``, ``phases``, and at the end ``uploads``.

    A phase's step trains epoch ``state.step``; whoever drives the phase counts ``state.step`` on.
    """

    clients: Sequence[ClientData]
    spec: ModelSpec
    preprocess: Preprocess
    training: LocalTraining
    seed: int = 0
    device: str = "cpu"
    initial: Part | None = None  # a model to start from, for every client

    def __post_init__(self) -> None:
        check_clients(self.clients)
        if not self.clients:
            raise DataError("There is no client to train.")
        if len({(client.image_shape, client.classes) for client in self.clients}) > 1:
            raise DataError(
                "Clients with different image shapes or class lists do not train as one stack.",
                problems=[f"{c.name}: {c.image_shape}, {len(c.classes)} classes" for c in self.clients],
                fix="call train_classifiers, which groups them",
            )
        if self.spec.kind != "classifier":
            raise SpecError(f"{self.spec} is a {self.spec.kind}, not a classifier.", fix="train it with --kind cvae")
        if self.initial is not None:
            check_initial(self.initial, [(client.name, self.spec) for client in self.clients])
            if self.initial.preprocess != self.preprocess:
                raise SpecError("The model to start from prepares its images differently.", fix="use its preprocess")

    @cached_property
    def ordered(self) -> tuple[ClientData, ...]:
        """The clients as they lie in the stack: by number of training images, largest first, then by name."""
        return tuple(sorted(self.clients, key=lambda client: (-len(self._splits[client.name][0]), client.name)))

    @cached_property
    def _splits(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {client.name: split(client, self.training.validation, self.seed) for client in self.clients}

    @cached_property
    def _ready(self) -> _Ready:
        net = self._build(0).train()
        shape = self.preprocess.input_shape
        batch = min(self.training.batch_size, max(len(train) for train, _ in self._splits.values()))
        width = stacking.width(self.training.stack, net, len(self.clients), batch, shape, self.device)
        chosen = [self._splits[client.name][0] for client in self.ordered]
        kept = []
        for client in self.ordered:
            rows = self._splits[client.name][1]
            kept.append((client.pixels[rows].to(self.device), client.labels[rows].to(self.device)))
        resident = Resident.of(self.ordered, chosen, self.device)
        return _Ready(net.to(self.device), resident, tuple(kept), width, run_on(self.device))

    def _build(self, seed: int) -> nn.Module:
        return self.spec.build(self.preprocess.input_shape, len(self.clients[0].classes), seed)

    def start(self) -> TrainingState:
        """Fresh weights, the same for all or each client's own; or those of ``initial``, for other classes with one fresh head."""
        if self.initial is not None:
            # In the precision of the given weights, but at least single: a model in double precision is trained so.
            initial = self.initial.for_classes(self.clients[0].classes, seeds.derive(self.seed, "head"))
            given = next(value.dtype for value in initial.state.values() if value.is_floating_point())
            net = self._build(0).to(torch.promote_types(given, torch.float32))
            net.load_state_dict(dict(initial.state))
            nets = [net] * len(self.clients)
        elif self.training.init == "shared":
            nets = [self._build(seeds.derive(self.seed, "init"))] * len(self.clients)
        else:
            nets = [self._build(seeds.derive(self.seed, "init", client.name)) for client in self.ordered]
        return start_state(nets, self.training, self.device)

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """One epoch of all clients: mean loss, and mean accuracy on the images kept back where there are any."""
        ready, epoch = self._ready, state.step
        walk = ready.train.walk(self.seed, epoch, self.training.augment)
        dtype = next(iter(state.params.values())).dtype
        totals = torch.zeros(len(self.ordered), dtype=torch.float64, device=self.device)
        ready.net.train()
        with own_randomness(self.device):
            for number, call in enumerate(stacking.plan(ready.train.sizes, self.training.batch_size, ready.width)):
                if number == 0 or (ready.width == 1 and call.start == 0):
                    # One by one, each client has a stream of its own; a stack has one for all.
                    name = (self.ordered[call.first].name,) if ready.width == 1 else ()
                    reseed(self.device, seeds.derive(self.seed, "epoch", epoch, *name))
                images, labels = ready.train.batch(call, walk, self.preprocess, dtype)
                losses = self._step(state, call, images, labels, self.training.rate(epoch))
                totals[call.first : call.last] += losses * call.number
        sizes = torch.tensor(ready.train.sizes, device=self.device)
        metrics: dict[str, float | Tensor] = {"loss": (totals / sizes).mean()}
        if self.training.validation and (measured := list(self._accuracies(state).values())):
            metrics["accuracy"] = torch.stack(measured).mean()
        return metrics

    def _step(self, state: TrainingState, call: Call, images: Tensor, labels: Tensor, lr: float) -> Tensor:
        """One gradient step of a slice of clients, in place; their losses before it."""
        settings, net = self.training, self._ready.net
        params, buffers = sliced(state.params, call), sliced(state.buffers, call)

        def gradients(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:
            losses, grads = stacking.gradients(net, params, buffers, images, labels)
            if settings.sam:
                apart = {name: buffer.clone() for name, buffer in buffers.items()}  # statistics follow the first pass alone
                climbed = sam.climb(params, grads, settings.sam)
                _, grads = stacking.gradients(net, climbed, apart, images, labels)
            return losses, grads

        return step(settings, state, call, self._ready.run, gradients, (images, labels), lr)

    @torch.no_grad()
    def _accuracies(self, state: TrainingState) -> dict[str, Tensor]:
        ready, dtype = self._ready, next(iter(state.params.values())).dtype
        ready.net.eval()
        found = {}
        for index, (client, (pixels, labels)) in enumerate(zip(self.ordered, ready.kept, strict=True)):
            if len(labels):
                alone = Call(index, index + 1, 0, 0)
                params, buffers = sliced(state.params, alone), sliced(state.buffers, alone)
                right = torch.zeros((), dtype=torch.float64, device=self.device)
                for some, truth in zip(torch.split(pixels, EVAL_BATCH), torch.split(labels, EVAL_BATCH), strict=True):
                    logits = stacking.forward(ready.net, params, buffers, self.preprocess(canonical(some, dtype))[None])
                    right += (logits[0].argmax(1) == truth).sum()
                found[client.name] = right / len(labels)
        return found

    def describe(self) -> dict[str, Any]:
        """Everything about it that decides the outcome, but the images."""
        initial = None if self.initial is None else fingerprint(self.initial.state.values())
        return {"net": str(self.spec), "training": asdict(self.training), "initial": initial}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Accuracy of each client on the images it kept back; clients too small to keep any are absent."""
        measured = self._accuracies(state)
        return {c.name: float(measured[c.name]) for c in self.clients if c.name in measured}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """What each client sends, in the order of ``clients``. Examples are those trained on, not those kept back."""
        net = self._build(0).to(next(iter(state.params.values())).dtype)
        steps = state.counts.tolist()
        by_name = {}
        for index, client in enumerate(self.ordered):
            own = {name: value[index] for name, value in {**state.params, **state.buffers}.items()}
            net.load_state_dict(own, strict=False)  # neither tied weights nor passing buffers have keys on both sides
            weights = {name: value.clone() for name, value in net.state_dict().items()}
            part = Part(self.spec, weights, client.classes, self.preprocess)
            labels = client.labels[self._splits[client.name][0]]
            counts = None if withhold_counts else tuple(labels.bincount(minlength=len(client.classes)).tolist())
            by_name[client.name] = Upload(client.name, {"classifier": part}, len(labels), counts, local_steps=steps[index])
        return [by_name[client.name] for client in self.clients]


Watch = Callable[[ClassifierTraining, TrainingState, Metrics], None]


def default_preprocess(spec: ModelSpec, image_shape: Shape) -> Preprocess:
    """[0, 1] -> [-1, 1] in the images' own shape; a net that cannot be built for that shape says so here."""
    spec.skeleton(image_shape, num_classes=2)
    return Preprocess.centred(image_shape)


def group_clients(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    training: LocalTraining,
    *,
    seed: int = 0,
    device: str = "cpu",
    initial: Part | None = None,
) -> list[ClassifierTraining]:
    """The stacks that train together: clients of one spec (``specs`` has one for each), image shape and class list."""
    check_clients(clients)
    groups: dict[tuple[ModelSpec, Shape, tuple[str, ...]], list[ClientData]] = {}
    for client, spec in zip(clients, specs, strict=True):
        groups.setdefault((spec, client.image_shape, client.classes), []).append(client)
    if initial is not None:
        check_initial(initial, [(c.name, spec) for (spec, _, _), some in groups.items() for c in some])
    return [
        ClassifierTraining(
            members,
            spec,
            initial.preprocess if initial is not None else default_preprocess(spec, shape),
            training,
            seed,
            device,
            initial,
        )
        for (spec, shape, _), members in groups.items()
    ]


def train_classifiers(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    training: LocalTraining,
    *,
    seed: int = 0,
    device: str = "cpu",
    initial: Part | None = None,
    withhold_counts: bool = False,
    watch: Watch | None = None,
) -> list[Upload]:
    """Train every client to the end; uploads in the clients' order. ``watch`` sees the metrics after each epoch."""
    uploads = {}
    for stack in group_clients(clients, specs, training, seed=seed, device=device, initial=initial):
        state = stack.start()
        for number, phase in enumerate(stack.phases()):
            state.phase, state.step = number, 0
            for _ in range(phase.steps):
                metrics = phase.step(state)
                state.step += 1
                if watch is not None:
                    watch(stack, state, metrics)
        uploads.update({upload.client: upload for upload in stack.uploads(state, withhold_counts=withhold_counts)})
    return [uploads[client.name] for client in clients]
