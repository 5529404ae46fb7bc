"""FedMITR: invert the clients' transformers where they look, relabel the other patches.

Paper: Exploring One-Shot Federated Learning by Model Inversion and Token Relabel with Vision
Transformers (anonymous), Algorithm 1.

    repeat for T epochs:
        for every client i:  x <- noise, y <- uniform
            T_I times:  x <- Adam step on CE(f_i(x), y) + alpha JS(f_i(x), f_S(x))      (3)
                                          + alpha_tv TV(x) + alpha_l2 l2(x)             (4)
                        at a stop: the r patches of lowest class attention stop         (5)
        D_S <- D_S + all x;  x_h: the patches that were inverted to the end, x_l: the others
        for every batch of D_S:
            student <- SGD step on L_KD + lambda1 CE(f_S(x_h), y)
                                        + lambda2 KL(E_S(x_l), f_S(x_l))                (6)

| symbol | here |
|---|---|
| E_S | (2), the mean of the clients' logits |
| L_KD | (8), T^2 KL(E_S(x), f_S(x)) on whole images, with the weight ``distil`` = 1 |
| alpha | ``disagreement`` with a minus: 4.1 says that alpha is negative, A.2 gives its size |
| alpha_tv, alpha_l2 | ``variation``, ``magnitude`` |
| r, lambda1, lambda2 | ``mask_ratio``, ``pseudo_labels``, ``relabel`` |

Departures:

- What the paper leaves open is a setting: ``stop_at`` (stopping a part r of the remaining patches
  at every iteration would leave none), ``stopped``, ``attention``, ``start_from``, ``magnitude``,
  ``disagreement_temperature``, ``disagreement_unit``, ``priors``, ``noise_spread``, ``jitter``, and
  ``learn_from``: which batches line 15 means. docs/methods/fedmitr.md has the reason for each.
- f(x_h) is a pass over the tokens x_h alone.
- The row "DeepInversion" and those of Tables 3 and 5 are settings, listed on that page, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from attar.blocks.ensemble import NEVER
from attar.blocks.images import PoolSettings
from attar.blocks.student import (
    DataFreeState,
    DistillationContext,
    StudentTraining,
    epoch_cost,
    frozen,
    greyness,
    jensen_shannon,
    prepare_context,
    start_data_free,
    start_pool,
    student_result,
    student_step,
    total_variation,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.errors import SettingsError
from attar.methods.fedmitr.inversion import (
    Losses,
    SparseInversion,
    Sparsity,
    draw_moves,
    move_images,
    move_patches,
)
from attar.methods.fedmitr.relabel import (
    Batch,
    LearnFrom,
    TokenRelabel,
    add_inverted,
    epoch_places,
    label_odds,
    pool_extras,
    read_batch,
    show_density,
    token_relabel,
)
from attar.settings import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveFraction,
    PositiveInt,
    flat,
    settings,
)


@dataclass(frozen=True)
class Inversion:
    """How images are inverted: Adam on Eq. (3) and (4).

    Attributes:
        steps: T_I.
        lr: eta_G of Adam.
        beta1: of Adam.
        beta2: of Adam.
        disagreement: -alpha, the weight of the Jensen-Shannon divergence, which is subtracted.
        disagreement_temperature: of the divergence.
        disagreement_unit: of the divergence; a bit is ln 2 = 0.69 nats, so the same weight counts
            1.44 times as much in bits.
        variation: alpha_tv, the weight of the total variation.
        magnitude: alpha_l2, the weight of the distance from grey.
        priors: whether both are of pixels in [0, 1], or of images normalised as the student sees
            them.
        noise_spread: the standard deviation of the first pixels around grey; they are clamped to
            [0, 1], with 0.5 nearly a third of them.
        jitter: whether each client's images are shifted by up to an eighth, and flipped half of the
            time, before each step.
        labels: whether wanted labels are uniform over the classes that a client knows, or over
            those that it counted images of.
    """

    steps: PositiveInt = flat("inversion_steps", 100)  # T_I
    lr: Positive = flat("inversion_lr", 0.001)  # eta_G
    beta1: Fraction = 0.5
    beta2: PositiveFraction = 0.99
    disagreement: NonNegative = 1.0  # -alpha
    disagreement_temperature: Positive = 3.0  # of JS
    disagreement_unit: Literal["bits", "nats"] = "bits"  # of JS
    variation: NonNegative = 1e-4  # alpha_tv
    magnitude: NonNegative = 1e-5  # alpha_l2
    priors: Literal["pixels", "normalised"] = "pixels"  # what both look at
    noise_spread: Positive = 0.5  # of the first pixels around grey
    jitter: bool = False  # shift by up to an eighth and flip, before each step
    labels: Literal["uniform", "held"] = "uniform"  # of y; held: classes the client has images of

    @property
    def disagreement_in_bits(self) -> float:
        """The weight of a divergence that is measured in bits."""
        return self.disagreement * (math.log(2) if self.disagreement_unit == "nats" else 1.0)


@settings()
@dataclass(frozen=True)
class FedMitr:
    """Sparse inversion of the clients' transformers, poor patches relabelled by the ensemble."""

    paper: ClassVar[str] = "anonymous, under review"
    cost: ClassVar[str] = "inverts a batch for every client; the pool grows by as many"

    epochs: NonNegativeInt = 50  # T
    batch_size: PositiveInt = 64  # b
    inversion: Inversion = Inversion()
    sparsity: Sparsity = Sparsity()
    student: StudentTraining = StudentTraining(lr=0.001, weight_decay=1e-4, temperature=20.0)
    weights: TokenRelabel = TokenRelabel()
    # of the student, where --start gives no weights
    start_from: Literal["average", "uniform", "fresh"] = "average"
    pool: PoolSettings = PoolSettings()
    learn_from: LearnFrom = "pool"  # line 15: all images, the newest, or one batch of all

    @property
    def needs(self) -> Needs:
        """Nets with one grid of patches; label counts where labels are those that are held."""
        return Needs(same_patches=True, label_counts=self.inversion.labels == "held")

    def prepare(self, uploads: Sequence[Upload], server: Server) -> DistillationContext:
        """Put the teachers on the device."""
        context = prepare_context(uploads, server)
        first, *_, last = self.patches_left(context)
        if self.weights.relabel and first == last:
            raise SettingsError(
                f"None of {first} patches stops, so none can be relabelled.",
                fix="set relabel=0, or a higher mask_ratio",
            )
        return context

    def start(self, context: DistillationContext) -> DataFreeState:
        """The student, and an empty pool that also has masks and answers."""
        images = self.epochs * len(context.uploads) * self.batch_size
        extras = pool_extras(self.patches_left(context)[0], context.num_classes)
        pool = start_pool(context, self.pool, images, extras)
        return start_data_free(context, self.student, self.epochs, pool, start_from=self.start_from)

    def phases(self, context: DistillationContext) -> Sequence[Phase]:
        """The epochs."""
        work = epoch_cost(self.inversion.steps)
        return [Phase("invert and relabel", self.epochs, partial(self.epoch, context), work)]

    def epoch(self, context: DistillationContext, state: DataFreeState) -> Metrics:
        """Lines 4 to 17 of Algorithm 1, for all clients at once."""
        labels = self.draw_labels(context, state)  # 6
        inversion = self.start_inversion(context, state)  # 6
        with frozen(state.student):
            for moves in self.draw_moves(context, state):  # 7
                inversion.step(labels, *moves)  # 9: Eq. (3), (4)
                inversion.stop_patches()  # 10: Eq. (5)
        add_inverted(context, state, inversion, labels, relabel=self.weights.relabel > 0)  # 13
        number = inversion.keep.shape[-1]  # of patches in x_h
        places = epoch_places(
            state.pool, self.learn_from, labels.numel(), self.batch_size, state.draws
        )
        losses = []
        for some in places:  # 15
            batch = read_batch(state.pool, some, number)
            loss = student_step(context, state, self.student, self.relabel_loss, *batch)  # 16
            losses.append(loss)
        state.schedule.step()
        return {"inversion loss": inversion.loss, "loss": torch.stack(losses).mean()}

    def draw_labels(self, context: DistillationContext, state: DataFreeState) -> Tensor:
        """The labels that images are made for, (K, b)."""
        odds = label_odds(context, held=self.inversion.labels == "held")
        labels = torch.multinomial(odds, self.batch_size, True, generator=state.draws)
        return labels.to(context.device)

    def draw_moves(
        self, context: DistillationContext, state: DataFreeState
    ) -> Sequence[tuple[Tensor, ...]]:
        """How images are moved before each step: (K, 3), or nothing without jitter.

        They stay where they are before a step whose attention decides which patches stop.
        """
        if not self.inversion.jitter:
            return [()] * self.inversion.steps
        _, height, width = context.server.task.input_shape
        clients, left = len(context.uploads), self.patches_left(context)
        moves = draw_moves(self.inversion.steps, clients, (height, width), state.draws)
        for step, (before, after) in enumerate(pairwise(left)):
            if after < before:
                moves[step] = 0
        return [(each,) for each in moves.to(context.device)]

    def start_inversion(
        self, context: DistillationContext, state: DataFreeState
    ) -> SparseInversion:
        """Images of noise for all clients, (K, b, C, H, W), ready to be inverted."""
        clients = len(context.uploads)
        shape = (clients, self.batch_size, *context.server.task.input_shape)
        noise = torch.randn(*shape, generator=state.draws).to(context.device)
        return SparseInversion(
            0.5 + self.inversion.noise_spread * noise,
            partial(self.inversion_loss, context, state),
            grid=context.plan.grid,
            left=self.patches_left(context),
            stopped=self.sparsity.stopped,
            lr=self.inversion.lr,
            betas=(self.inversion.beta1, self.inversion.beta2),
            run=context.run,
            captured=(state.student, state),
        )

    def patches_left(self, context: DistillationContext) -> list[int]:
        """How many patches are left after 0 to T_I steps."""
        rows, columns = context.plan.grid
        return self.sparsity.patches_left(rows * columns, self.inversion.steps)

    def inversion_loss(
        self,
        context: DistillationContext,
        state: DataFreeState,
        images: Tensor,
        keep: Tensor,
        labels: Tensor,
        moves: Tensor | None = None,
    ) -> Losses:
        """Eq. (3) and (4), and the class attention of Eq. (5).

        Args:
            context: the clients.
            state: its student is f_S.
            images: of each client its own (K, b, C, H, W).
            keep: the patches that nets see (K, b, k).
            labels: wanted of each image (K, b).
            moves: of the images of each client before nets see them (K, 3), see ``draw_moves``.

        Returns:
            The loss of each client (K,), and attention to each patch of ``keep`` (K, b, k).
        """
        inversion = self.inversion
        unknown = ~context.teachers.known[:, None]
        seen = images
        if moves is not None:
            _, height, width = context.server.task.input_shape
            seen = move_images(images, moves)
            keep = move_patches(keep, moves, context.plan.grid, (height, width))
        logits, attention = context.teachers.look(seen, keep)
        logits = logits.masked_fill(unknown, NEVER)
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        loss = each.view(labels.shape).mean(1)
        if inversion.disagreement or self.sparsity.attention == "server":
            look = context.plan.look(state.student, seen.flatten(0, 1), keep.flatten(0, 1))
            answers = look.logits.to(logits).unflatten(0, labels.shape).masked_fill(unknown, NEVER)
            divergence = partial(jensen_shannon, temperature=inversion.disagreement_temperature)
            loss = loss - inversion.disagreement_in_bits * vmap(divergence)(logits, answers)
            if self.sparsity.attention == "server":
                attention = look.attention.unflatten(0, labels.shape).to(logits)
        grey = 0.5
        if inversion.priors == "normalised":
            shown = context.plan.preprocess(images.flatten(0, 1))
            images, grey = shown.unflatten(0, labels.shape), 0.0
        variation = vmap(total_variation)(images)
        magnitude = vmap(partial(greyness, grey=grey))(images)
        return loss + inversion.variation * variation + inversion.magnitude * magnitude, attention

    def relabel_loss(
        self, context: DistillationContext, state: DataFreeState, *batch: Tensor
    ) -> Tensor:
        """Eq. (6) on the tensors of a ``Batch``."""
        inputs = Batch(*batch)
        student = partial(context.plan.logits, state.student, inputs.images)
        return token_relabel(student, inputs, self.weights, self.student.temperature)

    def result(self, context: DistillationContext, state: DataFreeState) -> Result:
        """The student, its newest images, and their patches of high and low density."""
        result = student_result(context, state)
        images = dict(result.images)
        if len(state.pool):
            newest = len(context.uploads) * self.batch_size
            images["density"] = show_density(state.pool, newest, context.plan.grid)
        return replace(result, images=images)
