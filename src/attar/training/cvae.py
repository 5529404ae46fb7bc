"""Local training of conditional variational autoencoders: what a client too weak for a
classifier does (FedMHO 4.2.1).

Clients of one architecture train as one stacked program, equal to training them one by one, like
classifiers. What leaves the client is the decoder and how many examples of each class there
were; the encoder stays at home.

    L_k = -E_q[log p(x | z, c)] + KL(q(z | x, c) || N(0, I))                          Eq. (3)

Departures. The paper prints (3) with the signs of an evidence bound and then descends; the loss
is the bound's negative. p is a Bernoulli for each pixel, as in the authors' code, and the
expectation is one draw of z. Table 3 has one learning rate for CVAEs of both sizes; 0.05 makes
CVAE-large diverge, so that ``paper_training`` gives it the 0.001 of the authors' code. So it
does where images are larger than the paper's, of 28 and 32 pixels: (3) is a sum over pixels, and
its steps grow with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar import seeds
from attar.blocks.execution import Run, run_on
from attar.blocks.student import cvae_loss
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DataError, SettingsError, SpecError
from attar.nets import CVAE, resolve_form
from attar.nets.registry import Shape
from attar.training import stacking
from attar.training.batches import Resident
from attar.training.clients import ClientData, check_clients, checked_groups
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining
from attar.training.stacking import Call, sliced
from attar.training.step import TrainingState, row_of, start_state, step

Preset = Literal["auto", "mnist", "fashion", "svhn", "emnist"]

TABLE_3 = {
    "mnist": LocalTraining(epochs=30, batch_size=64, optimiser="adam", lr=5e-2),
    "fashion": LocalTraining(epochs=40, batch_size=64, optimiser="adam", lr=5e-2),
    "svhn": LocalTraining(epochs=40, batch_size=64, optimiser="adam", lr=1e-3),
    "emnist": LocalTraining(epochs=50, batch_size=64, optimiser="adam", lr=3e-3),
}
LARGE_LR = 1e-3  # of CVAE-large, and for large images
LARGEST = 32 * 32  # pixels of the paper's images
DECODER = "decoder."


def paper_training(
    spec: ModelSpec, image_shape: Shape, num_classes: int, preset: Preset = "auto"
) -> LocalTraining:
    """Table 3's settings: those of the data set named, or of the one whose form the net has
    (grey, few classes: Fashion).
    """
    if preset == "auto":
        form = resolve_form(dict(spec.options).get("form", "auto"), image_shape, num_classes)  # type: ignore[arg-type]
        preset = "fashion" if form == "mnist" else form  # type: ignore[assignment]
    large = spec.arch == "cvae-large" or image_shape[1] * image_shape[2] > LARGEST
    return replace(TABLE_3[preset], lr=LARGE_LR) if large else TABLE_3[preset]


def decoder_spec(spec: ModelSpec) -> ModelSpec:
    """The architecture of what is sent of a CVAE."""
    return ModelSpec.of(f"{spec.arch}-decoder", dict(spec.options))


@dataclass(frozen=True)
class _Ready:
    """What an epoch needs and does not change: made once, never saved."""

    net: CVAE  # lends its code; the weights are those of the state
    train: Resident
    width: int
    run: Run


@dataclass(frozen=True)
class CvaeTraining:
    """One architecture, K clients: ``start``, ``phases``, and at the end ``uploads``, like
    ``ClassifierTraining``.
    """

    clients: Sequence[ClientData]
    spec: ModelSpec
    training: LocalTraining
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_clients(self.clients)
        if not self.clients:
            raise DataError("There is no client to train.")
        if len({(client.image_shape, client.classes) for client in self.clients}) > 1:
            raise DataError(
                "Clients with different image shapes or class lists do not train as one stack."
            )
        if self.spec.kind != "cvae":
            raise SpecError(
                f"{self.spec} is a {self.spec.kind}, not a CVAE.",
                fix="use cvae-small or cvae-large",
            )
        without = {"sam": self.training.sam, "validation": self.training.validation}
        if wrong := [
            f"{name} = {value}: a CVAE has none" for name, value in without.items() if value
        ]:
            raise SettingsError("Settings of local training that do not fit:", problems=wrong)

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess.plain(self.clients[0].image_shape)

    @cached_property
    def ordered(self) -> tuple[ClientData, ...]:
        """The clients as they lie in the stack: by number of images, largest first, then by name."""
        return tuple(sorted(self.clients, key=lambda client: (-len(client.labels), client.name)))

    @cached_property
    def _ready(self) -> _Ready:
        net = self._build(0).train()
        sizes = [len(client.labels) for client in self.ordered]
        batch, shape = min(self.training.batch_size, sizes[0]), self.preprocess.input_shape
        width = stacking.width(self.training.stack, net, len(sizes), batch, shape, self.device)
        everything = [torch.arange(size) for size in sizes]
        resident = Resident.of(self.ordered, everything, self.device)
        return _Ready(net.to(self.device), resident, width, run_on(self.device))

    def _build(self, seed: int) -> CVAE:
        net: nn.Module = self.spec.build(
            self.preprocess.input_shape, len(self.clients[0].classes), seed
        )
        assert isinstance(net, CVAE)
        return net

    def start(self) -> TrainingState:
        """Fresh weights, the same for all or each client's own."""
        own = self.training.init == "separate"
        names = [(client.name,) if own else () for client in self.ordered]
        nets = [self._build(seeds.derive(self.seed, "init", *name)) for name in names]
        return start_state([row_of(net) for net in nets], self.training, self.device)

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """One epoch of all clients: the mean loss of an image."""
        ready, epoch = self._ready, state.step
        walk = ready.train.walk(self.seed, epoch, self.training.augment)
        noise = self._noise(epoch)
        totals = torch.zeros(len(self.ordered), dtype=torch.float64, device=self.device)
        for call in stacking.plan(ready.train.sizes, self.training.batch_size, ready.width):
            images, labels = ready.train.batch(call, walk, self.preprocess, noise.dtype)
            drawn = noise[ready.train.places(call)].view(*labels.shape, -1)
            losses = self._step(state, call, images, labels, drawn, self.training.rate(epoch))
            totals[call.first : call.last] += losses * call.number
        sizes = torch.tensor(ready.train.sizes, device=self.device)
        return {"loss": (totals / sizes).mean()}

    def _noise(self, epoch: int) -> Tensor:
        """(N, latent) for the images of one walk, drawn by client: the same whoever trains
        beside it, on whatever device.
        """
        drawn = [
            torch.randn(
                size,
                self._ready.net.latent,
                generator=seeds.generator(self.seed, "noise", name, epoch),
            )
            for name, size in zip(self._ready.train.names, self._ready.train.sizes, strict=True)
        ]
        return torch.cat(drawn).to(self.device)

    def _step(
        self,
        state: TrainingState,
        call: Call,
        images: Tensor,
        labels: Tensor,
        noise: Tensor,
        lr: float,
    ) -> Tensor:
        """One gradient step of a slice of clients, in place; their losses before it."""
        net, params, buffers = (
            self._ready.net,
            sliced(state.params, call),
            sliced(state.buffers, call),
        )

        def gradients(images: Tensor, known: Tensor, noise: Tensor) -> tuple[Tensor, Tensors]:
            def loss(leaves: Tensors) -> Tensor:
                logits, mean, log_variance = stacking.forward(
                    net, leaves, buffers, images, known, noise
                )
                return cvae_loss(logits, mean, log_variance, images)  # Eq. (3)

            return stacking.gradients_of(loss, params)

        known = F.one_hot(labels, len(self.clients[0].classes)).to(images)
        return step(
            self.training, state, call, self._ready.run, gradients, (images, known, noise), lr
        )  # Eq. (1)

    def describe(self) -> dict[str, Any]:
        """Everything about it that decides the outcome, but the images."""
        return {"net": str(self.spec), "training": asdict(self.training)}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """A CVAE has no accuracy."""
        return {}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """What each client sends, in the order of ``clients``: the decoder, and nothing of the encoder."""
        weights = {**state.params, **state.buffers}
        kept = {
            name.removeprefix(DECODER): value
            for name, value in weights.items()
            if name.startswith(DECODER)
        }
        steps, by_name = state.counts.tolist(), {}
        for index, client in enumerate(self.ordered):
            own = {name: value[index].cpu().clone() for name, value in kept.items()}
            part = Part(decoder_spec(self.spec), own, client.classes, self.preprocess)
            counts = (
                None
                if withhold_counts
                else tuple(client.labels.bincount(minlength=len(client.classes)).tolist())
            )
            number = len(client.labels)
            by_name[client.name] = Upload(
                client.name, {"decoder": part}, number, counts, local_steps=steps[index]
            )
        return [by_name[client.name] for client in self.clients]

    def homes(self, state: TrainingState, uploads: Sequence[Upload]) -> dict[str, dict[str, Part]]:
        """The decoder. It does not depend on what the server sends: in a later round training
        would give the same one.
        """
        return {upload.client: dict(upload.parts) for upload in uploads}


def group_cvaes(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    settings: Mapping[str, Any] | None = None,
    *,
    preset: Preset = "auto",
    seed: int = 0,
    device: str = "cpu",
) -> list[CvaeTraining]:
    """The stacks that train together; ``settings`` replace what ``paper_training`` says for each."""
    stacks = []
    for (spec, shape, classes), members in checked_groups(clients, specs).items():
        training = replace(paper_training(spec, shape, len(classes), preset), **(settings or {}))
        stacks.append(CvaeTraining(members, spec, training, seed, device))
    return stacks


def train_cvaes(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    settings: Mapping[str, Any] | None = None,
    *,
    preset: Preset = "auto",
    seed: int = 0,
    device: str = "cpu",
) -> list[Upload]:
    """Train every client's CVAE to the end; uploads of decoders in the clients' order."""
    uploads = {}
    for stack in group_cvaes(clients, specs, settings, preset=preset, seed=seed, device=device):
        state = stack.start()
        (phase,) = stack.phases()
        for _ in range(phase.steps):
            phase.step(state)
            state.step += 1
        uploads.update({upload.client: upload for upload in stack.uploads(state)})
    return [uploads[client.name] for client in clients]
