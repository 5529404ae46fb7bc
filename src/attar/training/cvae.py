"""Local training of conditional variational autoencoders on weak clients (FedMHO 4.2.1).

Clients of one architecture train as one stacked program, equal to training them one by one, like
classifiers. A client sends its decoder and how many examples of each class there were; the
encoder is never sent.

    L_k = -E_q[log p(x | z, c)] + KL(q(z | x, c) || N(0, I))                          Eq. (3)

**Departures.** The paper prints (3) with the signs of an evidence bound and then descends; the loss
is the bound's negative. p is a Bernoulli for each pixel, as in the authors' code, and the
expectation is one draw of z. Table 3 has one learning rate for CVAEs of both sizes; 0.05 makes
CVAE-large diverge, so ``paper_training`` gives it the 0.001 of the authors' code. It does so, too,
where images are larger than the paper's, of 28 and 32 pixels: (3) is a sum over pixels, and its
steps grow with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar import seeds
from attar.blocks.execution import Runner, runner_for
from attar.blocks.student import cvae_loss
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import DataError, SettingsError, SpecError
from attar.nets import CVAE, resolve_form
from attar.nets.registry import Shape
from attar.training import stacking
from attar.training.batches import ResidentImages
from attar.training.clients import ClientData, check_clients, count_labels
from attar.training.optimisers import Tensors, clip_gradients
from attar.training.options import LocalTraining
from attar.training.resident import EpochLoss
from attar.training.stacking import Call, slice_stack
from attar.training.step import (
    TrainingState,
    apply_gradients,
    choose_runner,
    compute_gradients,
    start_state,
    weights_of,
)

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


@dataclass(frozen=True)
class TrainingDefaults:
    """How classifiers and CVAEs train where nothing else is asked for.

    Attributes:
        classifier: The hyper-parameters of classifiers.
        cvae: Those of CVAEs by preset, a column of FedMHO's Table 3.
        cvae_large_lr: The learning rate of the large CVAE, and of images larger than the paper's.
    """

    classifier: LocalTraining = field(default_factory=LocalTraining)
    cvae: Mapping[str, LocalTraining] = field(default_factory=lambda: TABLE_3)
    cvae_large_lr: float = LARGE_LR


DEFAULTS = TrainingDefaults()


def paper_training(
    spec: ModelSpec,
    image_shape: Shape,
    num_classes: int,
    preset: Preset = "auto",
    defaults: TrainingDefaults = DEFAULTS,
) -> LocalTraining:
    """Return Table 3's settings, with the learning rates of the departures above.

    Args:
        spec: The architecture of the CVAE.
        image_shape: Of the clients' images.
        num_classes: How many classes there are.
        preset: A column of the table; "auto" is that of the data set whose form the net has, and
            Fashion-MNIST for grey images of few classes.
    """
    if preset == "auto":
        wanted = dict(spec.options).get("form", "auto")
        form = resolve_form(wanted, image_shape, num_classes)  # type: ignore[arg-type]
        preset = "fashion" if form == "mnist" else form  # type: ignore[assignment]
    large = spec.arch == "cvae-large" or image_shape[1] * image_shape[2] > LARGEST
    return (
        replace(defaults.cvae[preset], lr=defaults.cvae_large_lr)
        if large
        else defaults.cvae[preset]
    )


def decoder_spec(spec: ModelSpec) -> ModelSpec:
    """Return the architecture of the decoder of a CVAE."""
    return ModelSpec.of(f"{spec.arch}-decoder", dict(spec.options))


@dataclass(frozen=True)
class _Resident:
    """What an epoch needs and does not change: made once, never saved."""

    net: CVAE  # lends its code; the weights are those of the state
    images: ResidentImages
    width: int  # the most clients in one call
    run: Runner


@dataclass(frozen=True)
class CvaeTraining:
    """The training of K CVAEs of one architecture, with the steps of ``ClassifierTraining``.

    Attributes:
        clients: With one image shape and one class list.
        spec: The architecture.
        training: The hyper-parameters.
        seed: Decides everything that is random.
        device: Where they train.
        run: Executes steps; as is fastest on the device unless given.

    Raises:
        DataError: There is no client, or their images or classes differ.
        SpecError: The net is no CVAE.
        SettingsError: A setting has no meaning for a CVAE.
    """

    clients: Sequence[ClientData]
    spec: ModelSpec
    training: LocalTraining
    seed: int = 0
    device: str = "cpu"
    run: Runner | None = None

    def __post_init__(self) -> None:
        check_clients(self.clients)
        if not self.clients:
            raise DataError("There is no client to train.")
        if len({(client.image_shape, client.classes) for client in self.clients}) > 1:
            raise DataError(
                "Clients with different image shapes or class lists do not train as one stack.",
                fix="call train_cvaes, which groups them",
            )
        if self.spec.kind != "cvae":
            raise SpecError(
                f"{self.spec} is a {self.spec.kind}, not a CVAE.",
                fix="use cvae-small or cvae-large",
            )
        without = {"sam": self.training.sam, "validation": self.training.validation}
        wrong = [f"{name} = {value}: a CVAE has none" for name, value in without.items() if value]
        if wrong:
            raise SettingsError("Settings of local training that do not fit:", problems=wrong)

    @property
    def preprocess(self) -> Preprocess:
        """How images reach the net: in [0, 1], in their own shape."""
        return Preprocess.plain(self.clients[0].image_shape)

    @cached_property
    def ordered(self) -> tuple[ClientData, ...]:
        """The clients in the order of the stack: by number of images, largest first, and name."""
        return tuple(sorted(self.clients, key=lambda client: (-len(client.labels), client.name)))

    @cached_property
    def _resident(self) -> _Resident:
        net = self._build(0).train()
        sizes = [len(client.labels) for client in self.ordered]
        width = stacking.clients_per_call(
            self.training.stack,
            net,
            len(sizes),
            min(self.training.batch_size, sizes[0]),
            self.preprocess.input_shape,
            self.device,
        )
        everything = [torch.arange(size) for size in sizes]
        return _Resident(
            net=net.to(self.device),
            images=ResidentImages.load(self.ordered, everything, self.device),
            width=width,
            run=self.run or runner_for(self.device),
        )

    def _build(self, seed: int) -> CVAE:
        input_shape = self.preprocess.input_shape
        net: nn.Module = self.spec.build(input_shape, len(self.clients[0].classes), seed)
        assert isinstance(net, CVAE)
        return net

    def start(self) -> TrainingState:
        """Return the state before the first step: fresh weights, shared or each client's own."""
        separate = self.training.init == "separate"
        names = [(client.name,) if separate else () for client in self.ordered]
        nets = [self._build(seeds.derive(self.seed, "init", *name)) for name in names]
        return start_state([weights_of(net) for net in nets], self.training, self.device)

    def phases(self) -> Sequence[Phase]:
        """Return the one phase, whose steps are epochs."""
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """Train all clients for one epoch; return the mean loss of an image."""
        images = self._resident.images
        epoch = state.step
        order = images.shuffle(self.seed, epoch, self.training.augment)
        noise = self._draw_noise(epoch)
        loss = EpochLoss(images)
        calls = stacking.plan_calls(images.sizes, self.training.batch_size, self._resident.width)
        for call in calls:
            inputs, labels = images.batch(call, order, self.preprocess, noise.dtype)
            own_noise = noise[images.positions(call)].view(*labels.shape, -1)
            loss.add(call, self._step(state, call, inputs, labels, own_noise))
        return {"loss": loss.mean()}

    def _draw_noise(self, epoch: int) -> Tensor:
        """Return the noise (N, latent) for the images of one epoch.

        It is drawn by client: the same whoever trains beside it, on whatever device.
        """
        images = self._resident.images
        latent = self._resident.net.latent
        draws = [
            torch.randn(size, latent, generator=seeds.rng(self.seed, "noise", name, epoch))
            for name, size in zip(images.names, images.sizes, strict=True)
        ]
        return torch.cat(draws).to(self.device)

    def _step(
        self, state: TrainingState, call: Call, images: Tensor, labels: Tensor, noise: Tensor
    ) -> Tensor:
        """Take one step for the clients of a call, in place; return their losses before it."""
        net = self._resident.net
        training = self.training
        params = slice_stack(state.params, call)
        buffers = slice_stack(state.buffers, call)

        def gradients(images: Tensor, one_hot: Tensor, noise: Tensor) -> tuple[Tensor, Tensors]:
            def loss(leaves: Tensors) -> Tensor:
                outputs = stacking.forward(net, leaves, buffers, images, one_hot, noise)
                logits, mean, log_variance = outputs
                return cvae_loss(logits, mean, log_variance, images)  # Eq. (3)

            grads: Tensors
            losses, grads = stacking.differentiate(loss, params)
            if training.clip is not None:
                grads = clip_gradients(grads, training.clip)
            return losses, grads

        one_hot = F.one_hot(labels, len(self.clients[0].classes)).to(images)
        run = choose_runner(self._resident.run, call, training.batch_size)
        losses, grads = compute_gradients(gradients, (images, one_hot, noise), state, call, run)
        apply_gradients(grads, state, call, training, training.rate(state.step))  # Eq. (1)
        return losses

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the outcome, but the images, the seed and the clients."""
        return {"net": str(self.spec), "training": self.training.describe()}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Return nothing: a CVAE has no accuracy."""
        return {}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """Return what each client sends, in the order of ``clients``: its decoder.

        Args:
            state: After training.
            withhold_counts: Whether to leave out the number of images of each class.
        """
        weights = {**state.params, **state.buffers}
        decoders = {
            name.removeprefix(DECODER): value
            for name, value in weights.items()
            if name.startswith(DECODER)
        }
        steps = state.counts.tolist()
        uploads = {}
        for index, client in enumerate(self.ordered):
            decoder = {name: rows[index].cpu().clone() for name, rows in decoders.items()}
            part = Part(decoder_spec(self.spec), decoder, client.classes, self.preprocess)
            counts = None if withhold_counts else count_labels(client.labels, client.classes)
            uploads[client.name] = Upload(
                client=client.name,
                parts={"decoder": part},
                num_examples=len(client.labels),
                label_counts=counts,
                local_steps=steps[index],
            )
        return [uploads[client.name] for client in self.clients]

    def next_client_states(
        self, state: TrainingState, uploads: Sequence[Upload]
    ) -> dict[str, dict[str, Part]]:
        """Return what each client stores: its decoder.

        It does not depend on what the server sends, so training in a later round would give the
        same one.
        """
        return {upload.client: dict(upload.parts) for upload in uploads}
