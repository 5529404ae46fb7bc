"""FedFTG in one round: a generator mines the images on which student and clients disagree, the
student learns from them.

Paper: L. Zhang et al., Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID
Federated Learning, CVPR 2022.

    student <- average of the clients (where they have its architecture)
    repeat: y ~ p(y) = sum_k n_k^y / n;  z ~ N(0, I);  x <- G(z, y)
            G       <- Adam step on -L_md + lambda_cls L_cls + lambda_dis L_dis          ``generator_steps`` times
            student <- SGD step on its own L_md with fresh z, y                          ``student_steps`` times

| symbol | here |
|---|---|
| a_k^y = n_k^y / sum_j n_j^y | class-level ensemble weights, ``class_shares`` |
| L_md | ``mining`` and ``teaching``: how far student and clients are apart, sum_k a_k^y d(f_S(x), f_k(x)) |
| L_cls, L_dis | sum_k a_k^y CE(f_k(x), y), ``fidelity``; ``diversity`` of images against noise, ``spread`` |

Departures. The paper refines the average within every round; here the one round takes ``epochs``
such refinements, each of the authors' 1 generator and 5 student steps. L_md is a KL divergence
in the paper; their code mines |f_S - f_k| and teaches the student the clients' weighted
probabilities, and so does this file: a student that learns by KL(f_S || f_k), which has no bound
where a client is sure, breaks ("kl" for both; docs/results). Their code weighs losses after
averaging them over the batch and takes a generator step for each client; here each image has the
weights of its own label, and a step is for all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from attar.blocks.ensemble import class_shares, label_shares
from attar.blocks.execution import gradient_step
from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.student import (
    Classroom,
    class_fidelity,
    diversity,
    logit_gap,
    model_discrepancy,
    new_student,
    open_classroom,
    resting,
    soft_label_loss,
)
from attar.core import Metrics, Needs, Phase, Result, Server, State, Upload
from attar.seeds import generator as seeded
from attar.settings import require

Discrepancy = Literal["kl", "l1", "soft-labels"]
DISCREPANCIES = {"kl": model_discrepancy, "l1": logit_gap, "soft-labels": soft_label_loss}
Loss = Callable[["MiningState", Tensor, Tensor], Tensor]


@dataclass
class MiningState(State):
    student: nn.Module
    student_optimiser: Optimizer
    generator: nn.Module
    generator_optimiser: Optimizer
    draws: torch.Generator


@dataclass(frozen=True)
class FedFtg:
    """A generator mines images on which student and clients disagree; label counts weigh the
    clients (Zhang et al. 2022).
    """

    paper: ClassVar[str] = "Zhang et al., CVPR 2022"
    cost: ClassVar[str] = "a turn: six passes through all clients, no pool"
    needs: ClassVar[Needs] = Needs(label_counts=True)

    epochs: int = 200
    generator_steps: int = 1
    student_steps: int = 5
    batch_size: int = 128
    generator_lr: float = 1e-3
    student_lr: float = 0.01
    momentum: float = 0.9
    mining: Discrepancy = "l1"  # L_md of the generator
    teaching: Discrepancy = "soft-labels"  # L_md of the student
    clip: float | None = None  # largest norm of either gradient
    fidelity: float = 1.0  # lambda_cls
    spread: float = 1.0  # lambda_dis
    noise: int = 256
    generator_width: int = 64
    start_from: Literal["average", "fresh"] = "average"

    def __post_init__(self) -> None:
        require(self, may_be_zero="epochs momentum fidelity spread")

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Classroom:
        return open_classroom(uploads, server)

    def start(self, context: Classroom) -> MiningState:
        server, conditioned = context.server, self.noise + context.num_classes
        student = new_student(context.plan, context.uploads, server, self.start_from)
        generator = new_generator(
            server.task.input_shape, conditioned, self.generator_width, server.seed
        ).to(context.device)
        optimiser = SGD(student.parameters(), lr=self.student_lr, momentum=self.momentum)
        miner = Adam(generator.parameters(), lr=self.generator_lr)
        return MiningState(student, optimiser, generator, miner, seeded(server.seed, "fedftg"))

    def phases(self, context: Classroom) -> Sequence[Phase]:
        teachers, classes = context.teachers, context.server.task.classes
        shares = class_shares(context.uploads, classes).to(context.device)  # a_k^y as (K, C)
        odds = label_shares(context.uploads, classes)  # p(y)

        def draw(state: MiningState) -> tuple[Tensor, Tensor]:
            labels = draw_labels(
                self.batch_size, context.num_classes, state.draws, context.device, odds
            )
            return draw_noise(self.batch_size, self.noise, state.draws, context.device), labels

        def imagine(state: MiningState, noise: Tensor, labels: Tensor) -> Tensor:
            told = noise.new_zeros(len(labels), context.num_classes).scatter(
                1, labels[:, None], 1.0
            )
            return state.generator(torch.cat([noise, told], 1))  # type: ignore[no-any-return]

        def mining(state: MiningState, noise: Tensor, labels: Tensor) -> Tensor:
            images = imagine(state, noise, labels)
            weights, logits = shares[:, labels], teachers(images)  # (K, B)
            mined = DISCREPANCIES[self.mining](
                context.plan.logits(state.student, images), logits, teachers.known, weights
            )
            loyal = class_fidelity(logits, teachers.known, labels, weights)
            return -mined + self.fidelity * loyal + self.spread * diversity(images, noise)

        def learning(state: MiningState, noise: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                images = imagine(state, noise, labels)
                logits = teachers(images)
            student = context.plan.logits(state.student, images)
            return DISCREPANCIES[self.teaching](student, logits, teachers.known, shares[:, labels])

        def step(name: str, state: MiningState, optimiser: Optimizer, loss_of: Loss) -> Tensor:
            nets, inputs = (state.student, state.generator), draw(state)
            return gradient_step(
                context.run, name, optimiser, partial(loss_of, state), inputs, nets, self.clip
            )

        def epoch(state: MiningState) -> Metrics:
            with resting(state.student):
                for _ in range(self.generator_steps):
                    loss = step("mine", state, state.generator_optimiser, mining)
            for _ in range(self.student_steps):
                learned = step("learn", state, state.student_optimiser, learning)
            return {"generator loss": loss, "loss": learned}

        return [Phase("mine", self.epochs, epoch)]

    def result(self, context: Classroom, state: MiningState) -> Result:
        return Result({"student": context.plan.part(state.student)})
