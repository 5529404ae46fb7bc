"""FedMITR: every client's transformer is inverted where it sees something; the rest of each
image is relabelled by the ensemble.

Paper: Exploring One-Shot Federated Learning by Model Inversion and Token Relabel with Vision
Transformers (anonymous), Algorithm 1.

    repeat for T epochs:
        for every client i, at once:  x <- noise, y <- uniform
            T_I times: x <- Adam step on CE(f_i(x), y) + alpha JS(f_i(x), f_S(x)) + alpha_tv TV(x) + alpha_l2 l2(x)       (3), (4)
                       at a stop: the r patches of lowest class attention (5) are inverted no more
        D_S <- D_S + all x;  x_h: the patches inverted to the end, x_l: the others
        for every batch of D_S: student <- SGD step on L_KD + lambda1 CE(f_S(x_h), y) + lambda2 KL(E_S(x_l), f_S(x_l))    (6)

| symbol | here |
|---|---|
| E_S, L_KD | (2): the mean of the clients' logits; (8): T^2 KL(E_S(x), f_S(x)) on whole images, weighed by ``distil`` (1) |
| alpha, alpha_tv, alpha_l2 | minus ``disagreement`` (4.1 calls alpha negative, A.2 gives its size), ``variation``, ``magnitude`` |
| r, lambda1, lambda2 | ``mask_ratio``, ``pseudo_labels``, ``relabel`` |

Departures. What the paper leaves open is a field, each with its reason in
docs/methods/fedmitr.md: ``stop_at`` (r of what remains at every iteration would leave nothing),
``stopped``, ``attention``, ``start_from``, ``magnitude``, ``disagreement_temperature``. f(x_h)
is a pass over the tokens x_h alone. The rows "DeepInversion" and of Tables 3 and 5 are settings,
listed there, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from attar.blocks.ensemble import NEVER
from attar.blocks.student import (
    Classroom,
    Schedule,
    StudioState,
    greyness,
    jensen_shannon,
    learn,
    open_classroom,
    open_studio,
    resting,
    student_result,
    total_variation,
    work_of_epoch,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.errors import SettingsError
from attar.methods.fedmitr.inversion import Inverted, Losses, SparseInversion, invert_sparsely
from attar.methods.fedmitr.relabel import (
    Batch,
    batch_of,
    blank_notes,
    collect,
    density,
    target_odds,
    token_relabel,
)
from attar.settings import require


@dataclass(frozen=True)
class FedMitr:
    """Sparse inversion of every client's transformer; poor patches are relabelled by the
    ensemble (FedMITR).
    """

    paper: ClassVar[str] = "anonymous, under review"
    cost: ClassVar[str] = "inverts a batch for every client; the pool grows by as many"

    epochs: int = 50  # T
    inversion_steps: int = 100  # T_I
    batch_size: int = 64  # b
    inversion_lr: float = 0.001  # eta_G
    beta1: float = 0.5
    beta2: float = 0.99
    disagreement: float = 1.0  # -alpha
    disagreement_temperature: float = 3.0  # of JS
    variation: float = 1e-4  # alpha_tv
    magnitude: float = 1e-5  # alpha_l2
    labels: Literal["uniform", "held"] = (
        "uniform"  # of y; held: uniform over the classes that the client has images of
    )
    mask_ratio: float = 0.3  # r, of the patches that remain
    stop_at: tuple[float, ...] = (
        0.2,
        0.4,
        0.6,
        0.8,
    )  # parts of T_I at which patches stop; 1: after the last step
    stopped: Literal["frozen", "drifting"] = (
        "frozen"  # drifting: priors and momentum go on moving their pixels
    )
    attention: Literal["client", "server"] = "client"  # whose class attention decides
    student_lr: float = 0.001  # eta_S
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: Schedule = "constant"
    temperature: float = 20.0  # of both distillations
    distil: float = 1.0  # of L_KD; 0: no whole images (Table 3, Inversion + PL)
    pseudo_labels: float = 0.5  # lambda1
    relabel: float = 0.5  # lambda2
    start_from: Literal["average", "uniform", "fresh"] = (
        "average"  # of the student, where --start gives no weights
    )
    clip: float | None = None
    pool_limit: int | None = None  # images; None: all of them
    pool_bytes: bool = False

    def __post_init__(self) -> None:
        zero = "epochs momentum weight_decay beta1 disagreement variation magnitude mask_ratio distil pseudo_labels relabel"
        require(self, may_be_zero=zero, at_most_one="mask_ratio beta1 beta2")
        if not (self.distil or self.pseudo_labels or self.relabel):
            raise SettingsError(
                "distil, pseudo_labels and relabel are all 0: the student would learn nothing."
            )

    @property
    def needs(self) -> Needs:
        return Needs(same_patches=True, label_counts=self.labels == "held")

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Classroom:
        room = open_classroom(uploads, server)
        if self.relabel:
            self._inversion(room).require_stops()
        return room

    def start(self, context: Classroom) -> StudioState:
        notes = blank_notes(self._inversion(context).remaining()[0], context.num_classes)
        return open_studio(
            context, self, start_from=self.start_from, batches=len(context.uploads), notes=notes
        )

    def phases(self, context: Classroom) -> Sequence[Phase]:
        return [
            Phase(
                "invert and relabel",
                self.epochs,
                partial(self._epoch, context),
                work_of_epoch(self.inversion_steps),
            )
        ]

    def _inversion(self, room: Classroom, *owners: object) -> SparseInversion:
        adam, frozen = (
            (self.inversion_steps, self.inversion_lr, (self.beta1, self.beta2)),
            self.stopped == "frozen",
        )
        return SparseInversion(
            *adam, self.mask_ratio, self.stop_at, room.plan.grid, frozen, room.run, owners
        )

    def invert(self, room: Classroom, state: StudioState) -> tuple[Inverted, Tensor]:
        """Lines 5 to 12 for all clients at once: images with their masks, and the labels (K, b)
        they were made for.
        """
        odds = target_odds(room, held=self.labels == "held")
        labels = torch.multinomial(odds, self.batch_size, True, generator=state.draws).to(
            room.device
        )
        noise = torch.randn(*labels.shape, *room.server.task.input_shape, generator=state.draws).to(
            room.device
        )
        how, loss = (
            self._inversion(room, state.student, state),
            partial(self._inversion_loss, room, state),
        )
        with resting(state.student):
            return invert_sparsely(0.5 + 0.5 * noise, loss, how, [labels]), labels

    def _epoch(self, room: Classroom, state: StudioState) -> Metrics:
        made, labels = self.invert(room, state)
        number, pool = self._inversion(room).remaining()[-1], state.pool  # patches in x_h
        collect(room, state, made, labels, number, low=self.relabel > 0)
        batches = (
            batch_of(pool, places, number) for places in pool.batches(self.batch_size, state.draws)
        )
        losses = [
            learn(room, self, state, lambda *b: self._relabel_loss(Batch(*b), room, state), *batch)
            for batch in batches
        ]
        state.schedule.step()
        return {"inversion loss": made.loss, "loss": torch.stack(losses).mean()}

    def _inversion_loss(
        self, room: Classroom, state: StudioState, images: Tensor, keep: Tensor, labels: Tensor
    ) -> Losses:
        """Eq. (3) and (4) of each client (K,), and the class attention of Eq. (5) that decides
        which patches stop.
        """
        unknown = ~room.teachers.known[:, None]
        logits, attention = room.teachers.look(images, keep)
        logits = logits.masked_fill(unknown, NEVER)
        loss = (
            F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            .view(labels.shape)
            .mean(1)
        )
        if self.disagreement or self.attention == "server":
            server = room.plan.look(state.student, images.flatten(0, 1), keep.flatten(0, 1))
            answers = (
                server.logits.to(logits).unflatten(0, labels.shape).masked_fill(unknown, NEVER)
            )
            apart = vmap(partial(jensen_shannon, temperature=self.disagreement_temperature))(
                logits, answers
            )
            loss = loss - self.disagreement * apart
            attention = (
                server.attention.unflatten(0, labels.shape).to(logits)
                if self.attention == "server"
                else attention
            )
        return loss + self.variation * vmap(total_variation)(images) + self.magnitude * vmap(
            greyness
        )(images), attention

    def _relabel_loss(self, batch: Batch, room: Classroom, state: StudioState) -> Tensor:
        return token_relabel(
            partial(room.plan.logits, state.student, batch.images), batch, self
        )  # (6)

    def result(self, context: Classroom, state: StudioState) -> Result:
        made, newest = student_result(context, state), len(context.uploads) * self.batch_size
        shown = (
            {"density": density(state.pool, newest, context.plan.grid)} if len(state.pool) else {}
        )
        return Result(made.models, made.arrays, {**made.images, **shown}, made.remarks)
