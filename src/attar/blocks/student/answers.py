"""A fixed set of images that asks its teacher once, and a student that learns the answers batch
by batch.

The teacher never changes and the images are not augmented, so one answer serves all steps: the
same numbers as asking in every step, many times cheaper.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attar.core import Metrics, Phase, State

ASK_BATCH = 500


@dataclass
class AnsweredState(State):
    """What is known about the images, and in which order this pass meets them."""

    answers: Tensor  # (N, C) logits of the teacher on every image
    order: Tensor  # (N,) the shuffled images of this pass
    draws: torch.Generator


def ask_phase(
    teacher: Callable[[Tensor], Tensor],
    images_of: Callable[[Any, slice], Tensor],
    images: int,
    clients: int,
    batch_size: int,
) -> Phase:
    """Every image passes the teacher once. The cost of a step is in student steps: forth and
    back on ``batch_size`` images.
    """

    def ask(state: AnsweredState) -> Metrics:
        chosen = slice(state.step * ASK_BATCH, (state.step + 1) * ASK_BATCH)
        with torch.no_grad():
            state.answers[chosen] = teacher(images_of(state, chosen)).float()
        return {}

    return Phase(
        "ask",
        -(-images // ASK_BATCH),
        ask,
        lambda _: ASK_BATCH * clients / (3 * batch_size),
        learns=False,
    )


def next_batch(state: AnsweredState, batch_size: int) -> Tensor:
    """Rows of a whole batch of a shuffled pass over the images; a new pass is shuffled anew."""
    images = len(state.order)
    size = min(batch_size, images)
    place = state.step % (images // size)
    if place == 0:
        state.order = torch.randperm(images, generator=state.draws).to(state.order.device)
    return state.order[place * size : (place + 1) * size]
