"""FedFTG in one round: a generator makes images on which student and clients disagree.

Paper: L. Zhang et al., Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID
Federated Learning, CVPR 2022.

    student <- average of the clients (where they have its architecture)
    repeat: y ~ p(y) = sum_k n_k^y / n;  z ~ N(0, I);  x <- G(z, y)
            generator_steps times: G <- Adam step on -L_md + lambda_cls L_cls + lambda_dis L_dis
            student_steps times:   student <- SGD step on its own L_md, with fresh z, y

| symbol | here |
|---|---|
| a_k^y = n_k^y / sum_j n_j^y | class-level ensemble weights, ``class_shares`` |
| L_md | ``mining`` and ``teaching``: sum_k a_k^y d(f_S(x), f_k(x)) with a distance d |
| L_cls | sum_k a_k^y CE(f_k(x), y), weighted by ``fidelity`` |
| L_dis | ``diversity`` of images against noise, weighted by ``spread`` |

Departures:

- The paper refines the average within every round. Here the one round takes ``epochs`` such
  refinements, each of the authors' 1 generator step and 5 student steps.
- L_md is a KL divergence in the paper. The authors' code mines |f_S - f_k| and teaches the student
  the clients' weighted probabilities; so does this file. A student that learns by KL(f_S || f_k),
  which has no bound where a client is sure, diverges ("kl" for both; docs/results).
- The authors' code weighs losses after averaging them over the batch and takes a generator step for
  each client. Here each image has the weights of its own label, and a step is for all clients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from attar.blocks.ensemble import class_shares, label_shares
from attar.blocks.execution import gradient_step
from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.student import (
    DistillationContext,
    class_fidelity,
    diversity,
    frozen,
    logit_gap,
    model_discrepancy,
    new_student,
    prepare_context,
    soft_label_loss,
)
from attar.core import Metrics, Needs, Phase, Result, Server, State, Upload
from attar.seeds import rng
from attar.settings import NonNegative, NonNegativeInt, Positive, PositiveInt, flat, settings

Discrepancy = Literal["kl", "l1", "soft-labels"]
DISCREPANCIES = {"kl": model_discrepancy, "l1": logit_gap, "soft-labels": soft_label_loss}  # L_md


@dataclass(frozen=True)
class GeneratorSteps:
    """The generator, and its steps in an epoch."""

    steps: PositiveInt = flat("generator_steps", 1)  # of Adam on the generator, an epoch
    lr: Positive = flat("generator_lr", 1e-3)  # of Adam on the generator
    noise: PositiveInt = 256  # dimensions of the noise
    # channels of the generator's last hidden layer
    width: PositiveInt = flat("generator_width", 64)


@dataclass(frozen=True)
class StudentSteps:
    """The student's steps in an epoch."""

    steps: PositiveInt = flat("student_steps", 5)  # of SGD on the student, an epoch
    lr: Positive = flat("student_lr", 0.01)  # of SGD on the student
    momentum: NonNegative = 0.9  # of the student's SGD


@dataclass(frozen=True)
class Context(DistillationContext):
    """The clients as teachers, the student without its weights, and the label distribution.

    Attributes:
        class_shares: a_k^y, (K, C).
        label_shares: p(y), (C,).
    """

    class_shares: Tensor = field(kw_only=True)
    label_shares: Tensor = field(kw_only=True)


@dataclass
class MiningState(State):
    """Student and generator in training.

    Attributes:
        student: f_S.
        student_optimiser: of ``student``.
        generator: G.
        generator_optimiser: of ``generator``.
        draws: of labels and noise.
    """

    student: nn.Module
    student_optimiser: Optimizer
    generator: nn.Module
    generator_optimiser: Optimizer
    draws: torch.Generator


