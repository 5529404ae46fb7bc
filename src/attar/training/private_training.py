"""Training with differential privacy for one image: DP-SGD for classifiers and CVAEs.

``PrivateTraining`` wraps the plain training of some clients: their nets, first weights, optimiser
and uploads are the same, and only what happens in an epoch is replaced by the steps of
``private_steps.py``. Clients train one after the other, each with the noise that its own number
of images asks for.

**What is covered.** The number of images is public. Two clients are neighbours if one image of
the one is a blank image in the other, which takes part in no step. Everything that is sent is
computed from the noisy gradients and from what is public. So label counts are withheld, and what
looks at images past the noise is refused: held-out images, early stopping, feature statistics,
knowledge networks, and BatchNorm, with which an image's gradient depends on the others.

**Randomness.** Which images take part, the noise, dropout, crops and codes come from the
operating system, never from the seed, which decides the first weights alone. No state of it is
stored: a training that is resumed draws anew. So no file at the client can be used to take the
noise away, and a repeated training gives other weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from attar.blocks.execution import isolate_randomness, reseed
from attar.blocks.images import apply_augmentation, draw_augmentation
from attar.blocks.student import cvae_loss
from attar.core import Metrics, ModelSpec, Part, Phase, Preprocess, Upload
from attar.errors import SettingsError, SpecError
from attar.nets import CVAE
from attar.privacy_claim import PrivacyClaim
from attar.training.accountant import solve_noise, spent_epsilon
from attar.training.batches import to_floats
from attar.training.classifier import ClassifierTraining
from attar.training.clients import ClientData
from attar.training.cvae import CvaeTraining
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining
from attar.training.private_settings import PrivacySettings
from attar.training.private_steps import (
    Draws,
    ImageLoss,
    SystemDraws,
    add_noise,
    clipped_sum,
    sample_rows,
)
from attar.training.stacking import Call, slice_stack
from attar.training.step import TrainingState, apply_gradients


@dataclass(frozen=True)
class PrivateTraining:
    """The private training of the clients of another training, used like it.

    Attributes:
        base: Says who trains which net how.
        privacy: How private.
        draws: Where chance comes from.

    Raises:
        SettingsError: A setting looks at images past the noise, or delta is too large.
        SpecError: The net has BatchNorm.
    """

    base: ClassifierTraining | CvaeTraining
    privacy: PrivacySettings
    draws: Draws = field(default_factory=SystemDraws)

    def __post_init__(self) -> None:
        problems = setting_problems(self.training)
        for client in self.clients:
            if self.privacy.delta * len(client.labels) >= 1:
                problems.append(
                    f"dp_delta = {self.privacy.delta:g} of {client.name}: below 1 in "
                    f"{len(client.labels):,} images, since with that probability an image may be "
                    "given away whole"
                )
        if problems:
            raise SettingsError("Settings that do not go with private training:", problems=problems)
        if norms := batchnorm_layers(self._skeleton()):
            raise SpecError(
                f"{self.spec} has BatchNorm ({', '.join(norms[:3])}): the gradient of an image "
                "depends on the other images, so noise for one image is not enough.",
                fix="train a net without it, such as lenet5, cnn5, mlp, vgg9 or a transformer",
            )

    @property
    def clients(self) -> Sequence[ClientData]:
        """Who trains."""
        return self.base.clients

    @property
    def spec(self) -> ModelSpec:
        """The architecture."""
        return self.base.spec

    @property
    def preprocess(self) -> Preprocess:
        """How images reach the net."""
        return self.base.preprocess

    @property
    def training(self) -> LocalTraining:
        """The hyper-parameters; ``batch_size`` is the expected number of images in a step."""
        return self.base.training

    @property
    def seed(self) -> int:
        """Decides the first weights."""
        return self.base.seed

    @property
    def device(self) -> str:
        """Where they train."""
        return self.base.device

    def _skeleton(self) -> nn.Module:
        return self.spec.skeleton(self.preprocess.input_shape, len(self.clients[0].classes))

    @cached_property
    def _net(self) -> nn.Module:
        classes = len(self.clients[0].classes)
        net = self.spec.build(self.preprocess.input_shape, classes, 0)
        return net.train().to(self.device)

    @cached_property
    def _pixels(self) -> dict[str, Tensor]:
        return {client.name: client.pixels.to(self.device) for client in self.clients}

    def claims(self) -> dict[str, PrivacyClaim]:
        """Return what each client will say of its training, by name."""
        return {client.name: self._claim(len(client.labels)) for client in self.clients}

    def _claim(self, images: int) -> PrivacyClaim:
        privacy = self.privacy
        rate = min(1.0, self.training.batch_size / images)
        steps = self.training.epochs * self._steps_an_epoch(images)
        noise = privacy.noise_multiplier
        epsilon = privacy.epsilon
        if noise is None:
            noise = solve_noise(epsilon, privacy.delta, rate, steps)
        else:
            epsilon = spent_epsilon(noise, rate, steps, privacy.delta)
        return PrivacyClaim(
            epsilon=epsilon,
            delta=privacy.delta,
            clip=privacy.clip,
            noise_multiplier=noise,
            sampling_rate=rate,
            steps=steps,
        )

    def _steps_an_epoch(self, images: int) -> int:
        return math.ceil(images / self.training.batch_size)

    def start(self) -> TrainingState:
        """Return the state before the first step."""
        return self.base.start()

    def phases(self) -> Sequence[Phase]:
        """Return the one phase, whose steps are epochs."""
        return [Phase("train", self.training.epochs, self._epoch)]

    def _epoch(self, state: TrainingState) -> Metrics:
        """Train all clients for one epoch; return the mean loss of the images drawn.

        That loss is exact. It is shown at the client and never sent.
        """
        means = []
        with isolate_randomness(self.device):
            reseed(self.device, self.draws.seed())
            for place, client in enumerate(self.base.ordered):
                means.append(self._train_client(state, place, client))
        return {"loss": torch.stack(means).mean()}

    def _train_client(self, state: TrainingState, place: int, client: ClientData) -> Tensor:
        """Take the steps of one epoch for a client, in place; return the mean loss."""
        images = len(client.labels)
        claim = self._claim(images)
        call = Call(place, place + 1, 0, 0)
        params = {name: value[place] for name, value in state.params.items()}
        buffers = {name: value[place] for name, value in state.buffers.items()}
        loss = self._image_loss(buffers)
        sums = torch.zeros(2, dtype=torch.float64)
        for _ in range(self._steps_an_epoch(images)):
            rows = sample_rows(images, claim.sampling_rate, self.draws)
            inputs = self._inputs(client, rows, state.dtype)
            total, losses = clipped_sum(loss, params, inputs, claim.clip)
            expected = claim.sampling_rate * images
            noisy = add_noise(total, claim.clip, claim.noise_multiplier, expected, self.draws)
            grads = {name: value[None] for name, value in noisy.items()}
            rate = self.training.rate(state.step)
            apply_gradients(grads, state, call, self.training, rate, slicer=slice_stack)
            sums += torch.tensor([float(losses.double().sum()), len(losses)], dtype=torch.float64)
        return sums[0] / sums[1].clamp(min=1)

    def _inputs(self, client: ClientData, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The images of a step as the net takes them, with what else belongs to each of them."""
        pixels = self._pixels[client.name][rows.to(self.device)]
        if self.training.augment != "none":
            chance = torch.Generator().manual_seed(self.draws.seed())
            choice = draw_augmentation(self.training.augment, len(rows), chance)
            pixels = apply_augmentation(pixels, choice.to(self.device))
        images = self.preprocess(to_floats(pixels, dtype))
        labels = client.labels[rows].to(self.device)
        if not isinstance(self._net, CVAE):
            return images, labels
        one_hot = F.one_hot(labels, len(client.classes)).to(images)
        codes = self.draws.normals(len(rows) * self._net.latent).view(len(rows), -1)
        return images, one_hot, codes.to(images)

    def _image_loss(self, buffers: Tensors) -> ImageLoss:
        net = self._net

        def of_classifier(params: Mapping[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(net, {**params, **buffers}, (image[None],))
            return F.cross_entropy(logits, label[None])

        def of_cvae(
            params: Mapping[str, Tensor], image: Tensor, label: Tensor, code: Tensor
        ) -> Tensor:
            inputs = (image[None], label[None], code[None])
            logits, mean, log_variance = functional_call(net, {**params, **buffers}, inputs)
            return cvae_loss(logits, mean, log_variance, image[None])

        return of_cvae if isinstance(net, CVAE) else of_classifier

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the outcome but the images and chance."""
        return {**self.base.describe(), "privacy": asdict(self.privacy)}

    def validation(self, state: TrainingState) -> dict[str, float]:
        """Return nothing: no image is held out."""
        return {}

    def uploads(self, state: TrainingState, *, withhold_counts: bool = False) -> list[Upload]:
        """Return what each client sends, in the order of ``clients``, with its claim.

        Args:
            state: After training.
            withhold_counts: Makes no difference: counts are not covered, so they are never sent.
        """
        claims = self.claims()
        return [
            replace(upload, privacy=claims[upload.client])
            for upload in self.base.uploads(state, withhold_counts=True)
        ]

    def next_client_states(
        self, state: TrainingState, uploads: Sequence[Upload]
    ) -> dict[str, dict[str, Part]]:
        """Return nothing: private training is of one round."""
        return {}


def setting_problems(training: LocalTraining) -> list[str]:
    """Return which settings of local training do not go with private training."""
    wrong = {
        "validation": "images that are held out are looked at without noise",
        "patience": "the end of training would depend on images without noise",
        "sam": "its first gradient has no noise",
        "clip": "the gradient of each image is clipped already (dp_clip)",
        "compile_blocks": "gradients are computed image by image",
    }
    return [
        f"{name} = {value}: {reason}"
        for name, reason in wrong.items()
        if (value := getattr(training, name))
    ]


def batchnorm_layers(net: nn.Module) -> list[str]:
    """Return the names of the layers that normalise by the other images of a batch."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return [name for name, module in net.named_modules() if isinstance(module, kinds)]
