"""FedMHO, FedMHO-MD, FedMHO-SD: strong clients send a classifier, weak ones the decoder of a small conditional VAE.

Paper: D. Yao et al., FedMHO: Heterogeneous One-Shot Federated Learning Towards Resource-Constrained Edge Devices, Algorithms 1, 2.

    w0 <- mean of the classifiers (4), or distilled from their ensemble where architectures differ (5.6)
    for each class: images from the decoders, by the clients' label counts; the nearest R_th to their mean stay (Algorithm 2)
    E_g epochs over these: w <- Adam step on lambda CE + (1 - lambda) KL                                              (8)

| symbol | here |
|---|---|
| K_C, K_G | clients that send a classifier, clients that send a decoder |
| E_g, R_th, lambda | ``epochs``, ``keep_ratio``, ``trade_off`` |
| CE (5), KL (6) and (7) | ``remember``: "nothing" is FedMHO, (5) alone; "md" (6), "sd" (7), "both" their sum (5.3.1) |

Departures. (5) is printed as a sum, KL without a reduction: means over images here. 5.3.1's beta_1 (KL) and beta_2 (CE) are
lambda = beta_2 / (beta_1 + beta_2), the same to Adam. Learnable weights are not defined: ``weights="learned"`` takes
sum_i exp(-s_i) L_i + s_i, s_i = 0 at first (Kendall et al. 2018). How many images each decoder makes is not said: in proportion
to its label counts. 5.6 gives neither the images of its distillation nor its length: the synthetic ones, ``initial_epochs``,
from the average of the clients of the student's kind where there are any. Of a class that no classifier knows, KL says nothing.
``preset`` fills in Table 3's column; ``variant="code"`` what the authors' code does: equally many of each class, clients by
squared counts, KL divided by the classes too and, by a slip of its indices, a random R_th (``keep="random"``: also Table 6's
ablation). Teachers' answers do not change, so each image asks once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from attar.blocks.decoders import Allocation, dropped, nearest_to_centre
from attar.blocks.ensemble import Teachers, combine
from attar.blocks.losses import certainty_weighted, distillation, knowledge_kept, traded_off
from attar.blocks.pool import Pool
from attar.blocks.student import averaged, given_start, new_student, resting, same_kind
from attar.blocks.synthetic import (
    MADE,
    STAYED,
    WENT,
    SyntheticState,
    Workshop,
    ask_phase,
    blank_sheets,
    filter_phase,
    open_workshop,
    pass_over,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.errors import NeedsError
from attar.seeds import generator
from attar.settings import require, with_preset

TABLE_3: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 10, "lr": 1e-5},
    "fashion": {},
    "svhn": {"lr": 5e-5},
    "emnist": {"epochs": 30, "lr": 5e-5, "samples": 12_000},
}
CODE = {"allocation": "classes", "count_exponent": 2.0, "kl_reduction": "mean", "keep": "random"}


@dataclass(frozen=True)
class Context:
    shop: Workshop  # K_C and K_G
    teachers: Teachers
    kept: int  # images that the filter leaves
    distils: bool  # w0 is distilled (5.6), not averaged (4)


@dataclass
class MhoState(SyntheticState):
    initial_optimiser: Optimizer
    answers: Tensor  # (N, C): mean logits of the classifiers
    initial_answers: Tensor  # (N, C): logits of w0
    uncertainty: Tensor  # s_i of learned weights


@dataclass(frozen=True)
class FedMho:
    """Classifiers of strong clients are averaged and learn from images that weak clients' decoders make."""

    paper: ClassVar[str] = "Yao et al., FedMHO"
    cost: ClassVar[str] = "a set of images, each asked about once, then epochs over it"
    needs: ClassVar[Needs] = Needs(
        parts=("classifier", "decoder"), at_least=(("classifier", 1), ("decoder", 1)), label_counts_with=("decoder",)
    )

    epochs: int = 20  # E_g
    batch_size: int = 64
    lr: float = 5e-4
    samples: int = 6000  # |D_s| before the filter
    keep_ratio: float = 0.8  # R_th
    keep: Literal["nearest", "random"] = "nearest"
    remember: Literal["nothing", "md", "sd", "both"] = "sd"
    trade_off: float = 0.5  # lambda
    weights: Literal["fixed", "learned"] = "fixed"
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"
    allocation: Allocation = "labels"
    count_exponent: float = 1.0
    start_from: Literal["auto", "average", "distil", "fresh"] = (
        "auto"  # auto: average if all classifiers are the student's kind
    )
    initial_epochs: int = 20
    initial_lr: float = 1e-3
    preset: Literal["mnist", "fashion", "svhn", "emnist"] = "fashion"  # column of Table 3
    variant: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        require(self, may_be_zero="epochs initial_epochs count_exponent trade_off", at_most_one="keep_ratio trade_off")

    def _settled(self) -> FedMho:
        return with_preset(with_preset(self, TABLE_3[self.preset]), CODE if self.variant == "code" else {})

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        own = self._settled()
        shop = open_workshop(uploads, server, own.samples, own.count_exponent, own.allocation)
        alike, given = same_kind(shop.strong, shop.plan), given_start(shop.plan, server)
        if own.start_from == "average" and not alike and given is None:
            raise NeedsError(f"No client sent a {shop.plan.spec} to start from.", fix="start_from=distil, or another --student")
        distils = own.start_from == "distil" or (own.start_from == "auto" and len(alike) < len(shop.strong) and given is None)
        parts = [upload.parts["classifier"] for upload in shop.strong]
        teachers = Teachers(parts, shop.plan.classes, partial=True).to(server.device)
        return Context(shop, teachers, sum(n - dropped(n, own.keep_ratio) for n in shop.numbers), distils)

    def start(self, context: Context) -> MhoState:
        own, shop, server = self._settled(), context.shop, context.shop.server
        student, alike = new_student(shop.plan, shop.strong, server), same_kind(shop.strong, shop.plan)
        if own.start_from != "fresh" and alike and given_start(shop.plan, server) is None:
            student.load_state_dict(dict(averaged(alike, torch.ones(len(alike))).state))  # Eq. (4)
        student.to(server.device).train()
        uncertainty = torch.zeros(1 + len(own._teachers()), device=server.device, requires_grad=own.weights == "learned")
        optimiser = Adam([*student.parameters(), *([uncertainty] if uncertainty.requires_grad else [])], lr=own.lr)
        pool = Pool(server.task.input_shape, max(1, context.kept), server.device)
        answers = torch.zeros(2, context.kept, len(shop.plan.classes), device=server.device)
        sheets, draws = blank_sheets(server, MADE, STAYED, WENT), generator(server.seed, "fedmho")
        first = Adam(student.parameters(), lr=own.initial_lr)
        return MhoState(student, optimiser, pool, sheets, draws, first, answers[0], answers[1].clone(), uncertainty)

    def _teachers(self) -> tuple[str, ...]:
        return ("md", "sd") if self.remember == "both" else () if self.remember == "nothing" else (self.remember,)

    def phases(self, context: Context) -> Sequence[Phase]:
        own, shop, teachers, images = self._settled(), context.shop, context.teachers, context.kept
        known = teachers.known.any(0)  # classes that some classifier knows

        def choose(made: Tensor, label: int) -> Tensor:
            if own.keep == "nearest":
                return nearest_to_centre(made, own.keep_ratio)  # Algorithm 2
            order = torch.randperm(len(made), generator=generator(shop.server.seed, "keep", label))
            return order[: len(made) - dropped(len(made), own.keep_ratio)].to(made.device)

        def ask_clients(state: MhoState, places: Tensor) -> None:
            state.answers[places] = combine("logits", teachers(state.pool.images(places)), teachers.known).float()

        def ask_initial(state: MhoState, places: Tensor) -> None:
            with resting(state.student):
                state.initial_answers[places] = shop.plan.logits(state.student, state.pool.images(places)).float()

        def epoch(state: MhoState, optimiser: Optimizer, initial: bool) -> Metrics:
            def loss_of(places: Tensor) -> Tensor:
                logits = shop.plan.logits(state.student, state.pool.images(places))
                if initial:
                    return distillation(logits[:, known], state.answers[places][:, known])  # 5.6
                return own._loss(logits, state.pool.labels(places), known, places, state)

            return pass_over(state.pool, own.batch_size, state.draws, optimiser, loss_of)

        phases = [filter_phase("generate", shop.numbers, shop.make, choose)]
        if context.distils or "md" in own._teachers():
            phases.append(ask_phase("ask clients", images, ask_clients, len(shop.strong)))
        if context.distils:
            first = Phase("initialise", own.initial_epochs, lambda s: epoch(s, s.initial_optimiser, True), lambda _: images)
            phases.append(first)
        if "sd" in own._teachers():
            phases.append(ask_phase("ask initial model", images, ask_initial))
        return [*phases, Phase("train", own.epochs, lambda s: epoch(s, s.optimiser, False), lambda _: images)]

    def _loss(self, logits: Tensor, labels: Tensor, known: Tensor, places: Tensor, state: MhoState) -> Tensor:
        answers = {"md": state.answers, "sd": state.initial_answers}  # Eq. (6), Eq. (7)
        kept = [knowledge_kept(logits[:, known], answers[t][places][:, known], self.kl_reduction) for t in self._teachers()]
        terms = [F.cross_entropy(logits, labels), *kept]  # Eq. (5)
        return certainty_weighted(terms, state.uncertainty) if self.weights == "learned" else traded_off(terms, self.trade_off)

    def result(self, context: Context, state: MhoState) -> Result:
        return context.shop.result(state)
