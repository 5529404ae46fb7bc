"""FedMHO, FedMHO-MD, FedMHO-SD: strong clients send a classifier, weak clients a CVAE's decoder.

Paper: D. Yao et al., FedMHO: Heterogeneous One-Shot Federated Learning Towards
Resource-Constrained Edge Devices, Algorithms 1, 2.

    w_0 <- mean of the classifiers (4), or distilled from their ensemble (5.6)
    for each class n_c:
        generate its images with the decoders of K_G, as many as of every other class
        D_s <- D_s + the R_th of them that are nearest to their mean          (Algorithm 2)
    for E_g epochs:
        FedMHO: train w on D_s with CE                                         (5)
        FedMHO-MD, FedMHO-SD: train w on D_s with lambda CE + (1 - lambda) KL  (8)

| symbol | here |
|---|---|
| K_C, K_G | ``SyntheticSet.strong``, ``weak``: clients that sent a classifier, or a decoder |
| D_s | ``MhoState.pool``, of ``samples`` images before the filter |
| E_g, R_th, lambda | ``epochs``, ``keep_ratio``, ``trade_off`` |
| CE (5), KL (6), (7) | ``remember``: "nothing" is FedMHO, "md" (6), "sd" (7), "both" the sum |

Departures:

- (5) is printed as a sum and KL without a reduction; both are means over images here.
- 5.3.1's beta_1 (KL) and beta_2 (CE) are lambda = beta_2 / (beta_1 + beta_2).
- Learned weights are not defined: sum_i exp(-s_i) L_i + s_i here (Kendall et al. 2018).
- How many images each decoder makes is not defined: equally many of each class that is held, and
  of a class in proportion to the clients' label counts, here. 4.2.2's "according to client k's
  local label distribution" may also mean ``allocation="labels"``.
- How 5.6 distils is not defined: on the synthetic images, for ``initial_epochs``, here.
- Of a class that no classifier knows, KL says nothing.
- ``preset`` gives a column of Table 3.
- ``variant="code"`` follows the authors' code: images also of a class that no client holds;
  clients by squared counts; KL divided by the number of classes, too; and, by a slip of its
  indices, a random R_th.

docs/methods/fedmho.md has all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from attar.blocks.ensemble import Teachers, combine
from attar.blocks.execution import gradient_step
from attar.blocks.images import Allocation, Pool
from attar.blocks.student import (
    SyntheticSet,
    SyntheticState,
    add_class,
    answer_phase,
    blank_grids,
    distillation,
    fill_grid_row,
    initial_weights,
    mean_loss,
    new_student,
    plan_synthetic_set,
    retention_loss,
    same_kind,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.methods.fedmho.image_filter import ImageFilter, count_dropped, select_images
from attar.methods.fedmho.variants import (
    TEACHERS,
    WEIGHTINGS,
    Preset,
    Remember,
    Variant,
    Weights,
    settings_of_preset,
)
from attar.seeds import rng
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

BEFORE = "synthetic before filter"
AFTER = "synthetic after filter"
DROPPED = "dropped by filter"


@dataclass(frozen=True)
class InitialModel:
    """Where the student starts: w_0."""

    # auto: the average, if all classifiers are of the student's kind; else distil their ensemble
    start_from: Literal["auto", "distil", "fresh"] = "auto"
    epochs: NonNegativeInt = flat("initial_epochs", 20)  # of the distillation
    lr: Positive = flat("initial_lr", 1e-3)  # of Adam on the initial model


@dataclass(frozen=True)
class Context:
    """What does not change.

    Attributes:
        synthetic: who makes which images, and the student.
        teachers: the classifiers of K_C.
        columns: (C',) the classes that some classifier knows; None where these are all.
        images: |D_s| after the filter.
        distils: whether w_0 is distilled (5.6), not averaged (4).
    """

    synthetic: SyntheticSet
    teachers: Teachers
    columns: Tensor | None
    images: int
    distils: bool

    def ensemble_logits(self, state: "MhoState", images: Tensor) -> Tensor:
        """Eq. (6)'s teacher: the mean of h(w_k, x) over K_C, (B, C')."""
        logits = combine("logits", self.teachers(images), self.teachers.known)
        return select(logits, self.columns)

    def student_logits(self, state: "MhoState", images: Tensor) -> Tensor:
        """h(w, x) in eval mode, (B, C'); before training Eq. (7)'s teacher h(w_0, x)."""
        logits = self.synthetic.plan.eval_logits(state.student, images)
        return select(logits, self.columns)


@dataclass
class MhoState(SyntheticState):
    """A student, its synthetic images, and what only FedMHO needs.

    Attributes:
        initial_optimiser: of the distillation of w_0.
        uncertainty: s_i of learned weights, one for each term of the loss.
    """

    initial_optimiser: Optimizer
    uncertainty: Tensor


@settings(settings_of_preset)
@dataclass(frozen=True)
class FedMho:
    """The average of strong clients learns from images of weak clients' decoders."""

    paper: ClassVar[str] = "Yao et al., FedMHO"
    cost: ClassVar[str] = "a set of images that teachers answer once, then epochs over it"
    needs: ClassVar[Needs] = Needs(
        parts=("classifier", "decoder"),
        at_least=(("classifier", 1), ("decoder", 1)),
        label_counts_with=("decoder",),
    )

    epochs: NonNegativeInt = 20  # E_g
    batch_size: PositiveInt = 64  # images in a batch
    lr: Positive = 5e-4  # of Adam on the student
    samples: PositiveInt = 6000  # |D_s| before the filter
    keep_ratio: PositiveFraction = 0.8  # R_th
    keep: ImageFilter = "nearest"  # which images the filter keeps
    remember: Remember = "sd"  # what training must not forget: md the clients, sd the initial model
    trade_off: Fraction = 0.5  # lambda
    weights: Weights = "fixed"  # of the terms of the loss: fixed by trade_off, or learned
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: over the classes, too
    allocation: Allocation = "classes"  # of the images to classes
    count_exponent: NonNegative = 1.0  # of a client's counts when images are shared out; 0: equally
    initial: InitialModel = InitialModel()
    preset: Preset = "fashion"  # column of Table 3
    variant: Variant = "paper"  # whose settings: the paper's or its code's

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Put classifiers and decoders on the device, and decide how w starts."""
        synthetic = plan_synthetic_set(
            uploads, server, self.samples, self.count_exponent, self.allocation
        )
        plan = synthetic.plan
        alike = len(same_kind(synthetic.strong, plan)) == len(synthetic.strong)
        starts_from_weights = initial_weights(plan, server) is not None or alike
        teachers = Teachers(
            [upload.parts["classifier"] for upload in synthetic.strong],
            plan.classes,
            memory=server.teacher_memory,
            partial=True,
        ).to(server.device)
        known = teachers.known.any(0)
        return Context(
            synthetic=synthetic,
            teachers=teachers,
            columns=None if bool(known.all()) else known.nonzero().squeeze(1),
            images=sum(
                number - count_dropped(number, self.keep_ratio) for number in synthetic.class_counts
            ),
            distils=self.initial.start_from == "distil"
            or (self.initial.start_from == "auto" and not starts_from_weights),
        )

    def start(self, context: Context) -> MhoState:
        """w_0 where it is an average, else a fresh net; an empty D_s."""
        synthetic = context.synthetic
        server = synthetic.server
        start_from = "fresh" if self.initial.start_from == "fresh" else "uniform"  # Eq. (4)
        student = new_student(synthetic.plan, synthetic.strong, server, start_from).train()
        learns = self.weights == "learned"
        terms = 1 + len(TEACHERS[self.remember])
        uncertainty = torch.zeros(terms, device=server.device, requires_grad=learns)
        learned = [*student.parameters(), *([uncertainty] if learns else [])]
        classes = len(synthetic.plan.classes) if context.columns is None else len(context.columns)
        answers = torch.zeros(context.images, classes, device=server.device)
        return MhoState(
            student=student,
            optimiser=Adam(learned, lr=self.lr),
            pool=Pool(server.task.input_shape, max(1, context.images), server.device),
            sheets=blank_grids(server, BEFORE, AFTER, DROPPED),
            draws=rng(server.seed, "fedmho"),
            answers={"md": answers, "sd": answers.clone()},
            initial_optimiser=Adam(student.parameters(), lr=self.initial.lr),
            uncertainty=uncertainty,
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        """Algorithm 1: images, the answers and initial model that are needed, training."""
        teachers = TEACHERS[self.remember]
        synthetic = context.synthetic
        images = float(sum(synthetic.class_counts))
        clients = len(synthetic.strong)
        generate = Phase(
            "generate", 1, partial(self.generate, context), lambda _: images / 3, learns=False
        )
        ask_clients = answer_pool("ask clients", context, "md", context.ensemble_logits, clients)
        initialise = Phase(
            "initialise", self.initial.epochs, partial(self.initialise, context), lambda _: images
        )
        ask_initial = answer_pool("ask initial model", context, "sd", context.student_logits)
        train = Phase("train", self.epochs, partial(self.epoch, context), lambda _: images)
        return [
            generate,
            *([ask_clients] if context.distils or "md" in teachers else []),
            *([initialise] if context.distils else []),
            *([ask_initial] if "sd" in teachers else []),
            train,
        ]

    def generate(self, context: Context, state: MhoState) -> Metrics:
        """D_s, class by class: Algorithm 1, lines 11 to 14."""
        synthetic = context.synthetic
        for label in range(len(synthetic.class_counts)):  # n_c
            images = synthetic.generate(label)
            stay = torch.zeros(len(images), dtype=torch.bool, device=images.device)
            seed = synthetic.server.seed
            stay[select_images(images, label, self.keep_ratio, self.keep, seed)] = True
            add_class(state.pool, images[stay], label)
            fill_grid_row(state.sheets[BEFORE], label, images)
            fill_grid_row(state.sheets[AFTER], label, images[stay])
            fill_grid_row(state.sheets[DROPPED], label, images[~stay])
        return {}

    def initialise(self, context: Context, state: MhoState) -> Metrics:
        """One epoch in which w_0 is distilled from the ensemble of classifiers on D_s (5.6)."""
        synthetic = context.synthetic
        pool = state.pool

        def loss(places: Tensor) -> Tensor:
            student = synthetic.plan.logits(state.student, pool.images(places))
            return distillation(select(student, context.columns), state.answers["md"][places])

        losses = []
        for run, places in synthetic.batches(pool, self.batch_size, state.draws):
            batch_loss = gradient_step(
                run, "initialise", state.initial_optimiser, loss, (places,), (state, pool)
            )
            losses.append(batch_loss)
        return mean_loss(losses)

    def epoch(self, context: Context, state: MhoState) -> Metrics:
        """One epoch in which w is trained on D_s: Algorithm 1, lines 15 to 20."""
        synthetic = context.synthetic
        pool = state.pool  # D_s

        def loss(places: Tensor) -> Tensor:  # of the images b_s at these places in D_s
            student = synthetic.plan.logits(state.student, pool.images(places))  # h(w, b_s)
            labels = pool.labels(places)
            # FedMHO: none; FedMHO-MD: the mean of h(w_k, b_s); FedMHO-SD: h(w_0, b_s)
            teachers = [state.answers[name][places] for name in TEACHERS[self.remember]]
            return self.loss(  # FedMHO: Eq. (5); FedMHO-MD, FedMHO-SD: Eq. (8)
                student, labels, teachers, context.columns, state.uncertainty
            )

        losses = []
        for run, places in synthetic.batches(pool, self.batch_size, state.draws):
            # w <- Adam step on the loss of b_s
            batch_loss = gradient_step(
                run, "train", state.optimiser, loss, (places,), (state, pool)
            )
            losses.append(batch_loss)
        return mean_loss(losses)

    def loss(
        self,
        student: Tensor,
        labels: Tensor,
        teachers: Sequence[Tensor],
        columns: Tensor | None,
        uncertainty: Tensor,
    ) -> Tensor:
        """L_g, Eq. (8), of a mini-batch; without teachers Eq. (5).

        Args:
            student: (B, C) logits h(w, b_s).
            labels: (B,) classes.
            teachers: (B, C') logits of each teacher.
            columns: (C',) the classes of the teachers' logits; None: all.
            uncertainty: s_i of learned weights, one for each term.
        """
        cross_entropy = F.cross_entropy(student, labels)  # Eq. (5)
        divergences = [
            retention_loss(select(student, columns), teacher, self.kl_reduction)  # Eq. (6), (7)
            for teacher in teachers
        ]
        weigh = WEIGHTINGS[self.weights]
        return weigh([cross_entropy, *divergences], self.trade_off, uncertainty)  # Eq. (8)

    def result(self, context: Context, state: MhoState) -> Result:
        """The student, and sample grids of D_s before and after the filter."""
        return context.synthetic.result(state)


def select(logits: Tensor, columns: Tensor | None) -> Tensor:
    """The ``columns`` (B, C') of logits (B, C); all of them where ``columns`` is None."""
    return logits if columns is None else logits[:, columns]


def answer_pool(
    name: str,
    context: Context,
    teacher: str,
    logits: Callable[[MhoState, Tensor], Tensor],
    passes: float = 1.0,
) -> Phase:
    """A phase in which a teacher answers every image of D_s once; its answers serve all epochs.

    Args:
        name: of the phase.
        context: says how many images D_s has.
        teacher: the teacher's name in ``MhoState.answers``.
        logits: of the teacher on images, (B, C').
        passes: of each image through a net.
    """

    def answer(state: MhoState, rows: slice) -> None:
        places = torch.arange(rows.start, rows.stop, device=state.pool.device)
        state.answers[teacher][rows] = logits(state, state.pool.images(places)).float()

    return answer_phase(name, context.images, answer, passes / 3)
