"""F-ADI: adaptive DeepInversion of the ensemble; pixels are optimised, no generator.

Paper: H. Yin et al., Dreaming to Distill: Data-Free Knowledge Transfer via DeepInversion, CVPR
2020; over the ensemble as Co-Boosting B.1 uses it.

    repeat for T epochs:
        x <- noise;  T_G times: x <- Adam step on CE(D(x), y) + a_tv TV(x) + a_l2 ||x||^2 + a_f L_BN(x) + a_c (1 - JS(D, f_S))
        pool <- pool + x
        for every batch x of the pool: student <- SGD step on T^2 KL(D(x) || f_S(x))

| symbol | here |
|---|---|
| a_tv, a_l2 | ``variation``, ``magnitude`` |
| a_f, L_BN | ``features``; the clients' BatchNorm gaps, mean over clients |
| a_c | ``competition``: images on which teacher and student disagree |

Departures. The paper inverts each batch for 2,000 iterations; the common settings of Co-Boosting
B.1 give every method T_G steps a batch and a pool that grows by a batch an epoch. a_l2 is not
stated for small images and is 0; a_c is 1. JS is the textbook one in units of ln 2, from 0 to 1
(the authors clamp their own form to that range), at temperature 3 as in their code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import combine
from attar.blocks.images import Synthesis, draw_labels, invert_pixels
from attar.blocks.images.inversion import Keep
from attar.blocks.student import (
    Classroom,
    Schedule,
    StudioState,
    blank_answers,
    distil_pool,
    jensen_shannon,
    open_classroom,
    open_studio,
    remember,
    resting,
    student_result,
    total_variation,
    work_of_epoch,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import require


@dataclass(frozen=True)
class FAdi:
    """Adaptive DeepInversion of the ensemble: pixels are optimised directly (Yin et al. 2020)."""

    paper: ClassVar[str] = "Yin et al., CVPR 2020"
    cost: ClassVar[str] = "as dense, without a generator"
    needs: ClassVar[Needs] = Needs()

    epochs: int = 500  # T
    inversion_steps: int = 30  # T_G
    batch_size: int = 128
    inversion_lr: float = 0.1
    student_lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    variation: float = 2.5e-5  # a_tv
    magnitude: float = 0.0  # a_l2
    features: float = 100.0  # a_f
    competition: float = 1.0  # a_c
    competition_temperature: float = 3.0
    temperature: float = 4.0
    clip: float | None = None
    keep: Keep = "last"
    pool_limit: int | None = None
    pool_bytes: bool = False

    def __post_init__(self) -> None:
        require(
            self,
            may_be_zero="epochs momentum weight_decay variation magnitude features competition",
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Classroom:
        return open_classroom(uploads, server)

    def start(self, context: Classroom) -> StudioState:
        return open_studio(context, self, notes=blank_answers(context))

    def phases(self, context: Classroom) -> Sequence[Phase]:
        teachers, shape = context.teachers, context.server.task.input_shape

        def ensemble(images: Tensor) -> Tensor:
            return combine("logits", teachers(images), teachers.known)

        def epoch(state: StudioState) -> Metrics:
            labels = draw_labels(self.batch_size, context.num_classes, state.draws, context.device)
            start = 0.5 + 0.5 * torch.randn(self.batch_size, *shape, generator=state.draws).to(
                context.device
            )
            owners = (state.student, state)
            how = Synthesis(
                self.inversion_steps,
                self.inversion_lr,
                keep=self.keep,
                run=context.run,
                owners=owners,
            )
            with resting(state.student):
                images, made = invert_pixels(
                    start, lambda x, y: self._inversion_loss(x, y, context, state), how, [labels]
                )
            remember(context, state, images, labels, lambda x, _: ensemble(x))
            learned = distil_pool(context, self, state)
            state.schedule.step()
            return {"inversion loss": made, "loss": learned}

        return [Phase("distil", self.epochs, epoch, work_of_epoch(self.inversion_steps))]

    def _inversion_loss(
        self, images: Tensor, labels: Tensor, room: Classroom, state: StudioState
    ) -> Tensor:
        logits, found = room.teachers.probed(images, ["batchnorm"] if self.features else [])
        answers = combine("logits", logits, room.teachers.known)
        loss = F.cross_entropy(answers, labels) + self.variation * total_variation(images)
        loss = loss + self.magnitude * images.square().sum() / len(images)
        if self.features:
            loss = loss + self.features * found["batchnorm"].mean()
        likeness = jensen_shannon(
            answers, room.plan.logits(state.student, images), self.competition_temperature
        )
        return loss + self.competition * (1 - likeness)

    def result(self, context: Classroom, state: StudioState) -> Result:
        return student_result(context, state, wants_batchnorm=self.features > 0)
