"""Co-Boosting: hard synthetic samples and the ensemble's weights improve each other.

Paper: R. Dai et al., Enhancing One-Shot Federated Learning Through Data and Ensemble
Co-Boosting, ICLR 2024, Algorithm 1.

    repeat for T epochs:
        T_G times: x <- G(z);  G <- Adam step on L_H(x, y) + beta L_A(x)                    (5)-(8)
        D_S <- D_S + x;  every x of D_S <- x + eps g / ||g||,  g = gradient of u^T A_w(x)   (10)
        w <- Normalize(w - mu sign(gradient of CE(A_w(x), y)))                              (12)
        for every batch x of D_S: student <- SGD step on T^2 KL(A_w(x) || f_S(x))           (4)

A_w = sum_k w_k f_k (2), w = 1/n at first. GHS, DHS and EE of Table 7 are ``hard_generation``,
``hard_distillation`` and ``weight_steps``.

Departures. The default, ``variant="code"``, is the loop of the authors' code: A_w is divided by the
sum of w; (10) takes the sign of g and steps of 4/255, with u on softened probabilities; (12) is a
step with each batch of the plain pool before it grows, and its size decays; every epoch has a fresh
generator; the student's rate follows a cosine. ``variant="paper"`` is what is printed above, with
(12) as one step an epoch over D_S. ``variant="revised"`` is that with the division and the signs.
B.1 prints eta_G = 1e3 for 1e-3. docs/methods has all of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import combine
from attar.blocks.images import Augment, GeneratorTraining, PoolSettings, draw_labels
from attar.blocks.student import (
    DistillationContext,
    StudentTraining,
    Weighting,
    adversarial,
    distillation,
    epoch_cost,
    frozen,
    hard_sample,
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
from attar.methods.co_boosting.hard_samples import (
    BoostingState,
    Harden,
    PoolBatch,
    perturb_images,
    pool_batches,
    scale_weights,
    stepped_weights,
)
from attar.settings import NonNegative, NonNegativeInt, Positive, PositiveInt, settings

# What is printed, as far as the default, the authors' code, differs from it.
PRINTED: dict[str, Any] = {
    "weight_decay": 0.0,
    "schedule": "constant",
    "generator_temperature": 1.0,
    "clip": None,
    "beta1": 0.9,
    "epsilon": 8 / 255,
    "direction": "l2",
    "perturb": "logits",
    "divide": False,
    "weight_steps": "epoch",
    "weight_step_decay": 1.0,
    "reset_generator": False,
    "train_noise": False,
    "keep": "last",
}
# Of the code's choices those without which (12) and (10) do not do what the text says of them.
REVISED: dict[str, Any] = {"divide": True, "direction": "sign", "epsilon": 4 / 255}
VARIANTS: dict[str, dict[str, Any]] = {"code": {}, "paper": PRINTED, "revised": PRINTED | REVISED}


@settings(lambda method: VARIANTS[method.variant])
@dataclass(frozen=True)
class CoBoosting:
    """Hard samples and ensemble weights improve each other for a student (Dai et al. 2024)."""

    paper: ClassVar[str] = "Dai et al., ICLR 2024"
    cost: ClassVar[str] = "as dense; the pool passes all clients 3 times forward and once backward"
    needs: ClassVar[Needs] = Needs()

    epochs: NonNegativeInt = 500  # T
    batch_size: PositiveInt = 128  # b
    generator: GeneratorTraining = GeneratorTraining(
        beta1=0.5, reset=True, train_noise=True, keep="best"
    )
    student: StudentTraining = StudentTraining(
        temperature=4.0, weight_decay=1e-4, schedule="cosine", clip=10.0
    )
    pool: PoolSettings = PoolSettings()
    generator_temperature: Positive = 3.0  # of (7)
    adversarial: NonNegative = 1.0  # beta
    epsilon: NonNegative = 4 / 255  # four grey levels: the code's 8/255 of the range [-1, 1]
    # of the hard sample's step: the gradient, or its sign
    direction: Literal["l2", "sign"] = "sign"
    # what u is multiplied with in (10)
    perturb: Literal["logits", "probabilities"] = "probabilities"
    weight_step: NonNegative | None = None  # mu; None: 0.1 / n
    weight_step_decay: NonNegative = 0.99  # per epoch
    # EE; old: on the batches of the plain pool before it grows
    weight_steps: Literal["epoch", "batch", "old", "never"] = "old"
    divide: bool = True  # A_w divided by the sum of w
    hard_generation: bool = True  # GHS
    hard_distillation: bool = True  # DHS
    augment: Augment = "none"  # of the pool, anew at every use: the code's way, too
    ensemble: Weighting = "uniform"  # how the clients' weights start
    guidance_floor: Positive = 0.03  # under the divisor of FedHydra's Eq. (2)
    variant: Literal["code", "paper", "revised"] = "code"  # whose settings

    def prepare(self, uploads: Sequence[Upload], server: Server) -> DistillationContext:
        """Put the teachers on the device."""
        return prepare_context(uploads, server, self.ensemble)

    def start(self, context: DistillationContext) -> BoostingState:
        """A fresh student, a fresh generator, an empty pool, w = 1/n."""
        state = start_data_free(
            context,
            self.student,
            self.epochs,
            pool=start_pool(context, self.pool, self.epochs * self.batch_size),
            generator=start_generator(context, self.generator),
        )
        clients = len(context.uploads)
        weights = torch.full((clients,), 1 / clients, device=context.device)
        return BoostingState(**vars(state), weights=weights)

    def phases(self, context: DistillationContext) -> Sequence[Phase]:
        """The epochs; before them the stratification where it weights the clients."""
        cost = epoch_cost(self.generator.steps, cached=False)
        boost = Phase("boost", self.epochs, partial(self.epoch, context), cost)
        if self.ensemble != "stratified":
            return [boost]
        return [
            stratify_phase(context, self.generator, self.batch_size, self.guidance_floor),
            boost,
        ]

    def epoch(self, context: DistillationContext, state: BoostingState) -> Metrics:
        """One of the T epochs of Algorithm 1."""
        labels = draw_labels(self.batch_size, context.num_classes, state.draws, context.device)
        batch = start_batch(  # line 5
            context,
            state,
            self.generator_loss,
            self.generator,
            self.batch_size,
            clip=self.student.clip,
        )
        with frozen(state.student):
            for _ in range(self.generator.steps):  # T_G times, lines 6 to 9
                generator_loss = batch.step(labels)  # (8)
        self.boost_weights_on_old_pool(context, state)
        state.pool.add(batch.images, labels)  # D_S <- D_S + x, line 10
        batches = self.hard_batches(context, state)  # (10), line 11
        batches = self.boost_weights(context, state, batches)  # (12), lines 13 and 14
        student_losses = [  # (4), lines 16 to 18
            student_step(
                context,
                state,
                self.student,
                self.student_loss,
                batch.images,
                batch.labels,
                batch.logits,
            )
            for batch in batches
        ]
        state.schedule.step()
        return {"generator loss": generator_loss, "loss": torch.stack(student_losses).mean()}

    def weighted_ensemble(
        self,
        context: DistillationContext,
        state: BoostingState,
        logits: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """A_w of Eq. (2), (B, C).

        Args:
            context: what ``prepare`` made.
            state: its guidance and weights.
            logits: of the clients, (K, B, C).
            labels: target labels (B,), which a stratified weighting reads.
            weights: w; None: those of the state.
        """
        base = context.weighting.for_labels(state.guidance, labels)
        clients = scale_weights(base, state.weights if weights is None else weights)
        divide = self.divide and self.ensemble != "stratified"
        return combine("logits" if divide else "sum", logits, context.teachers.known, clients)

    def generator_loss(
        self, context: DistillationContext, state: BoostingState, images: Tensor, labels: Tensor
    ) -> Tensor:
        """L_H(x, y) + beta L_A(x), Eq. (8); without GHS Eq. (3)."""
        ensemble = self.weighted_ensemble(context, state, context.teachers(images), labels)
        if not self.hard_generation:
            return F.cross_entropy(ensemble, labels)  # (3)
        student = context.student_logits(state.student, images)
        disagreement = adversarial(ensemble, student, self.generator_temperature)  # (7)
        return hard_sample(ensemble, labels) + self.adversarial * disagreement  # (6), (8)

    def hard_batches(
        self, context: DistillationContext, state: BoostingState
    ) -> Iterable[PoolBatch]:
        """Every batch of D_S, moved along Eq. (10); without DHS as it is."""
        if not self.hard_distillation:
            return self.pool_batches(context, state)
        return self.pool_batches(context, state, partial(self.harden, context, state))

    def pool_batches(
        self, context: DistillationContext, state: BoostingState, harden: Harden | None = None
    ) -> Iterator[PoolBatch]:
        """Every batch of D_S, with the clients' logits on it."""
        return pool_batches(
            context,
            state,
            self.batch_size,
            harden,
            augment=self.augment,
            together=context.batches_together,
        )

    def harden(
        self,
        context: DistillationContext,
        state: BoostingState,
        images: Tensor,
        labels: Tensor,
        directions: Tensor,
    ) -> Tensor:
        """x + eps g / ||g||, g the gradient of u^T A_w(x), Eq. (10)."""

        def output(images: Tensor) -> Tensor:
            logits = self.weighted_ensemble(context, state, context.teachers(images), labels)
            if self.perturb == "logits":
                return logits
            return (logits / self.student.temperature).softmax(-1)

        return perturb_images(images, output, directions, self.epsilon, self.direction)

    def boost_weights(
        self, context: DistillationContext, state: BoostingState, batches: Iterable[PoolBatch]
    ) -> Iterable[PoolBatch]:
        """Step the weights on hard batches, as ``weight_steps`` says; returns the same batches."""
        match self.weight_steps:
            case "epoch":
                batches = list(batches)
                self.step_weights(context, state, batches)
            case "batch":
                batches = list(batches)
                for batch in batches:
                    self.step_weights(context, state, [batch])
            case "old" | "never":
                pass
        return batches

    def boost_weights_on_old_pool(self, context: DistillationContext, state: BoostingState) -> None:
        """``weight_steps="old"``: one step on each plain batch of the pool before it grows."""
        if self.weight_steps == "old":
            for batch in self.pool_batches(context, state):
                self.step_weights(context, state, [batch])

    def step_weights(
        self, context: DistillationContext, state: BoostingState, batches: Sequence[PoolBatch]
    ) -> None:
        """w <- Normalize(w - mu sign(gradient of CE(A_w(x), y))), Eq. (12), in place."""
        first = 0.1 / len(state.weights) if self.weight_step is None else self.weight_step
        updated = stepped_weights(  # (11), (12)
            state.weights,
            batches,
            partial(self.weighted_ensemble, context, state),
            first * self.weight_step_decay**state.step,  # mu
            context.run,
            [state],
        )
        state.weights.copy_(updated)

    def student_loss(
        self,
        context: DistillationContext,
        state: BoostingState,
        images: Tensor,
        labels: Tensor,
        logits: Tensor,
    ) -> Tensor:
        """T^2 KL(A_w(x) || f_S(x)), Eq. (4), from the clients' logits (K, B, C)."""
        ensemble = self.weighted_ensemble(context, state, logits, labels)
        student = context.student_logits(state.student, images)
        return distillation(student, ensemble, self.student.temperature)

    def result(self, context: DistillationContext, state: BoostingState) -> Result:
        """The student, the ensemble with the learned weights, and these weights."""
        distilled = student_result(context, state)
        base = context.weighting.without_labels(state.guidance)
        rule = "logits" if self.divide else "sum"
        ensemble = context.mixture(rule, scale_weights(base, state.weights))
        return Result(
            models={**distilled.models, "ensemble": ensemble},
            arrays={"weights": state.weights.clone()},
            images=distilled.images,
        )
