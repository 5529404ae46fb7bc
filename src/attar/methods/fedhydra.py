"""FedHydra: each client's skill per class is measured through a generator and weights its logits.

Paper: J. Bai, Y. Song et al., A Unified Solution to Diverse Heterogeneities in One-shot
Federated Learning, Algorithms 1 to 3.

    for client k and class j: train a generator T_G steps on CE(F_k(G(z)), j)
        U_kj <- (max - min) / min of these losses                                    (1)-(7)
    repeat for T_g epochs:
        T_G times: x <- G(z)
                   G <- Adam step on CE(P, y) + lambda1 L_BN - lambda2 KL(P, F_g(x))   (12)-(16)
        student <- SGD step on KL(P || F_g(x)) + beta CE(F_g(x), H[P])                 (17)-(19)

| symbol | here |
|---|---|
| P = SA(x, y) | ``stratified_weights`` in a sum of logits, (8)-(11) |
| U, U_r, U_c | ``state.guidance`` and ``across_clients``, ``across_classes`` of it |
| lambda1, lambda2, beta | ``stability``, ``diversity``, ``hard_labels`` |

Departures:

- ``variant`` fills the settings that were not given. ``"paper"``: the printed equations.
  ``"authors"``: the settings of the first author's code of an earlier submission. ``"best"``: ours.
- Where the paper is silent: ``momentum`` 0.9 and KL at temperature 1, as in DENSE, beta 1, and a
  floor under the divisor of (2), which can reach 0.
- By (2) a client does not know a class that it sees in noise from the beginning:
  ``highest_of="client"`` mends that.
- ``augment``: the code crops and flips the pool's images at every use, and asks the clients again.
- ``kl_reduction="mean"``: the code divides (17) by the number of classes, too, so that in (19) the
  hard label weighs C times more.
- ``replay``: Algorithm 1 takes one student step an epoch on the last batch (``"last"``), 200 in
  all; section 2 says that all generated images are used. By default the student passes over all
  kept batches as in DENSE (``"pool"``, a choice made after our first runs, docs/results).
  ``"intermediate"``: one step on the images of every generator step.
- (14) is DENSE's term, of the clients' BatchNorm layers.
- (15) counts all images; DENSE, whose term it is, only those on which student and ensemble
  disagree: ``diversity_on="disagreements"``.
- P needs target labels; for images without (Fig. 8) class c has the weights of an image of class c.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import (
    Augment,
    GeneratorTraining,
    PoolSettings,
    SyntheticBatch,
    apply_augmentation,
    draw_augmentation,
    draw_labels,
)
from attar.blocks.student import (
    GUIDANCE,
    DataFreeState,
    DistillationContext,
    Highest,
    Stratification,
    StudentTraining,
    across_classes,
    across_clients,
    add_to_pool,
    adversarial,
    answer_extras,
    augmented_batches,
    boundary_supporting,
    cached_batches,
    distillation,
    epoch_cost,
    frozen,
    hard_label,
    label_free_weights,
    prepare_context,
    start_batch,
    start_data_free,
    start_generator,
    start_pool,
    stratify_phase,
    student_result,
    student_step,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import NonNegative, NonNegativeInt, Positive, PositiveInt, settings

Answered = tuple[Tensor, Tensor]
"""Images, and the stratified logits P on them."""

DIVERSITY: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "all": adversarial,
    "disagreements": boundary_supporting,
}
"""Eq. (15), by the images that it counts."""

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors": {
        "batch_size": 256,
        "beta1": 0.5,
        "reset_generator": True,
        "train_noise": True,
        "keep": "best",
        "pool_bytes": True,
        "augment": "crop-flip",
        "diversity_on": "disagreements",
        "kl_reduction": "mean",
        "stratify_augment": "crop-flip",
        "stratify_beta1": 0.5,
        "stratify_start": "own",
        "guidance_floor": 1e-8,  # none: a loss in float32 is 0 or above this
    },
    "best": {"highest_of": "client", "diversity": 0.0},
}


@settings(lambda method: VARIANTS[method.variant])
@dataclass(frozen=True)
class FedHydra:
    """Clients are weighted by how well they guide a generator to each class."""

    paper: ClassVar[str] = "Bai, Song et al., FedHydra"
    cost: ClassVar[str] = "first clients x classes x T_G generator steps, then as dense"
    needs: ClassVar[Needs] = Needs()

    epochs: NonNegativeInt = 200  # T_g
    batch_size: PositiveInt = 128  # b
    generator: GeneratorTraining = GeneratorTraining()
    student: StudentTraining = StudentTraining()
    pool: PoolSettings = PoolSettings()
    stability: NonNegative = 1.0  # lambda1
    diversity: NonNegative = 0.5  # lambda2
    diversity_on: Literal["all", "disagreements"] = "all"  # images that (15) counts
    hard_labels: NonNegative = 1.0  # beta
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # (17); mean: over classes, too
    augment: Augment = "none"  # of the images that the student learns, anew at every use
    # images of an epoch: the last batch, every step's, or the pool
    replay: Literal["last", "intermediate", "pool"] = "pool"
    guidance_floor: Positive = 0.03  # under the divisor of (2)
    highest_of: Highest = "class"  # max L of (2): of that class, or of all classes of the client
    stratification: Stratification = Stratification()
    variant: Literal["paper", "authors", "best"] = "paper"  # whose settings

    def prepare(self, uploads: Sequence[Upload], server: Server) -> DistillationContext:
        """Put the teachers on the device."""
        return prepare_context(uploads, server, "stratified")

    def start(self, context: DistillationContext) -> DataFreeState:
        """A fresh student, a fresh generator, an empty pool; U is zero."""
        if self.replay == "pool":
            images = self.epochs * self.batch_size
            answers = answer_extras(context) if self.augment == "none" else None
            pool = start_pool(context, self.pool, images, answers)
        else:  # the images of the last epoch, for the result
            pool = start_pool(context, replace(self.pool, limit=None), self.batch_size)
        return start_data_free(
            context,
            self.student,
            self.epochs,
            pool=pool,
            generator=start_generator(context, self.generator),
        )

    def phases(self, context: DistillationContext) -> Sequence[Phase]:
        """Algorithm 2, then the epochs of Algorithm 1."""
        stratify = stratify_phase(
            context,
            self.generator,
            self.batch_size,
            self.guidance_floor,
            GUIDANCE[self.highest_of],
            self.stratification,
        )
        return [stratify, Phase("distil", self.epochs, partial(self.epoch, context), self._cost())]

    def _cost(self) -> Callable[[int], float]:
        if self.replay == "pool":
            return epoch_cost(self.generator.steps, cached=self.augment == "none")
        student_steps = self.generator.steps if self.replay == "intermediate" else 0
        return lambda _: 2.0 * self.generator.steps + student_steps

    def epoch(self, context: DistillationContext, state: DataFreeState) -> Metrics:
        """One of the T_g epochs of Algorithm 1."""
        labels = draw_labels(self.batch_size, context.num_classes, state.draws, context.device)
        batch = start_batch(  # line 13
            context,
            state,
            self.generator_loss,
            self.generator,
            self.batch_size,
            clip=self.student.clip,
            history=self.replay == "intermediate",
        )
        with frozen(state.student):
            for _ in range(self.generator.steps):  # T_G times, line 16
                generator_loss = batch.step(labels)  # (12)-(16), lines 17 to 20
        add_to_pool(context, state, batch.images, labels)
        student_losses = [  # (17)-(19), lines 23 and 24
            student_step(context, state, self.student, self.student_loss, images, stratified)
            for images, stratified in self.replay_images(context, state, batch, labels)
        ]
        state.schedule.step()
        return {"generator loss": generator_loss, "loss": torch.stack(student_losses).mean()}

    def generator_loss(
        self, context: DistillationContext, state: DataFreeState, images: Tensor, labels: Tensor
    ) -> Tensor:
        """CE(P, y) + lambda1 L_BN - lambda2 KL(P, F_g(x)), Eq. (16)."""
        logits, gaps = context.teachers.with_hooks(images, ["batchnorm"] if self.stability else [])
        stratified = context.weighting.combine(logits, labels, state.guidance)  # P, (12)
        loss = F.cross_entropy(stratified, labels)  # (13)
        if self.stability:
            loss = loss + self.stability * gaps["batchnorm"].mean()  # (14)
        student = context.student_logits(state.student, images)
        diversity = DIVERSITY[self.diversity_on](stratified, student, self.student.temperature)
        return loss + self.diversity * diversity  # (15)

    def replay_images(
        self,
        context: DistillationContext,
        state: DataFreeState,
        batch: SyntheticBatch,
        labels: Tensor,
    ) -> Iterable[Answered]:
        """What the student learns in this epoch: one step for each pair of images and logits."""
        match self.replay:
            case "last":
                return answer_batches(context, state, [batch.images], labels, self.augment)
            case "intermediate":
                return answer_batches(context, state, batch.every_step, labels, self.augment)
            case "pool" if self.augment == "none":
                return cached_batches(state.pool, self.batch_size, state.draws)
            case "pool":
                return augmented_batches(context, state, self.batch_size, self.augment)

    def student_loss(
        self,
        context: DistillationContext,
        state: DataFreeState,
        images: Tensor,
        stratified: Tensor,
    ) -> Tensor:
        """KL(P || F_g(x)) + beta CE(F_g(x), H[P]), Eq. (19)."""
        student = context.student_logits(state.student, images)
        loss = distillation(student, stratified, self.student.temperature)  # (17)
        if self.kl_reduction == "mean":
            loss = loss / context.num_classes
        return loss + self.hard_labels * hard_label(student, stratified)  # (18)

    def result(self, context: DistillationContext, state: DataFreeState) -> Result:
        """The student, the stratified ensemble, U and its two normalised forms."""
        distilled = student_result(context, state, wants_batchnorm=self.stability > 0)
        guidance = state.guidance
        ensemble = context.mixture("logits", label_free_weights(guidance))
        return Result(
            models={**distilled.models, "ensemble": ensemble},
            arrays={
                "guidance": guidance,
                "across clients": across_clients(guidance),
                "across classes": across_classes(guidance),
            },
            images=distilled.images,
            remarks=distilled.remarks,
        )


def answer_batches(
    context: DistillationContext,
    state: DataFreeState,
    batches: Sequence[Tensor],
    labels: Tensor,
    augment: Augment,
) -> Iterator[Answered]:
    """Batches of images of the same labels, augmented, each with the ensemble's logits on it."""
    for batch in batches:
        images = batch
        if augment != "none":
            choice = draw_augmentation(augment, len(batch), state.draws)
            images = apply_augmentation(batch, choice.to(batch.device))
        with torch.no_grad():
            answers = context.ensemble(state, images, labels)
        yield images, answers
