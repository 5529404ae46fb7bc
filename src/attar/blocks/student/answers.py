"""A student that learns from a fixed set of images, on which its teacher is asked only once.

The teacher never changes and the images are not augmented, so one answer serves all steps: the same
numbers as asking in every step, many times cheaper.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attar.core import Metrics, Phase, State

ASK_BATCH = 500  # images that the teacher answers in one step


@dataclass
class AnsweredState(State):
    """A student that learns from a fixed set of images with the teacher's answers.

    Attributes:
        answers: (N, C), the teacher's logits on every image.
        order: (N,), the shuffled images of this pass.
        draws: the source of chance, on the CPU.
    """

    answers: Tensor
    order: Tensor
    draws: torch.Generator


def answer_phase(
    name: str,
    images: int,
    answer: Callable[[Any, slice], None],
    cost_of_image: float,
    batch_size: int = ASK_BATCH,
) -> Phase:
    """A phase in which a teacher answers every image of a fixed set once, a batch at a step.

    Args:
        name: of the phase.
        images: how many there are.
        answer: stores in the state the answers to a slice of the images; without gradients.
        cost_of_image: in the unit of the method's other phases.
        batch_size: images that are answered in one step.
    """

    def rows(step: int) -> slice:
        return slice(step * batch_size, min((step + 1) * batch_size, images))

    def step(state: State) -> Metrics:
        with torch.no_grad():
            answer(state, rows(state.step))
        return {}

    def work(step: int) -> float:
        return cost_of_image * min(batch_size, images - step * batch_size)

    return Phase(name, -(-images // batch_size), step, work, learns=False)


def next_batch(state: AnsweredState, batch_size: int) -> Tensor:
    """The images of the next whole batch, (B,); each pass over the images is shuffled anew."""
    images = len(state.order)
    size = min(batch_size, images)
    place = state.step % (images // size)
    if place == 0:
        state.order = torch.randperm(images, generator=state.draws).to(state.order.device)
    return state.order[place * size : (place + 1) * size]
