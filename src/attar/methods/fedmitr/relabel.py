"""A pool whose images remember which of their patches count, and what the ensemble says to the
whole and to the rest (FedMITR 4.2).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import combine, label_table
from attar.blocks.execution import Outputs, side_by_side
from attar.blocks.images import Pool
from attar.blocks.student import Classroom, StudioState, distillation
from attar.methods.fedmitr.inversion import Inverted, over_pixels, sides

SHOWN = 16  # images whose patches of high and low density a result shows


class Batch(NamedTuple):
    """Images with their labels, the numbers of their patches of high and low density, the
    ensemble's logits on all and on the low.
    """

    images: Tensor
    labels: Tensor
    high: Tensor
    low: Tensor
    answers: Tensor
    low_answers: Tensor


class RelabelSettings(Protocol):
    """The weights of Eq. (6), and the temperature of both its divergences."""

    @property
    def distil(self) -> float: ...
    @property
    def pseudo_labels(self) -> float: ...
    @property
    def relabel(self) -> float: ...
    @property
    def temperature(self) -> float: ...


def token_relabel(
    answer: Callable[[Tensor | None], Tensor], batch: Batch, weights: RelabelSettings
) -> Tensor:
    """FedMITR Eq. (6): L_KD + lambda1 CE(f_S(x_h), y) + lambda2 KL(E_S(x_l) || f_S(x_l)), L_KD
    of (8) on whole images.

    ``answer`` gives the student's logits on some patches of the images, or on all (None). A term
    of weight 0 is not computed; the passes of the others are small and run side by side.
    """
    terms: list[tuple[float, Tensor | None, Callable[[Tensor], Tensor]]] = [
        (
            weights.distil,
            None,
            lambda logits: distillation(logits, batch.answers, weights.temperature),
        ),
        (weights.pseudo_labels, batch.high, lambda logits: F.cross_entropy(logits, batch.labels)),
        (
            weights.relabel,
            batch.low,
            lambda logits: distillation(logits, batch.low_answers, weights.temperature),
        ),
    ]
    wanted = [term for term in terms if term[0]]
    answers = side_by_side(
        [partial(answer, patches) for _, patches, _ in wanted], batch.images.device
    )
    losses = [
        weight * loss_of(logits)
        for (weight, _, loss_of), logits in zip(wanted, answers, strict=True)
    ]
    return torch.stack(losses).sum()


def target_odds(room: Classroom, *, held: bool) -> Tensor:
    """Which labels images are made for, (K, C): each client's classes alike, or those alone that
    it ``held`` images of.
    """
    known = room.teachers.known.cpu()
    return (
        known & (label_table(room.uploads, room.server.task.classes) > 0) if held else known
    ).float()


def blank_notes(patches: int, classes: int) -> dict[str, Tensor]:
    """What the pool keeps of an image."""
    answer = torch.zeros(classes)
    return {
        "high": torch.zeros(patches, dtype=torch.bool),
        "answers": answer,
        "low_answers": answer,
    }


def collect(
    room: Classroom, state: StudioState, made: Inverted, labels: Tensor, number: int, *, low: bool
) -> None:
    """The pool grows by every client's images. The clients are asked once, here: neither they
    nor an image will change.

    ``number``: patches of high density in an image; ``low``: ask about the others, too.
    """
    teachers = room.teachers

    def ask(images: Tensor, rest: Tensor) -> Outputs:
        with torch.no_grad():
            answers = combine("logits", teachers(images), teachers.known)
            return answers, combine(
                "logits", teachers(images, rest), teachers.known
            ) if low else answers.clone()

    for images, high, y in zip(made.images, made.high, labels, strict=True):
        answers, low_answers = room.run(
            "ask", ask, (state.pool.seen(images), sides(high, number)[1]), (teachers, state)
        )
        assert answers is not None
        assert low_answers is not None
        state.pool.add(images, y, high=high, answers=answers, low_answers=low_answers)


def batch_of(pool: Pool, places: Tensor, number: int) -> Batch:
    high, low = sides(pool.notes("high", places), number)
    answers, low_answers = (pool.notes(name, places) for name in ("answers", "low_answers"))
    return Batch(pool.images(places), pool.labels(places), high, low, answers, low_answers)


def density(pool: Pool, newest: int, grid: tuple[int, int]) -> Tensor:
    """Some of the newest images: whole, their patches of high density on white, and those of low
    density (Fig. 4), in three rows.
    """
    latest = pool.latest(newest)
    places = latest[:: max(1, len(latest) // SHOWN)][:SHOWN]
    images = pool.images(places)
    high = over_pixels(pool.notes("high", places), grid, *images.shape[-2:])
    return torch.stack([images, images.where(high, 1.0), images.where(~high, 1.0)])
