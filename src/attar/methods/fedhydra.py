"""FedHydra: each client's skill per class is measured through a generator and weighs its logits.

Paper: J. Bai, Y. Song et al., A Unified Solution to Diverse Heterogeneities in One-shot
Federated Learning, Algorithms 1 to 3.

    stratify: for client k and class j train a generator T_G steps on CE(F_k(G(z)), j);  u = (max - min) / min     (1)-(7)
    repeat for T_g epochs:
        T_G times: x <- G(z);  G <- Adam step on CE(P, y) + lambda1 L_BN - lambda2 KL(P, F_g(x))                  (12)-(16)
        student <- SGD step on KL(P || F_g(x)) + beta CE(F_g(x), H[P])                                              (17)-(19)

| symbol | here |
|---|---|
| P = SA(x, y) | ``stratified_weights`` in a sum of logits, (8)-(11) |
| U, U_r, U_c | ``state.guidance`` and ``across_clients``, ``across_classes`` of it |
| lambda1, lambda2, beta | ``stability``, ``diversity``, ``hard_labels`` |

Departures. Where the paper is silent: ``momentum`` 0.9 and KL at temperature 1, as in DENSE,
beta 1, and a floor under the divisor of (2), which can reach 0: one that gives weights like
those of Fig. 6 (b). By (2) a client does not know a class that it sees in noise from the
beginning: ``highest_of="client"`` mends that. ``replay``: Algorithm 1 takes one student step an
epoch on the last batch (``"last"``), 200 in all; section 2 says that all generated images are
used. By default the student passes over all kept batches as in DENSE (``"pool"``, a choice made
after our first runs, docs/results); ``"intermediate"``: one step on the images of every
generator step. (14) is DENSE's term, of the clients' BatchNorm layers. (15) counts all images;
DENSE, whose term it is, only those on which student and ensemble disagree:
``diversity_on="disagreements"``. P needs target labels; for images without (Fig. 8) class c is
judged by those who guide towards c.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import draw_labels
from attar.blocks.images.inversion import Keep
from attar.blocks.student import (
    Classroom,
    Guide,
    Highest,
    Schedule,
    StudioState,
    across_classes,
    across_clients,
    adversarial,
    blank_answers,
    boundary_supporting,
    distillation,
    generate,
    guided_phases,
    hard_label,
    learn,
    open_classroom,
    open_studio,
    remember,
    remembered,
    room_generator,
    student_result,
    work_of_epoch,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import require


@dataclass(frozen=True)
class FedHydra:
    """Clients are weighed by how well they guide a generator towards each class (Bai, Song et al.)."""

    paper: ClassVar[str] = "Bai, Song et al., FedHydra"
    cost: ClassVar[str] = "first clients x classes x T_G generator steps, then as dense"
    needs: ClassVar[Needs] = Needs()

    epochs: int = 200  # T_g
    generator_steps: int = 30  # T_G
    batch_size: int = 128  # b
    generator_lr: float = 1e-3  # eta_G
    student_lr: float = 0.01  # eta_g
    stability: float = 1.0  # lambda1
    diversity: float = 0.5  # lambda2
    diversity_on: Literal["all", "disagreements"] = "all"  # images that (15) counts
    hard_labels: float = 1.0  # beta
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    temperature: float = 1.0
    replay: Literal["last", "intermediate", "pool"] = "pool"
    guidance_floor: float = 0.03  # under the divisor of (2)
    highest_of: Highest = "class"  # max L of (2): of that class, or of all classes of the client
    clip: float | None = None
    noise: int = 256
    generator_width: int = 64
    beta1: float = 0.9
    reset_generator: bool = False
    train_noise: bool = False
    keep: Keep = "last"
    pool_limit: int | None = None
    pool_bytes: bool = False

    def __post_init__(self) -> None:
        require(
            self, may_be_zero="epochs momentum weight_decay stability diversity hard_labels beta1"
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Classroom:
        return open_classroom(uploads, server)

    def start(self, context: Classroom) -> StudioState:
        kept = self if self.replay == "pool" else replace(self, pool_limit=self.batch_size)
        return open_studio(
            context, kept, room_generator(context, self), notes=blank_answers(context)
        )

    def phases(self, context: Classroom) -> Sequence[Phase]:
        guide = Guide(context, "stratified")
        replayed = {"last": 0, "intermediate": self.generator_steps, "pool": None}[self.replay]
        work = (
            work_of_epoch(self.generator_steps)
            if replayed is None
            else lambda _: 2.0 * self.generator_steps + replayed
        )
        distil = Phase("distil", self.epochs, lambda state: self._epoch(guide, state), work)
        return guided_phases(
            context, self, "stratified", self.guidance_floor, distil, self.highest_of
        )  # Algorithm 2 first

    def _epoch(self, guide: Guide, state: StudioState) -> Metrics:
        room, seen = guide.room, list[Tensor]()

        def generator_loss(images: Tensor, labels: Tensor) -> Tensor:
            logits, found = room.teachers.probed(images, ["batchnorm"] if self.stability else [])
            stratified = guide.combine(logits, labels, state)  # P, (12)
            loss = F.cross_entropy(stratified, labels)  # (13)
            if self.stability:
                loss = loss + self.stability * found["batchnorm"].mean()  # (14)
            student = room.plan.logits(state.student, images)
            apart = adversarial if self.diversity_on == "all" else boundary_supporting
            return loss + self.diversity * apart(
                stratified, student, self.temperature
            )  # (15), (16)

        labels = draw_labels(self.batch_size, room.num_classes, state.draws, room.device)
        show = seen.append if self.replay == "intermediate" else None
        images, made = generate(room, self, state, generator_loss, labels, show=show)

        def answer(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                return guide.answer(x, y, state)

        remember(room, state, images, labels, answer)
        batches = remembered(self, state)
        if self.replay != "pool":
            batches = ((x, answer(x, labels)) for x in seen or [images])
        losses = [
            learn(room, self, state, lambda x, p: self._loss(x, p, room, state), *batch)
            for batch in batches
        ]
        state.schedule.step()
        return {"generator loss": made, "loss": torch.stack(losses).mean()}

    def _loss(
        self, images: Tensor, stratified: Tensor, room: Classroom, state: StudioState
    ) -> Tensor:
        student = room.plan.logits(state.student, images)
        loss = distillation(student, stratified, self.temperature)  # (17)
        return loss + self.hard_labels * hard_label(student, stratified)  # (18), (19)

    def result(self, context: Classroom, state: StudioState) -> Result:
        made = student_result(context, state, wants_batchnorm=self.stability > 0)
        table = state.guidance
        arrays = {
            "guidance": table,
            "across clients": across_clients(table),
            "across classes": across_classes(table),
        }
        models = {**made.models, "ensemble": Guide(context, "stratified").deployable(state)}
        return Result(models, arrays, made.images, made.remarks)
