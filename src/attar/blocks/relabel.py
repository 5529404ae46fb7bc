"""A pool whose images remember which of their patches count, and what the ensemble says to the whole and to the rest (FedMITR 4.2)."""

from typing import NamedTuple

import torch
from torch import Tensor

from attar.blocks.classroom import Classroom
from attar.blocks.ensemble import combine
from attar.blocks.pool import Pool
from attar.blocks.replay import Outputs
from attar.blocks.sparse import Inverted, over_pixels, sides
from attar.blocks.studio import StudioState

SHOWN = 16  # images whose patches of high and low density a result shows


class Batch(NamedTuple):
    """Images with their labels, the numbers of their patches of high and low density, the ensemble's logits on all and on the low."""

    images: Tensor
    labels: Tensor
    high: Tensor
    low: Tensor
    answers: Tensor
    low_answers: Tensor


def blank_notes(patches: int, classes: int) -> dict[str, Tensor]:
    """What the pool keeps of an image."""
    answer = torch.zeros(classes)
    return {"high": torch.zeros(patches, dtype=torch.bool), "answers": answer, "low_answers": answer}


def collect(room: Classroom, state: StudioState, made: Inverted, labels: Tensor, number: int, *, low: bool) -> None:
    """The pool grows by every client's images. The clients are asked once, here: neither they nor an image will change.

    ``number``: patches of high density in an image; ``low``: ask about the others, too.
    """
    teachers = room.teachers

    def ask(images: Tensor, rest: Tensor) -> Outputs:
        with torch.no_grad():
            answers = combine("logits", teachers(images), teachers.known)
            return answers, combine("logits", teachers(images, rest), teachers.known) if low else answers.clone()

    for images, high, y in zip(made.images, made.high, labels, strict=True):
        answers, low_answers = room.run("ask", ask, (state.pool.seen(images), sides(high, number)[1]), (teachers, state))
        assert answers is not None
        assert low_answers is not None
        state.pool.add(images, y, high=high, answers=answers, low_answers=low_answers)


def batch_of(pool: Pool, places: Tensor, number: int) -> Batch:
    high, low = sides(pool.notes("high", places), number)
    answers, low_answers = (pool.notes(name, places) for name in ("answers", "low_answers"))
    return Batch(pool.images(places), pool.labels(places), high, low, answers, low_answers)


def density(pool: Pool, newest: int, grid: tuple[int, int]) -> Tensor:
    """Some of the newest images: whole, their patches of high density on white, and those of low density (Fig. 4), in three rows."""
    latest = pool.latest(newest)
    places = latest[:: max(1, len(latest) // SHOWN)][:SHOWN]
    images = pool.images(places)
    high = over_pixels(pool.notes("high", places), grid, *images.shape[-2:])
    return torch.stack([images, images.where(high, 1.0), images.where(~high, 1.0)])
