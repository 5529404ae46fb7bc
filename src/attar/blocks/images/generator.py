"""The image generator of DAFL, DENSE, Co-Boosting and FedHydra: net, settings, training steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from attar.blocks.execution import Outputs, Runner, eager
from attar.nets.registry import Shape
from attar.seeds import derive
from attar.settings import NonNegative, Positive, PositiveInt, flat

Keep = Literal["last", "best"]
"""Which batch of the generator is kept: that of the last step, or that of the lowest loss."""


@dataclass(frozen=True)
class PlainGeneratorTraining:
    """The size of an image generator, and its Adam steps for one batch of images.

    Attributes:
        steps: Adam steps for each batch, T_G.
        lr: step size eta_G of Adam.
        noise: dimensions of the noise z.
        width: channels of the generator's last hidden layer.
    """

    steps: PositiveInt = flat("generator_steps", 30)  # T_G: Adam steps for each batch of images
    lr: Positive = flat("generator_lr", 1e-3)  # eta_G
    noise: PositiveInt = 256  # dimensions of z
    width: PositiveInt = flat("generator_width", 64)  # channels of the generator


@dataclass(frozen=True)
class GeneratorTraining(PlainGeneratorTraining):
    """How an image generator is trained for one batch of images.

    Attributes:
        beta1: of the generator's Adam.
        reset: start with fresh weights for every batch.
        train_noise: train the noise together with the generator.
        keep: which batch is kept: of the last step, or of the lowest loss.
    """

    beta1: NonNegative = 0.9  # of the generator's Adam
    reset: bool = flat("reset_generator", False)  # fresh weights in every epoch
    train_noise: bool = False  # train the noise together with the generator
    keep: Keep = "last"  # the batch of the last step, or that of the lowest loss


class ImageGenerator(nn.Module):
    """A net from noise (B, noise) to images (B, C, H, W) in [0, 1].

    A linear layer to a quarter of the size, two times (upsample, 3x3 convolution, BatchNorm,
    leaky ReLU), a 3x3 convolution and a sigmoid. BatchNorm always uses the statistics of the
    batch, in train and eval mode. Sizes that are no multiple of four are resized bilinearly from
    the next multiple.

    Args:
        shape: of an image.
        noise: dimensions of the noise.
        width: channels of the last hidden layer.
    """

    def __init__(self, shape: Shape, noise: int, width: int) -> None:
        super().__init__()
        channels, self.height, self.width = shape
        self.start = (2 * width, -(-self.height // 4), -(-self.width // 4))
        self.linear = nn.Linear(noise, self.start[0] * self.start[1] * self.start[2])
        self.body = nn.Sequential(
            nn.BatchNorm2d(2 * width, track_running_stats=False),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width, track_running_stats=False),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, channels, 3, padding=1),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Images of noise (B, noise)."""
        images: Tensor = (
            self.body(self.linear(noise).view(-1, *self.start)).to(noise.dtype).sigmoid()
        )
        if images.shape[2:] != (self.height, self.width):
            images = F.interpolate(
                images, (self.height, self.width), mode="bilinear", align_corners=False
            )
        return images


