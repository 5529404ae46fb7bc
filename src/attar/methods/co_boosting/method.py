"""Co-Boosting: hard synthetic samples and the weights of the ensemble improve each other while a
student is distilled.

Paper: R. Dai et al., Enhancing One-Shot Federated Learning Through Data and Ensemble
Co-Boosting, ICLR 2024, Algorithm 1.

    repeat for T epochs:
        T_G times: x <- G(z);  G <- Adam step on L_H(x, y) + beta L_A(x)                     (8) of (5), (6), (7)
        D_S <- D_S + x;  every x of D_S <- x + eps g / ||g||,  g = gradient of u^T A_w(x)     (10)
        w <- Normalize(w - mu sign(gradient of CE(A_w(x), y)))                               (12)
        for every batch x of D_S: student <- SGD step on T^2 KL(A_w(x) || f_S(x))            (4)

A_w = sum_k w_k f_k (2), w = 1/n at first. GHS, DHS, EE of Table 7: ``hard_generation``,
``hard_distillation``, ``weight_steps``. Departures. B.1 prints eta_G = 1e3 for 1e-3. (10)'s l2
step of 8/255 hardly moves a pixel; ``direction="sign"`` is the code's. (12) is one step an epoch
over D_S; ``weight_steps="batch"``: one with each batch of it. ``variant="code"``: A_w divided by
the sum of w, signs of 4/255 on softened probabilities, weights stepped on the old pool, a fresh
generator every epoch; docs/methods has all of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import Augment, draw_labels
from attar.blocks.images.inversion import Keep
from attar.blocks.student import (
    Classroom,
    Guide,
    Schedule,
    Weighing,
    adversarial,
    distillation,
    generate,
    guided_phases,
    hard_sample,
    learn,
    open_classroom,
    open_studio,
    room_generator,
    student_result,
    work_of_epoch,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.methods.co_boosting.hard_samples import (
    BoostingState,
    Hardened,
    hardened,
    normalised,
    pool_batches,
    sign_step,
)
from attar.settings import presets, require

CODE: dict[str, Any] = {
    "weight_decay": 1e-4, "schedule": "cosine", "generator_temperature": 3.0, "clip": 10.0, "beta1": 0.5, "epsilon": 4 / 255,
    "direction": "sign", "perturb": "probabilities", "divide": True, "weight_steps": "old", "weight_step_decay": 0.99,
    "reset_generator": True, "train_noise": True, "keep": "best",
}  # fmt: skip


@presets(lambda given: CODE if given.variant == "code" else {})
@dataclass(frozen=True)
class CoBoosting:
    """Hard samples and ensemble weights improve each other while the student learns (Dai et al.
    2024).
    """

    paper: ClassVar[str] = "Dai et al., ICLR 2024"
    cost: ClassVar[str] = "as dense; the pool passes the clients twice and once back"
    needs: ClassVar[Needs] = Needs()

    epochs: int = 500  # T
    generator_steps: int = 30  # T_G
    batch_size: int = 128  # b
    generator_lr: float = 1e-3  # eta_G
    student_lr: float = 0.01  # eta_S
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    temperature: float = 4.0  # of the distillation
    generator_temperature: float = 1.0  # of (7)
    adversarial: float = 1.0  # beta
    epsilon: float = 8 / 255
    direction: Literal["l2", "sign"] = "l2"
    perturb: Literal["logits", "probabilities"] = "logits"  # what u is multiplied with in (10)
    weight_step: float | None = None  # mu; None: 0.1 / n
    weight_step_decay: float = 1.0  # per epoch
    weight_steps: Literal["epoch", "batch", "old", "never"] = (
        "epoch"  # EE; old: batches of the plain pool before it grows
    )
    divide: bool = False  # A_w divided by the sum of w
    hard_generation: bool = True  # GHS
    hard_distillation: bool = True  # DHS
    clip: float | None = None
    noise: int = 256  # dimensions of z
    generator_width: int = 64
    beta1: float = 0.9
    reset_generator: bool = False
    train_noise: bool = False
    keep: Keep = "last"
    pool_limit: int | None = None  # images; None: all of them
    pool_bytes: bool = False
    augment: Augment = "none"  # of the pool, anew at every use: the code's way, too
    ensemble: Weighing = "uniform"
    guidance_floor: float = 0.03
    variant: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        require(
            self,
            may_be_zero="epochs momentum weight_decay epsilon weight_step weight_step_decay adversarial beta1",
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Classroom:
        return open_classroom(uploads, server)

    def start(self, context: Classroom) -> BoostingState:
        studio, clients = (
            open_studio(context, self, room_generator(context, self)),
            len(context.uploads),
        )
        return BoostingState(
            **vars(studio), weights=torch.full((clients,), 1 / clients, device=context.device)
        )

    def phases(self, context: Classroom) -> Sequence[Phase]:
        guide = Guide(context, self.ensemble)
        boost = Phase(
            "boost",
            self.epochs,
            partial(self._epoch, guide),
            work_of_epoch(self.generator_steps, asked=True),
        )
        return guided_phases(context, self, self.ensemble, self.guidance_floor, boost)

    def _epoch(self, guide: Guide, state: BoostingState) -> Metrics:
        room = guide.room
        shown = partial(
            pool_batches, room, state, self.batch_size, augment=self.augment, together=room.together
        )
        labels = draw_labels(self.batch_size, room.num_classes, state.draws, room.device)
        images, made = generate(
            room, self, state, lambda x, y: self._generator_loss(x, y, guide, state), labels
        )
        if self.weight_steps == "old":
            for batch in shown():
                self._reweigh([batch], guide, state)
        state.pool.add(images, labels)

        def harden(x: Tensor, y: Tensor, towards: Tensor) -> Tensor:
            return hardened(
                x, lambda v: self._ensemble(room.teachers(v), y, guide, state), towards, self
            )  # (10)

        def distil(x: Tensor, y: Tensor, logits: Tensor) -> Tensor:
            answers = self._ensemble(logits, y, guide, state)
            return distillation(
                room.plan.logits(state.student, x), answers, self.temperature
            )  # (4)

        batches: Iterable[Hardened] = shown(harden if self.hard_distillation else None)
        if self.weight_steps in ("epoch", "batch"):
            batches = list(batches)
            for some in (
                [batches] if self.weight_steps == "epoch" else [[batch] for batch in batches]
            ):
                self._reweigh(some, guide, state)
        losses = [
            learn(room, self, state, distil, batch.images, batch.labels, batch.logits)
            for batch in batches
        ]
        state.schedule.step()
        return {"generator loss": made, "loss": torch.stack(losses).mean()}

    def _ensemble(
        self,
        logits: Tensor,
        labels: Tensor,
        guide: Guide,
        state: BoostingState,
        w: Tensor | None = None,
    ) -> Tensor:
        return guide.combine(
            logits, labels, state, own=state.weights if w is None else w, divide=self.divide
        )  # (2)

    def _generator_loss(
        self, images: Tensor, labels: Tensor, guide: Guide, state: BoostingState
    ) -> Tensor:
        answers = self._ensemble(guide.room.teachers(images), labels, guide, state)
        if not self.hard_generation:
            return F.cross_entropy(answers, labels)  # (3)
        student = guide.room.plan.logits(state.student, images)
        apart = adversarial(answers, student, self.generator_temperature)  # (7)
        return hard_sample(answers, labels) + self.adversarial * apart  # (6), (8)

    def _reweigh(self, batches: Sequence[Hardened], guide: Guide, state: BoostingState) -> None:
        run, size = (
            guide.room.run,
            0.1 / len(state.weights) if self.weight_step is None else self.weight_step,
        )  # mu
        step = sign_step(
            state.weights,
            batches,
            lambda f, y, w: self._ensemble(f, y, guide, state, w),
            run,
            [state],
        )  # (11)
        state.weights.copy_(
            normalised(state.weights - size * self.weight_step_decay**state.step * step)
        )  # (12)

    def result(self, context: Classroom, state: BoostingState) -> Result:
        made, guide = student_result(context, state), Guide(context, self.ensemble)
        learned = guide.deployable(state, own=state.weights, divide=self.divide)
        return Result(
            {**made.models, "ensemble": learned}, {"weights": state.weights.clone()}, made.images
        )
