"""FedDF: ensemble distillation on unlabelled images that the server has.

Paper: T. Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning,
NeurIPS 2020, Algorithm 1.

    student <- average of the clients of its architecture
    repeat: x <- batch of unlabelled images
            student <- Adam step on KL(softmax(mean_k f_k(x)) || softmax(f_S(x)))        Eq. (3)

| symbol | here |
|---|---|
| x | images of ``server.public`` |
| f_k, f_S | ``Context.teacher``, an ensemble of the clients; ``DistillationState.students`` |

The teachers never change and the images are not augmented. So each image passes the teachers once,
in phase "ask", and its answer serves all steps of phase "distil": the same numbers as asking in
every step, many times cheaper.

Departures:

- The paper stops early on a labelled validation set. A server without labels takes ``steps`` steps,
  the authors' 10,000.
- ``mixed="vote"``: one student per client architecture, all distilled from the same ensemble, which
  then vote (FedMHO 5.1.2). ``mixed="mean-logits"``: the mean of their logits.
- A student whose architecture no client has starts fresh.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from attar.blocks.ensemble import REDUCTIONS, Ensemble, RuleName, build_mixture, rule_needs_counts
from attar.blocks.execution import Runner, gradient_step, runner_for
from attar.blocks.student import (
    AnsweredState,
    StudentPlan,
    answer_phase,
    distillation,
    new_student,
    next_batch,
    server_plan,
)
from attar.core import Metrics, Mixture, Needs, Phase, Result, Server, Upload
from attar.nets import to_shape
from attar.seeds import rng
from attar.settings import NonNegativeInt, Positive, PositiveInt, settings


@dataclass(frozen=True)
class Context:
    """What does not change.

    Attributes:
        uploads: the classifiers.
        server: the task and the device.
        teacher: the ensemble of the clients.
        plans: the students without their weights.
        pixels: uint8 (N, C, H, W), the unlabelled images, on the device.
        run: how steps run on the device.
    """

    uploads: Sequence[Upload]
    server: Server
    teacher: Ensemble
    plans: tuple[StudentPlan, ...]
    pixels: Tensor
    run: Runner

    def images(self, rows: Tensor | slice) -> Tensor:
        """Canonical images (B, C, H, W) in the shape of the task."""
        return to_shape(self.pixels[rows].float() / 255, self.server.task.input_shape)


@dataclass
class DistillationState(AnsweredState):
    """The students, with an optimiser and a schedule of the learning rate for each."""

    students: list[nn.Module]
    optimisers: list[Optimizer]
    schedules: list[LRScheduler]


@settings()
@dataclass(frozen=True)
class FedDF:
    """Ensemble distillation on unlabelled images at the server (Lin et al. 2020)."""

    paper: ClassVar[str] = "Lin et al., NeurIPS 2020"
    cost: ClassVar[str] = "each image passes all clients once, then student steps"

    steps: NonNegativeInt = 10_000  # of Adam on the student
    batch_size: PositiveInt = 128  # images in a batch
    lr: Positive = 1e-3  # of Adam
    temperature: Positive = 1.0  # of both softmaxes in the loss
    teacher: RuleName = "mean-logits"  # the paper's avg_logits, or another rule of ``ensemble``
    # average: of the clients of the student's net
    start_from: Literal["average", "fresh"] = "average"
    # the server's choice, or one student per architecture, combined
    mixed: Literal["student", "vote", "mean-logits"] = "student"

    @property
    def needs(self) -> Needs:
        """Unlabelled images at the server."""
        return Needs(
            public_data=True,
            label_counts=rule_needs_counts(self.teacher),
            student=self.mixed == "student",
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Put the ensemble and the images on the device; plan one student or several."""
        assert server.public is not None, "needs.public_data was checked"
        plans: tuple[StudentPlan, ...] = (server_plan(server),)
        if self.mixed != "student":
            parts = [upload.parts["classifier"] for upload in uploads]
            plans = tuple(
                dict.fromkeys(StudentPlan(p.spec, p.preprocess, server.task.classes) for p in parts)
            )
        mixture = build_mixture(self.teacher, uploads, server.task.classes)
        return Context(
            uploads=uploads,
            server=server,
            teacher=Ensemble(mixture).to(server.device),
            plans=plans,
            pixels=server.public.pixels.to(server.device),
            run=runner_for(server.device),
        )

    def start(self, context: Context) -> DistillationState:
        """The students, and no answers yet."""
        server = context.server
        number = len(context.pixels)
        students = [
            new_student(plan, context.uploads, server, self.start_from).train()
            for plan in context.plans
        ]
        optimisers: list[Optimizer] = [Adam(net.parameters(), lr=self.lr) for net in students]
        return DistillationState(
            answers=torch.zeros(number, len(server.task.classes), device=server.device),
            order=torch.arange(number, device=server.device),
            draws=rng(server.seed, "feddf"),
            students=students,
            optimisers=optimisers,
            schedules=[CosineAnnealingLR(optimiser, self.steps) for optimiser in optimisers],
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        """Ask the ensemble about every image once, then distil."""
        number = len(context.pixels)
        cost_of_image = len(context.uploads) / (3 * self.batch_size)
        return [
            answer_phase("ask", number, partial(self.ask, context), cost_of_image),
            Phase("distil", self.steps, partial(self.distil, context)),
        ]

    def ask(self, context: Context, state: DistillationState, rows: slice) -> None:
        """Store the ensemble's logits mean_k f_k(x) on some of the images."""
        state.answers[rows] = context.teacher(context.images(rows)).float()

    def distil(self, context: Context, state: DistillationState) -> Metrics:
        """One step of Algorithm 1: every student learns the same batch."""
        rows = next_batch(state, self.batch_size)
        images = context.images(rows)  # x
        answers = state.answers[rows]  # mean_k f_k(x)
        total = torch.zeros((), device=answers.device)
        for number, plan in enumerate(context.plans):
            student = state.students[number]
            total += gradient_step(  # student <- Adam step on Eq. (3)
                context.run,
                "learn",
                state.optimisers[number],
                partial(self.loss, plan, student),
                inputs=(images, answers),
                captured=[student],
            )
            state.schedules[number].step()
        return {"loss": total / len(state.students)}

    def loss(
        self, plan: StudentPlan, student: nn.Module, images: Tensor, answers: Tensor
    ) -> Tensor:
        """Eq. (3): KL(softmax(mean_k f_k(x)) || softmax(f_S(x))), at ``temperature``.

        Args:
            plan: how the student looks at images.
            student: f_S.
            images: x, (B, C, H, W).
            answers: (B, C) logits of the ensemble on x.
        """
        return distillation(plan.logits(student, images), answers, self.temperature)

    def result(self, context: Context, state: DistillationState) -> Result:
        """The student, or the students combined by ``mixed``."""
        parts = tuple(
            plan.part(net) for plan, net in zip(context.plans, state.students, strict=True)
        )
        if len(parts) == 1:
            return Result({"student": parts[0]})
        assert self.mixed != "student", "one student was planned"
        rule = REDUCTIONS[self.mixed]
        return Result({self.mixed: Mixture(parts, rule, None, context.server.task.classes)})
