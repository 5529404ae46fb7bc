"""A fixed set of images made up at the server: a generator learns what the teachers recognise,
batch after batch.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.blocks.ensemble import Teachers, combine
from attar.blocks.execution import Run
from attar.blocks.images import (
    GeneratorWork,
    Synthesis,
    draw_labels,
    draw_noise,
    new_generator,
    train_generator,
)
from attar.blocks.student import AnsweredState
from attar.core import Metrics, Phase, Server


class ImagingSettings(GeneratorWork, Protocol):
    """How many images, and how the generator is trained for a batch of them."""

    @property
    def generated(self) -> int: ...


@dataclass
class ImaginedState(AnsweredState):
    """The images made so far, (N, C, H, W) in [0, 1], and who makes them; None and no images
    where there are real ones.
    """

    generator: nn.Module | None
    images: Tensor


def studio(settings: ImagingSettings, server: Server) -> tuple[nn.Module, Tensor]:
    """A fresh generator, and room for its images."""
    shape = server.task.input_shape
    made = new_generator(shape, settings.noise, settings.generator_width, server.seed)
    return made.to(server.device), torch.zeros(settings.generated, *shape, device=server.device)


def imagine_phase(settings: ImagingSettings, teachers: Teachers, server: Server, run: Run) -> Phase:
    """A batch in each step: CE(mean of logits, y) for labels y drawn evenly. Adam starts anew
    with each batch.
    """
    classes = len(server.task.classes)
    how = Synthesis(settings.generator_steps, settings.generator_lr, run=run, owners=(teachers,))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(combine("logits", teachers(images), teachers.known), labels)

    def step(state: ImaginedState) -> Metrics:
        assert state.generator is not None
        room = state.images[
            state.step * settings.batch_size : (state.step + 1) * settings.batch_size
        ]
        noise = draw_noise(settings.batch_size, settings.noise, state.draws, server.device)
        labels = draw_labels(settings.batch_size, classes, state.draws, server.device)
        images, last = train_generator(state.generator, noise, loss, how, (labels,))
        room.copy_(images[: len(room)])
        return {"generator loss": last}

    work = 2.0 * settings.generator_steps * len(teachers.known) / 3
    return Phase(
        "imagine", -(-settings.generated // settings.batch_size), step, lambda _: work, learns=False
    )
