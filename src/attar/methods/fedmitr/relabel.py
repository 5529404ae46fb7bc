"""The pool of inverted images, and the student's loss on it (FedMITR 4.2)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import combine, label_table
from attar.blocks.execution import Outputs, run_in_streams
from attar.blocks.images import Pool
from attar.blocks.student import DataFreeState, DistillationContext, distillation
from attar.errors import SettingsError
from attar.methods.fedmitr.inversion import SparseInversion, over_pixels, split_patches
from attar.settings import NonNegative

SHOWN = 16  # images whose patches of high and low density a result shows


LearnFrom = Literal["pool", "newest", "batch"]


@dataclass(frozen=True)
class TokenRelabel:
    """The weights of Eq. (6).

    Attributes:
        distil: of L_KD; 0: no whole images (Table 3, Inversion + PL).
        pseudo_labels: lambda1, of the wanted labels on patches of high density.
        relabel: lambda2, of the ensemble's answers on patches of low density.
    """

    distil: NonNegative = 1.0  # of L_KD; 0: no whole images (Table 3, Inversion + PL)
    pseudo_labels: NonNegative = 0.5  # lambda1
    relabel: NonNegative = 0.5  # lambda2

    def __post_init__(self) -> None:
        if not (self.distil or self.pseudo_labels or self.relabel):
            raise SettingsError(
                "distil, pseudo_labels and relabel are all 0: the student would learn nothing."
            )


class Batch(NamedTuple):
    """A batch of the pool.

    Attributes:
        images: (B, C, H, W).
        labels: the wanted labels (B,).
        high: numbers of the patches of high density (B, h).
        low: numbers of the other patches (B, l).
        answers: the ensemble's logits on whole images (B, classes).
        low_answers: the ensemble's logits on the patches ``low`` alone (B, classes).
    """

    images: Tensor
    labels: Tensor
    high: Tensor
    low: Tensor
    answers: Tensor
    low_answers: Tensor


def token_relabel(
    student: Callable[[Tensor | None], Tensor],
    batch: Batch,
    weights: TokenRelabel,
    temperature: float,
) -> Tensor:
    """L_KD + lambda1 CE(f_S(x_h), y) + lambda2 T^2 KL(E_S(x_l) || f_S(x_l)), Eq. (6).

    L_KD is Eq. (8), T^2 KL(E_S(x) || f_S(x)) on whole images. A term of weight 0 is not computed.
    The forward passes of the others are small and run in parallel.

    Args:
        student: from numbers of patches (B, k) to the student's logits on these patches of the
            images; from None to its logits on whole images.
        batch: images with the ensemble's answers.
        weights: of the terms.
        temperature: T, of both divergences.
    """
    terms: list[tuple[float, Tensor | None, Callable[[Tensor], Tensor]]] = [
        (weights.distil, None, lambda logits: distillation(logits, batch.answers, temperature)),
        (weights.pseudo_labels, batch.high, lambda logits: F.cross_entropy(logits, batch.labels)),
        (
            weights.relabel,
            batch.low,
            lambda logits: distillation(logits, batch.low_answers, temperature),
        ),
    ]
    terms = [term for term in terms if term[0]]
    passes = [partial(student, patches) for _, patches, _ in terms]
    logits = run_in_streams(passes, batch.images.device)
    losses = [
        weight * loss_of(of_term)
        for (weight, _, loss_of), of_term in zip(terms, logits, strict=True)
    ]
    return torch.stack(losses).sum()


def label_odds(context: DistillationContext, *, held: bool) -> Tensor:
    """How often images of each class are wanted of each client, (K, C).

    Args:
        context: whose clients are inverted.
        held: whether a client is asked only for classes that it counted images of, in place of
            all classes that it knows.
    """
    known = context.teachers.known.cpu()
    if held:
        known = known & (label_table(context.uploads, context.server.task.classes) > 0)
    return known.float()


def pool_extras(patches: int, classes: int) -> dict[str, Tensor]:
    """What the pool keeps of an image beside its label."""
    answers = torch.zeros(classes)
    mask = torch.zeros(patches, dtype=torch.bool)
    return {"high": mask, "answers": answers, "low_answers": answers}


def add_inverted(
    context: DistillationContext,
    state: DataFreeState,
    inversion: SparseInversion,
    labels: Tensor,
    *,
    relabel: bool,
) -> None:
    """Add the images of every client to the pool, with the ensemble's answers.

    Neither clients nor images change afterwards, so they are asked once.

    Args:
        context: its teachers are the ensemble E_S, the mean of their logits (2).
        state: its pool grows.
        inversion: the finished images.
        labels: that they were made for (K, B).
        relabel: whether the ensemble answers patches of low density alone, too.
    """
    teachers = context.teachers
    number = inversion.keep.shape[-1]

    def ask(images: Tensor, low: Tensor) -> Outputs:
        with torch.no_grad():
            answers = combine("logits", teachers(images), teachers.known)
            if not relabel:
                return answers, answers.clone()
            return answers, combine("logits", teachers(images, low), teachers.known)

    for images, high, wanted in zip(inversion.images, inversion.high, labels, strict=True):
        _, low = split_patches(high, number)
        inputs = (state.pool.as_stored(images), low)
        answers, low_answers = context.run("ask", ask, inputs, (teachers, state))
        state.pool.add(images, wanted, high=high, answers=answers, low_answers=low_answers)


def epoch_places(
    pool: Pool, learn_from: LearnFrom, newest: int, batch_size: int, draws: torch.Generator
) -> Iterator[Tensor]:
    """The places of the images of each batch that the student learns from in an epoch.

    Args:
        pool: D_S.
        learn_from: "pool": all images once, in random order; "newest": so the newest images alone;
            "batch": a single batch, of any images of the pool.
        newest: how many images an epoch adds.
        batch_size: images in a batch; the last batch may be smaller.
        draws: the source of chance.
    """
    if learn_from == "newest":
        among = pool.latest(newest)
        order = torch.randperm(len(among), generator=draws).to(pool.device)
        yield from among[order].split(batch_size)
    else:
        yield from islice(pool.batches(batch_size, draws), 1 if learn_from == "batch" else None)


def read_batch(pool: Pool, places: Tensor, number: int) -> Batch:
    """The images at these places, of which ``number`` patches are of high density."""
    high, low = split_patches(pool.extras("high", places), number)
    return Batch(
        images=pool.images(places),
        labels=pool.labels(places),
        high=high,
        low=low,
        answers=pool.extras("answers", places),
        low_answers=pool.extras("low_answers", places),
    )


def show_density(pool: Pool, newest: int, grid: tuple[int, int]) -> Tensor:
    """Some of the newest images as the paper's Fig. 4 shows them.

    Returns:
        (3, N, C, H, W): whole images; their patches of high density on white; those of low density.
    """
    latest = pool.latest(newest)
    places = latest[:: max(1, len(latest) // SHOWN)][:SHOWN]
    images = pool.images(places)
    high = over_pixels(pool.extras("high", places), grid, *images.shape[-2:])
    return torch.stack([images, images.where(high, 1.0), images.where(~high, 1.0)])
