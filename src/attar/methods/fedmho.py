"""FedMHO, FedMHO-MD, FedMHO-SD: strong clients send a classifier, weak ones the decoder of a
small conditional VAE.

Paper: D. Yao et al., FedMHO: Heterogeneous One-Shot Federated Learning Towards
Resource-Constrained Edge Devices, Algorithms 1, 2.

    w0 <- mean of the classifiers (4), or distilled from their ensemble where architectures differ (5.6)
    for each class: images from the decoders, by the clients' label counts; the nearest R_th to their mean stay (Algorithm 2)
    E_g epochs over these: w <- Adam step on lambda CE + (1 - lambda) KL                                              (8)

| symbol | here |
|---|---|
| E_g, R_th, lambda | ``epochs``, ``keep_ratio``, ``trade_off`` |
| CE (5), KL (6) and (7) | ``remember``: "nothing" is FedMHO, (5) alone; "md" (6), "sd" (7), "both" their sum (5.3.1) |

Departures. (5) is printed as a sum, KL without a reduction: means over images here. 5.3.1's
beta_1 (KL) and beta_2 (CE) are lambda = beta_2 / (beta_1 + beta_2). Not defined there: learned
weights (sum_i exp(-s_i) L_i + s_i, Kendall et al. 2018), how many images each decoder makes (by
its label counts), how 5.6 distils (synthetic images, ``initial_epochs``). Of a class that no
classifier knows, KL says nothing. ``preset``: Table 3's column. ``variant="code"``: equally many
of each class, also of one that nobody holds, clients by squared counts, KL divided by the
classes too and, by a slip of its indices, a random R_th. docs/methods/fedmho.md has all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from attar.blocks.ensemble import Teachers, combine
from attar.blocks.images import Allocation, Pool, dropped, which_stay
from attar.blocks.images.decoders import Keep
from attar.blocks.student import (
    certainty_weighted,
    distillation,
    given_start,
    knowledge_kept,
    new_student,
    same_kind,
    traded_off,
)
from attar.blocks.student import synthetic_set as synthetic
from attar.core import Needs, Phase, Result, Server, Upload
from attar.seeds import generator
from attar.settings import presets, require

EMNIST = {"epochs": 30, "lr": 5e-5, "samples": 12_000}
TABLE_3: dict[str, Any] = {
    "mnist": {"epochs": 10, "lr": 1e-5},
    "fashion": {},
    "svhn": {"lr": 5e-5},
    "emnist": EMNIST,
}
OTHERWISE = {
    "allocation": "all-classes",
    "count_exponent": 2.0,
    "kl_reduction": "mean",
    "keep": "random",
}
CODE = {name: {**column, **OTHERWISE} for name, column in TABLE_3.items()}
CODE["mnist"]["epochs"] = 20
TEACHERS = {
    "nothing": (),
    "md": ("md",),
    "sd": ("sd",),
    "both": ("md", "sd"),
}  # the mean of the classifiers; w0


@dataclass(frozen=True)
class Context:
    shop: synthetic.Workshop  # who sent a classifier (K_C), who a decoder (K_G)
    teachers: Teachers
    kept: int  # images that the filter leaves
    distils: bool  # w0 is distilled (5.6), not averaged (4)


@dataclass
class MhoState(synthetic.SyntheticState):
    initial_optimiser: Optimizer
    uncertainty: Tensor  # s_i of learned weights


@presets(lambda given: (CODE if given.variant == "code" else TABLE_3)[given.preset])
@dataclass(frozen=True)
class FedMho:
    """Strong clients' classifiers are averaged and learn from images that weak clients' decoders
    make (Yao et al.).
    """

    paper: ClassVar[str] = "Yao et al., FedMHO"
    cost: ClassVar[str] = "a set of images, each asked about once, then epochs over it"
    needs: ClassVar[Needs] = Needs(
        parts=("classifier", "decoder"),
        at_least=(("classifier", 1), ("decoder", 1)),
        label_counts_with=("decoder",),
    )

    epochs: int = 20  # E_g
    batch_size: int = 64
    lr: float = 5e-4
    samples: int = 6000  # |D_s| before the filter
    keep_ratio: float = 0.8  # R_th
    keep: Keep = "nearest"
    remember: Literal["nothing", "md", "sd", "both"] = "sd"
    trade_off: float = 0.5  # lambda
    weights: Literal["fixed", "learned"] = "fixed"
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"
    allocation: Allocation = "labels"
    count_exponent: float = 1.0
    start_from: Literal["auto", "distil", "fresh"] = (
        "auto"  # the average if all classifiers are of the student's kind
    )
    initial_epochs: int = 20
    initial_lr: float = 1e-3
    preset: Literal["mnist", "fashion", "svhn", "emnist"] = "fashion"  # column of Table 3
    variant: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        require(
            self,
            may_be_zero="epochs initial_epochs count_exponent trade_off",
            at_most_one="keep_ratio trade_off",
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        shop = synthetic.open_workshop(
            uploads, server, self.samples, self.count_exponent, self.allocation
        )
        alike = given_start(shop.plan, server) is not None or len(
            same_kind(shop.strong, shop.plan)
        ) == len(shop.strong)
        distils = self.start_from == "distil" or (self.start_from == "auto" and not alike)
        parts = [upload.parts["classifier"] for upload in shop.strong]
        teachers = Teachers(
            parts, shop.plan.classes, memory=server.teacher_memory, partial=True
        ).to(server.device)
        return Context(
            shop, teachers, sum(n - dropped(n, self.keep_ratio) for n in shop.numbers), distils
        )

    def start(self, context: Context) -> MhoState:
        shop, server = context.shop, context.shop.server
        start = "fresh" if self.start_from == "fresh" else "uniform"  # Eq. (4)
        student = new_student(shop.plan, shop.strong, server, start).train()
        terms, learns = 1 + len(TEACHERS[self.remember]), self.weights == "learned"
        uncertainty = torch.zeros(terms, device=server.device, requires_grad=learns)
        learned = [*student.parameters(), *([uncertainty] if learns else [])]
        adam, initial = Adam(learned, lr=self.lr), Adam(student.parameters(), lr=self.initial_lr)
        pool = Pool(server.task.input_shape, max(1, context.kept), server.device)
        sheets, draws = (
            synthetic.blank_sheets(server, *synthetic.FILTERED),
            generator(server.seed, "fedmho"),
        )
        blank = torch.zeros(context.kept, len(context.teachers.somewhere), device=server.device)
        return MhoState(
            student,
            adam,
            pool,
            sheets,
            draws,
            {"md": blank, "sd": blank.clone()},
            initial,
            uncertainty,
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        shop, teachers, images = context.shop, context.teachers, context.kept
        known = teachers.heard_of  # columns of the classes that some classifier knows

        def ask_clients(_: MhoState, x: Tensor) -> Tensor:
            return known(combine("logits", teachers(x), teachers.known))

        def ask_initial(state: MhoState, x: Tensor) -> Tensor:
            return known(shop.plan.rested_logits(state.student, x))

        def initialise(logits: Tensor, places: Tensor, state: MhoState) -> Tensor:
            return distillation(known(logits), state.answers["md"][places])  # 5.6

        def fuse(logits: Tensor, places: Tensor, state: MhoState) -> Tensor:
            cross_entropy = F.cross_entropy(logits, state.pool.labels(places))  # Eq. (5)
            answers = [state.answers[who][places] for who in TEACHERS[self.remember]]
            kept = [
                knowledge_kept(known(logits), said, self.kl_reduction) for said in answers
            ]  # Eq. (6), Eq. (7)
            if self.weights == "learned":
                return certainty_weighted([cross_entropy, *kept], state.uncertainty)
            return traded_off([cross_entropy, *kept], self.trade_off)  # Eq. (8)

        stay = partial(
            which_stay, ratio=self.keep_ratio, keep=self.keep, seed=shop.server.seed
        )  # Algorithm 2
        phases = [synthetic.filter_phase("generate", shop.numbers, shop.make, stay)]
        if context.distils or "md" in TEACHERS[self.remember]:
            phases.append(
                synthetic.ask_phase("ask clients", images, "md", ask_clients, len(shop.strong))
            )
        if context.distils:
            how = self.initial_epochs, self.batch_size, initialise
            phases.append(
                shop.learn_phase("initialise", *how, lambda state: state.initial_optimiser)
            )
        if "sd" in TEACHERS[self.remember]:
            phases.append(synthetic.ask_phase("ask initial model", images, "sd", ask_initial))
        return [*phases, shop.learn_phase("train", self.epochs, self.batch_size, fuse)]

    def result(self, context: Context, state: MhoState) -> Result:
        return context.shop.result(state)
