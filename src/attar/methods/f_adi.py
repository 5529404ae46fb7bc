"""F-ADI: adaptive DeepInversion of the ensemble; pixels are optimised, no generator.

Paper: H. Yin et al., Dreaming to Distill: Data-Free Knowledge Transfer via DeepInversion, CVPR
2020; over the ensemble as Co-Boosting B.1 uses it.

    repeat for T epochs:
        x <- noise
        T_G times: x <- Adam step on CE(D(x), y) + a_tv TV(x) + a_l2 ||x||^2 + a_f L_BN(x)
                                     + a_c (1 - JS(D, f_S))
        pool <- pool + x
        for every batch x of the pool: student <- SGD step on T^2 KL(D(x) || f_S(x))

| symbol | here |
|---|---|
| a_tv, a_l2 | ``variation``, ``magnitude`` |
| a_f, L_BN | ``features``; the clients' BatchNorm gaps, mean over clients |
| a_c | ``competition``: images on which teacher and student disagree |

Departures:

- The paper inverts each batch for 2,000 iterations. The common settings of Co-Boosting B.1 give
  every method T_G steps a batch and a pool that grows by a batch an epoch.
- a_l2 is not stated for small images and is 0; a_c is 1.
- JS is the textbook one in units of ln 2, from 0 to 1 (the authors clamp their own form to that
  range), at temperature 3 as in their code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import combine
from attar.blocks.images import Keep, PixelBatch, PoolSettings, draw_labels
from attar.blocks.student import (
    DataFreeState,
    DistillationContext,
    StudentTraining,
    add_with_answers,
    answer_extras,
    distil_epoch,
    epoch_cost,
    frozen,
    jensen_shannon,
    prepare_context,
    start_data_free,
    start_pool,
    student_result,
    total_variation,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import NonNegative, NonNegativeInt, Positive, PositiveInt, settings


@settings()
@dataclass(frozen=True)
class FAdi:
    """Adaptive DeepInversion of the ensemble: pixels are optimised directly (Yin et al. 2020)."""

    paper: ClassVar[str] = "Yin et al., CVPR 2020"
    cost: ClassVar[str] = "as dense, without a generator"
    needs: ClassVar[Needs] = Needs()

    epochs: NonNegativeInt = 500  # T
    inversion_steps: PositiveInt = 30  # T_G
    batch_size: PositiveInt = 128  # images in a batch
    inversion_lr: Positive = 0.1  # of Adam on the images
    keep: Keep = "last"  # the batch of the last step, or that of the lowest loss
    student: StudentTraining = StudentTraining(temperature=4.0)
    pool: PoolSettings = PoolSettings()
    variation: NonNegative = 2.5e-5  # a_tv
    magnitude: NonNegative = 0.0  # a_l2
    features: NonNegative = 100.0  # a_f
    competition: NonNegative = 1.0  # a_c
    competition_temperature: Positive = 3.0  # of the competition loss

    def prepare(self, uploads: Sequence[Upload], server: Server) -> DistillationContext:
        """Put the teachers on the device."""
        return prepare_context(uploads, server)

    def start(self, context: DistillationContext) -> DataFreeState:
        """A fresh student and an empty pool."""
        images = self.epochs * self.batch_size
        return start_data_free(
            context,
            self.student,
            self.epochs,
            pool=start_pool(context, self.pool, images, answer_extras(context)),
        )

    def phases(self, context: DistillationContext) -> Sequence[Phase]:
        """The epochs."""
        cost = epoch_cost(self.inversion_steps)
        return [Phase("distil", self.epochs, partial(self.epoch, context), cost)]

    def epoch(self, context: DistillationContext, state: DataFreeState) -> Metrics:
        """One of the T epochs."""
        labels = draw_labels(self.batch_size, context.num_classes, state.draws, context.device)
        batch = self.start_batch(context, state)  # x <- noise
        with frozen(state.student):
            for _ in range(self.inversion_steps):  # T_G times
                inversion_loss = batch.step(labels)

        def answer(images: Tensor, labels: Tensor) -> Tensor:
            return combine("logits", context.teachers(images), context.teachers.known)

        add_with_answers(context, state, batch.images, labels, answer)  # pool <- pool + x
        student_loss = distil_epoch(context, state, self.student, self.batch_size)
        state.schedule.step()
        return {"inversion loss": inversion_loss, "loss": student_loss}

    def start_batch(self, context: DistillationContext, state: DataFreeState) -> PixelBatch:
        """Pixels of normal noise around mid-grey, and a fresh Adam on them."""
        size = (self.batch_size, *context.server.task.input_shape)
        noise = 0.5 + 0.5 * torch.randn(size, generator=state.draws).to(context.device)
        return PixelBatch(
            noise,
            partial(self.inversion_loss, context, state),
            lr=self.inversion_lr,
            keep=self.keep,
            run=context.run,
            captured=(state.student, state),
        )

    def inversion_loss(
        self, context: DistillationContext, state: DataFreeState, images: Tensor, labels: Tensor
    ) -> Tensor:
        """CE(D(x), y) + a_tv TV(x) + a_l2 ||x||^2 + a_f L_BN(x) + a_c (1 - JS(D, f_S))."""
        logits, gaps = context.teachers.with_hooks(images, ["batchnorm"] if self.features else [])
        ensemble = combine("logits", logits, context.teachers.known)
        loss = F.cross_entropy(ensemble, labels) + self.variation * total_variation(images)
        loss = loss + self.magnitude * images.square().sum() / len(images)
        if self.features:
            loss = loss + self.features * gaps["batchnorm"].mean()
        student = context.student_logits(state.student, images)
        likeness = jensen_shannon(ensemble, student, self.competition_temperature)
        return loss + self.competition * (1 - likeness)

    def result(self, context: DistillationContext, state: DataFreeState) -> Result:
        """The student and its newest images."""
        return student_result(context, state, wants_batchnorm=self.features > 0)
