"""DENSE: a generator learns images that the ensemble recognises, a student learns its answers.

Paper: J. Zhang et al., DENSE: Data-Free One-Shot Federated Learning, NeurIPS 2022.

    repeat for T epochs:
        T_G times: x <- G(z);  G <- Adam step on CE(D(x), y) + lambda1 L_BN(x) + lambda2 L_div(x)
        pool <- pool + x
        for every batch x of the pool: student <- SGD step on KL(D(x) || f_S(x))

| symbol | here |
|---|---|
| D, f_S | the clients' mean of logits (or another ``ensemble``), the student |
| L_BN, lambda1 | ``statistics_gap``, sum over layers, mean over clients; ``stability`` |
| L_div, lambda2 | ``boundary_supporting``; ``transferability`` |

Departures:

- ``variant="authors"`` is what the authors' code does, ``"co-boosting"`` the baseline of this name
  in Co-Boosting's code. In both the BN term is always 0, the generator starts anew every epoch,
  the noise is trained too, the batch of the lowest loss is kept, and step sizes and temperatures
  differ. A variant fills the settings that were not given.
- Both codes augment the pool at every use. ``augment`` does so by itself: how is a matter of the
  data.
- Adam's moments start anew every epoch.
- With ``ensemble="stratified"`` FedHydra's stratification comes first and weights the clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import Augment, GeneratorTraining, PoolSettings, draw_labels
from attar.blocks.student import (
    DataFreeState,
    DistillationContext,
    StudentTraining,
    Weighting,
    add_to_pool,
    answer_extras,
    boundary_supporting,
    distil_augmented_epoch,
    distil_epoch,
    epoch_cost,
    frozen,
    prepare_context,
    start_batch,
    start_data_free,
    start_generator,
    start_pool,
    stratify_phase,
    student_result,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import NonNegative, NonNegativeInt, Positive, PositiveInt, settings

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors": {
        "batch_size": 256,
        "student_lr": 0.005,
        "stability": 0.0,
        "transferability": 1.0,
        "temperature": 20.0,
        "beta1": 0.5,
        "reset_generator": True,
        "train_noise": True,
        "keep": "best",
    },
    "co-boosting": {
        "weight_decay": 1e-4,
        "schedule": "cosine",
        "stability": 0.0,
        "transferability": 1.0,
        "temperature": 4.0,
        "clip": 10.0,
        "generator_temperature": 3.0,
        "beta1": 0.5,
        "reset_generator": True,
        "train_noise": True,
        "keep": "best",
    },
}


@settings(lambda method: VARIANTS[method.variant])
@dataclass(frozen=True)
class Dense:
    """A student learns from generated images that the ensemble recognises (Zhang et al. 2022)."""

    paper: ClassVar[str] = "Zhang et al., NeurIPS 2022"
    cost: ClassVar[str] = (
        "an epoch: T_G passes through all clients forward and backward, "
        "then one of the student over the pool"
    )
    needs: ClassVar[Needs] = Needs()

    epochs: NonNegativeInt = 200  # T
    batch_size: PositiveInt = 128  # b
    generator: GeneratorTraining = GeneratorTraining()
    student: StudentTraining = StudentTraining()
    pool: PoolSettings = PoolSettings()
    stability: NonNegative = 1.0  # lambda1
    transferability: NonNegative = 0.5  # lambda2
    generator_temperature: Positive = 1.0  # of L_div
    augment: Augment = "none"  # of the pool's images, anew at every use
    ensemble: Weighting = "uniform"  # how the clients' logits are weighted
    guidance_floor: Positive = 0.03  # of FedHydra's Eq. (2)
    # whose settings: the paper's or another code's
    variant: Literal["paper", "authors", "co-boosting"] = "paper"

    def prepare(self, uploads: Sequence[Upload], server: Server) -> DistillationContext:
        """Put the teachers on the device."""
        return prepare_context(uploads, server, self.ensemble)

    def start(self, context: DistillationContext) -> DataFreeState:
        """A fresh student, a fresh generator, an empty pool."""
        answers = answer_extras(context) if self.augment == "none" else None
        images = self.epochs * self.batch_size
        return start_data_free(
            context,
            self.student,
            self.epochs,
            pool=start_pool(context, self.pool, images, answers),
            generator=start_generator(context, self.generator),
        )

    def phases(self, context: DistillationContext) -> Sequence[Phase]:
        """The epochs; before them the stratification where it weights the clients."""
        cost = epoch_cost(self.generator.steps, cached=self.augment == "none")
        distil = Phase("distil", self.epochs, partial(self.epoch, context), cost)
        if self.ensemble != "stratified":
            return [distil]
        return [
            stratify_phase(context, self.generator, self.batch_size, self.guidance_floor),
            distil,
        ]

    def epoch(self, context: DistillationContext, state: DataFreeState) -> Metrics:
        """One of the T epochs."""
        labels = draw_labels(self.batch_size, context.num_classes, state.draws, context.device)  # y
        batch = start_batch(  # z
            context,
            state,
            self.generator_loss,
            self.generator,
            self.batch_size,
            clip=self.student.clip,
        )
        with frozen(state.student):
            for _ in range(self.generator.steps):  # T_G times
                generator_loss = batch.step(labels)  # x <- G(z);  G <- Adam step
        add_to_pool(context, state, batch.images, labels)  # pool <- pool + x
        student_loss = self.distil(context, state)  # for every batch x of the pool
        state.schedule.step()
        return {"generator loss": generator_loss, "loss": student_loss}

    def generator_loss(
        self, context: DistillationContext, state: DataFreeState, images: Tensor, labels: Tensor
    ) -> Tensor:
        """CE(D(x), y) + lambda1 L_BN(x) + lambda2 L_div(x)."""
        logits, gaps = context.teachers.with_hooks(images, ["batchnorm"] if self.stability else [])
        ensemble = context.weighting.combine(logits, labels, state.guidance)
        loss = F.cross_entropy(ensemble, labels)  # similarity
        if self.stability:
            loss = loss + self.stability * gaps["batchnorm"].mean()  # L_BN
        student = context.student_logits(state.student, images)
        diversity = boundary_supporting(ensemble, student, self.generator_temperature)  # L_div
        return loss + self.transferability * diversity

    def distil(self, context: DistillationContext, state: DataFreeState) -> Tensor:
        """One pass of the student over the pool on KL(D(x) || f_S(x)); the mean loss."""
        if self.augment == "none":
            return distil_epoch(context, state, self.student, self.batch_size)
        return distil_augmented_epoch(context, state, self.student, self.batch_size, self.augment)

    def result(self, context: DistillationContext, state: DataFreeState) -> Result:
        """The student and its newest images."""
        return student_result(context, state, wants_batchnorm=self.stability > 0)
