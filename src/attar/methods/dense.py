"""DENSE: a generator learns images that the ensemble recognises, a student learns the ensemble's
answers on them.

Paper: J. Zhang et al., DENSE: Data-Free One-Shot Federated Learning, NeurIPS 2022.

    repeat for T epochs:
        T_G times: x <- G(z);  G <- Adam step on CE(D(x), y) + lambda1 L_BN(x) + lambda2 L_div(x)
        pool <- pool + x
        for every batch x of the pool: student <- SGD step on KL(D(x) || f_S(x))

| symbol | here |
|---|---|
| D, f_S | the clients' mean of logits (or another ``ensemble``), the student |
| L_BN, lambda1 | ``statistics_gap`` summed over layers, mean over clients (FedHydra Eq. 14); ``stability`` |
| L_div, lambda2 | ``boundary_supporting``; ``transferability`` |

Departures. ``variant="authors"`` is what the authors' code does, ``"co-boosting"`` the baseline
of this name in Co-Boosting's code: there the BN term is always 0, the generator starts anew
every epoch, the noise is trained too, the batch of the lowest loss is kept, and step sizes and
temperatures differ. A variant fills the fields that were left at their defaults. Both augment
the pool at every use; ``augment`` does, by itself, since how is a matter of the data. Adam's
moments start anew every epoch. With ``ensemble="stratified"`` FedHydra's stratification comes
first and weighs the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import Augment, draw_labels
from attar.blocks.images.inversion import Keep
from attar.blocks.student import (
    Classroom,
    Guide,
    Schedule,
    StudioState,
    Weighing,
    blank_answers,
    boundary_supporting,
    distil_anew,
    distil_pool,
    generate,
    guided_phases,
    open_classroom,
    open_studio,
    remember,
    room_generator,
    student_result,
    work_of_epoch,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import presets, require

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors": {
        "batch_size": 256, "student_lr": 0.005, "stability": 0.0, "transferability": 1.0, "temperature": 20.0, "beta1": 0.5,
        "reset_generator": True, "train_noise": True, "keep": "best",
    },
    "co-boosting": {
        "weight_decay": 1e-4, "schedule": "cosine", "stability": 0.0, "transferability": 1.0, "temperature": 4.0, "clip": 10.0,
        "generator_temperature": 3.0, "beta1": 0.5, "reset_generator": True, "train_noise": True, "keep": "best",
    },
}  # fmt: skip


@presets(lambda given: VARIANTS[given.variant])
@dataclass(frozen=True)
class Dense:
    """A generator makes images that the ensemble recognises, a student learns from them (Zhang
    et al. 2022).
    """

    paper: ClassVar[str] = "Zhang et al., NeurIPS 2022"
    cost: ClassVar[str] = (
        "an epoch: T_G passes through all clients forth and back, then one of the student over the pool"
    )
    needs: ClassVar[Needs] = Needs()

    epochs: int = 200  # T
    generator_steps: int = 30  # T_G
    batch_size: int = 128  # b
    generator_lr: float = 1e-3  # eta_G
    student_lr: float = 0.01  # eta_S
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    stability: float = 1.0  # lambda1
    transferability: float = 0.5  # lambda2
    temperature: float = 1.0  # of the distillation
    generator_temperature: float = 1.0  # of L_div
    clip: float | None = None
    noise: int = 256
    generator_width: int = 64
    beta1: float = 0.9  # of the generator's Adam
    reset_generator: bool = False
    train_noise: bool = False
    keep: Keep = "last"
    pool_limit: int | None = None  # images; None: all of them
    pool_bytes: bool = False  # keep the pool as uint8
    augment: Augment = "none"  # of the pool's images, anew at every use
    ensemble: Weighing = "uniform"
    guidance_floor: float = 0.03  # of FedHydra's Eq. (2)
    variant: Literal["paper", "authors", "co-boosting"] = "paper"

    def __post_init__(self) -> None:
        require(self, may_be_zero="epochs momentum weight_decay stability transferability beta1")

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Classroom:
        return open_classroom(uploads, server)

    def start(self, context: Classroom) -> StudioState:
        notes = blank_answers(context) if self.augment == "none" else None
        return open_studio(context, self, room_generator(context, self), notes=notes)

    def phases(self, context: Classroom) -> Sequence[Phase]:
        guide = Guide(context, self.ensemble)

        def grow_and_distil(state: StudioState, images: Tensor, labels: Tensor) -> Tensor:
            def answer(x: Tensor, y: Tensor) -> Tensor:
                return guide.answer(x, y, state)

            if self.augment == "none":
                remember(context, state, images, labels, answer)
                return distil_pool(context, self, state)
            state.pool.add(images, labels)
            return distil_anew(context, self, state, answer, self.augment)

        def epoch(state: StudioState) -> Metrics:
            labels = draw_labels(self.batch_size, context.num_classes, state.draws, context.device)
            images, made = generate(
                context, self, state, lambda x, y: self._generator_loss(x, y, guide, state), labels
            )
            learned = grow_and_distil(state, images, labels)
            state.schedule.step()
            return {"generator loss": made, "loss": learned}

        distil = Phase(
            "distil",
            self.epochs,
            epoch,
            work_of_epoch(self.generator_steps, asked=self.augment != "none"),
        )
        return guided_phases(context, self, self.ensemble, self.guidance_floor, distil)

    def _generator_loss(
        self, images: Tensor, labels: Tensor, guide: Guide, state: StudioState
    ) -> Tensor:
        room = guide.room
        logits, found = room.teachers.probed(images, ["batchnorm"] if self.stability else [])
        ensemble = guide.combine(logits, labels, state)
        loss = F.cross_entropy(ensemble, labels)  # similarity
        if self.stability:
            loss = loss + self.stability * found["batchnorm"].mean()  # stability
        student = room.plan.logits(state.student, images)
        return loss + self.transferability * boundary_supporting(
            ensemble, student, self.generator_temperature
        )

    def result(self, context: Classroom, state: StudioState) -> Result:
        return student_result(context, state, wants_batchnorm=self.stability > 0)