def new_generator(
    shape: Shape, noise: int, width: int, seed: int, *purpose: str | int
) -> ImageGenerator:
    """A fresh generator on the CPU, initialised as in DCGAN and DENSE.

    Weights are normal(0, 0.02), biases zero, BatchNorm weights normal(1, 0.02). Channels lie last
    in memory: a third faster, on CPUs and GPUs.

    Args:
        shape: of an image.
        noise: dimensions of the noise.
        width: channels of the last hidden layer.
        seed: together with ``purpose`` it determines the weights.
        purpose: tells apart several generators of one run.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "generator", *purpose))
        generator = ImageGenerator(shape, noise, width)
        for module in generator.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)
    generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return generator


class SyntheticBatch:
    """A batch of images in the making: each step is one Adam step down a loss of the images.

    Adam's moments start at zero with each batch.

    Args:
        images_of: from the source to images: a generator, or ``torch.clone`` for pixels.
        source: the generator's noise, or the pixels themselves; it is copied.
        loss_of: from the images, and the further inputs of ``step``, to a scalar.
        weights: what Adam trains beside the source.
        train_source: whether Adam trains the source.
        lr: step size.
        beta1: of Adam.
        keep: which images are kept: those of the last step, or of the lowest loss.
        clip: largest norm of the gradient of ``weights``; None: no limit.
        history: keep the images of every step in ``every_step``.
        run: how steps run on the device.
        captured: what the loss reads beside its arguments, see ``Runner``.

    Attributes:
        images: the kept images of the steps so far, (B, C, H, W), without history.
        loss: the loss of the last step, before its update.
        every_step: the images of every step, in order, where ``history`` asks for them.
    """

    images: Tensor
    loss: Tensor

    def __init__(
        self,
        images_of: Callable[[Tensor], Tensor],
        source: Tensor,
        loss_of: Callable[..., Tensor],
        *,
        weights: Sequence[nn.Parameter] = (),
        train_source: bool = False,
        lr: float,
        beta1: float = 0.9,
        keep: Keep = "last",
        clip: float | None = None,
        history: bool = False,
        run: Runner = eager,
        captured: Sequence[object] = (),
    ) -> None:
        self.source = source.clone()
        self.every_step: list[Tensor] = []
        self._images_of = images_of
        self._loss_of = loss_of
        self._weights = list(weights)
        self._train_source = train_source
        self._trained = [*weights, self.source] if train_source else self._weights
        fused = source.is_cuda
        self._optimiser = Adam(self._trained, lr=lr, betas=(beta1, 0.999), fused=fused)
        self._keep = keep
        self._clip = clip
        self._history = history
        self._run = run
        self._captured = (images_of, *captured)
        self._lowest: Tensor | None = None

    def step(self, *inputs: Tensor) -> Tensor:
        """Take one Adam step on ``loss_of(images, *inputs)``; its loss before the update.

        Args:
            inputs: tensors that change from batch to batch, such as labels.
        """
        images, loss, *gradients = self._run(
            "synthesise", self._gradients, (self.source, *inputs), self._captured
        )
        images, self.loss = images.clone(), loss.clone()
        self._choose(images)
        for tensor, gradient in zip(self._trained, gradients, strict=True):
            tensor.grad = gradient
        if self._clip is not None:
            clip_grad_norm_(self._weights, self._clip)
        self._optimiser.step()
        return self.loss

    def _gradients(self, source: Tensor, *inputs: Tensor) -> Outputs:
        """The unit of work that is recorded: images, loss, and the gradients of what is trained."""
        source = source.detach().requires_grad_(self._train_source)
        images = self._images_of(source)
        loss = self._loss_of(images, *inputs)
        trained = [*self._weights, source] if self._train_source else self._weights
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        if self._train_source:
            # Fused Adam wants the layout of its input; a student with channels last gives another.
            gradients = (*gradients[:-1], gradients[-1].contiguous())
        return (images.detach(), loss.detach(), *gradients)

    def _choose(self, images: Tensor) -> None:
        if self._history:
            self.every_step.append(images)
        if self._keep == "last" or self._lowest is None:
            self.images, self._lowest = images, self.loss
        else:  # chosen on the device: the host does not wait
            better = self.loss < self._lowest
            self.images = torch.where(better, images, self.images)
            self._lowest = torch.where(better, self.loss, self._lowest)


def generate_batch(
    generator: nn.Module,
    noise: Tensor,
    loss_of: Callable[..., Tensor],
    training: GeneratorTraining,
    *,
    clip: float | None = None,
    history: bool = False,
    run: Runner = eager,
    captured: Sequence[object] = (),
) -> SyntheticBatch:
    """Start a batch of images of a generator, which its steps train.

    Args:
        generator: from noise to images.
        noise: z, (B, dimensions).
        loss_of: from the images, and the further inputs of a step, to a scalar.
        training: step size, beta1, and what is trained and kept.
        clip: largest norm of the generator's gradient; None: no limit.
        history: keep the images of every step.
        run: how steps run on the device.
        captured: what the loss reads beside its arguments.
    """
    return SyntheticBatch(
        generator,
        noise,
        loss_of,
        weights=list(generator.parameters()),
        train_source=training.train_noise,
        lr=training.lr,
        beta1=training.beta1,
        keep=training.keep,
        clip=clip,
        history=history,
        run=run,
        captured=captured,
    )


def draw_noise(batch_size: int, noise: int, draws: torch.Generator, device: str) -> Tensor:
    """Draw z ~ N(0, I), (batch_size, noise)."""
    return torch.randn(batch_size, noise, generator=draws).to(device)


def draw_labels(
    batch_size: int,
    num_classes: int,
    draws: torch.Generator,
    device: str,
    shares: Tensor | None = None,
) -> Tensor:
    """Draw target labels y, (batch_size,).

    Args:
        batch_size: how many.
        num_classes: how many classes there are.
        draws: the source of chance, on the CPU.
        device: where the labels go.
        shares: (C,) how often each class is drawn, in proportion; None: uniformly.
    """
    odds = torch.ones(num_classes) if shares is None else shares.cpu().float()
    return torch.multinomial(odds, batch_size, replacement=True, generator=draws).to(device)