@settings()
@dataclass(frozen=True)
class FedFtg:
    """A generator makes images on which student and clients disagree (Zhang et al. 2022)."""

    paper: ClassVar[str] = "Zhang et al., CVPR 2022"
    cost: ClassVar[str] = "an epoch: six passes through all clients, no pool"
    needs: ClassVar[Needs] = Needs(label_counts=True)

    epochs: NonNegativeInt = 200  # T
    batch_size: PositiveInt = 128  # images in a batch
    generator: GeneratorSteps = GeneratorSteps()
    student: StudentSteps = StudentSteps()
    mining: Discrepancy = "l1"  # L_md of the generator
    teaching: Discrepancy = "soft-labels"  # L_md of the student
    clip: Positive | None = None  # largest norm of either gradient
    fidelity: NonNegative = 1.0  # lambda_cls
    spread: NonNegative = 1.0  # lambda_dis
    # average: of the clients of the student's net
    start_from: Literal["average", "fresh"] = "average"

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Put the teachers on the device; count their labels."""
        classes = server.task.classes
        return Context(
            **vars(prepare_context(uploads, server)),
            class_shares=class_shares(uploads, classes).to(server.device),
            label_shares=label_shares(uploads, classes),
        )

    def start(self, context: Context) -> MiningState:
        """The average of the clients, and a fresh generator that sees the label."""
        server = context.server
        student = new_student(context.plan, context.uploads, server, self.start_from)
        generator = new_generator(
            server.task.input_shape,
            self.generator.noise + context.num_classes,
            self.generator.width,
            server.seed,
        ).to(context.device)
        return MiningState(
            student=student,
            student_optimiser=SGD(
                student.parameters(), lr=self.student.lr, momentum=self.student.momentum
            ),
            generator=generator,
            generator_optimiser=Adam(generator.parameters(), lr=self.generator.lr),
            draws=rng(server.seed, "fedftg"),
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        """The epochs."""
        return [Phase("mine", self.epochs, partial(self.epoch, context))]

    def epoch(self, context: Context, state: MiningState) -> Metrics:
        """One refinement of the student: one turn of the loop."""
        with frozen(state.student):
            for _ in range(self.generator.steps):
                generator_loss = self.generator_step(context, state)
        for _ in range(self.student.steps):
            student_loss = self.student_step(context, state)
        return {"generator loss": generator_loss, "loss": student_loss}

    def generator_step(self, context: Context, state: MiningState) -> Tensor:
        """G <- Adam step on -L_md + lambda_cls L_cls + lambda_dis L_dis; the loss before it."""
        known = context.teachers.known

        def loss(noise: Tensor, labels: Tensor) -> Tensor:
            images = make_images(state.generator, noise, labels, context.num_classes)  # x = G(z, y)
            weights = context.class_shares[:, labels]  # a_k^y
            clients = context.teachers(images)  # f_k(x)
            student = context.student_logits(state.student, images)  # f_S(x)
            discrepancy = DISCREPANCIES[self.mining](student, clients, known, weights)
            fidelity = class_fidelity(clients, known, labels, weights)
            return self.generator_loss(discrepancy, fidelity, diversity(images, noise))

        return self.step("mine", context, state, state.generator_optimiser, loss)

    def generator_loss(self, discrepancy: Tensor, fidelity: Tensor, diversity: Tensor) -> Tensor:
        """-L_md + lambda_cls L_cls + lambda_dis L_dis."""
        return -discrepancy + self.fidelity * fidelity + self.spread * diversity

    def student_step(self, context: Context, state: MiningState) -> Tensor:
        """Student <- SGD step on L_md; the loss before it."""
        known = context.teachers.known

        def loss(noise: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                images = make_images(state.generator, noise, labels, context.num_classes)
                clients = context.teachers(images)  # f_k(x)
            student = context.student_logits(state.student, images)  # f_S(x)
            weights = context.class_shares[:, labels]  # a_k^y
            return DISCREPANCIES[self.teaching](student, clients, known, weights)  # L_md

        return self.step("learn", context, state, state.student_optimiser, loss)

    def step(
        self,
        name: str,
        context: Context,
        state: MiningState,
        optimiser: Optimizer,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """A step on fresh labels and noise; the loss before it."""
        labels = draw_labels(  # y ~ p(y)
            self.batch_size, context.num_classes, state.draws, context.device, context.label_shares
        )
        noise = draw_noise(self.batch_size, self.generator.noise, state.draws, context.device)  # z
        nets = (state.student, state.generator)
        return gradient_step(context.run, name, optimiser, loss, (noise, labels), nets, self.clip)

    def result(self, context: Context, state: MiningState) -> Result:
        """The student."""
        return Result({"student": context.plan.part(state.student)})


def make_images(generator: nn.Module, noise: Tensor, labels: Tensor, classes: int) -> Tensor:
    """G(z, y): images (B, C, H, W) of the generator, which sees noise and one-hot labels."""
    one_hot = noise.new_zeros(len(labels), classes).scatter(1, labels[:, None], 1.0)
    images: Tensor = generator(torch.cat([noise, one_hot], 1))
    return images
