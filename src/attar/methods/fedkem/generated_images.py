"""Images made at the server: a generator learns, batch after batch, what the teachers recognise."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.blocks.ensemble import Teachers, combine
from attar.blocks.execution import Runner
from attar.blocks.images import (
    SyntheticBatch,
    draw_labels,
    draw_noise,
    new_generator,
)
from attar.blocks.student import AnsweredState
from attar.core import Metrics, Phase, Server
from attar.settings import Positive, PositiveInt, flat


@dataclass(frozen=True)
class ImageGeneration:
    """How many images are generated, and how the generator is trained."""

    images: PositiveInt = flat("generated", 5000)  # how many are made
    steps: PositiveInt = flat("generator_steps", 30)  # for each batch of them
    lr: Positive = flat("generator_lr", 1e-3)  # of Adam on the generator
    noise: PositiveInt = 256  # dimensions of the noise
    # channels of the generator's last hidden layer
    width: PositiveInt = flat("generator_width", 64)


@dataclass
class GeneratedState(AnsweredState):
    """The generator and its images.

    Attributes:
        generator: None where the server has real images.
        images: (N, C, H, W) in [0, 1], those made so far; empty where the server has real images.
    """

    generator: nn.Module | None
    images: Tensor


def start_generation(settings: ImageGeneration, server: Server) -> tuple[nn.Module, Tensor]:
    """A fresh generator, and a tensor (N, C, H, W) for its images."""
    shape = server.task.input_shape
    generator = new_generator(shape, settings.noise, settings.width, server.seed)
    images = torch.zeros(settings.images, *shape, device=server.device)
    return generator.to(server.device), images


def generate_phase(
    settings: ImageGeneration, batch_size: int, teachers: Teachers, server: Server, run: Runner
) -> Phase:
    """A phase that generates a batch of images in each step.

    For labels y drawn uniformly, the generator takes Adam steps on CE(mean_k f_k(x), y). Adam
    starts anew with each batch.
    """
    classes = len(server.task.classes)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(combine("logits", teachers(images), teachers.known), labels)

    def step(state: GeneratedState) -> Metrics:
        assert state.generator is not None, "start_generation made one"
        first = state.step * batch_size
        batch = state.images[first : first + batch_size]
        noise = draw_noise(batch_size, settings.noise, state.draws, server.device)
        labels = draw_labels(batch_size, classes, state.draws, server.device)
        made = SyntheticBatch(
            state.generator,
            noise,
            loss,
            weights=list(state.generator.parameters()),
            lr=settings.lr,
            run=run,
            captured=(teachers,),
        )
        for _ in range(settings.steps):
            last_loss = made.step(labels)
        batch.copy_(made.images[: len(batch)])
        return {"generator loss": last_loss}

    work = 2.0 * settings.steps * len(teachers.known) / 3
    return Phase("imagine", -(-settings.images // batch_size), step, lambda _: work, learns=False)
