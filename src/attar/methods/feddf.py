"""FedDF: ensemble distillation on unlabelled images that the server has.

Paper: T. Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning,
NeurIPS 2020, Algorithm 1.

    student <- average of the clients of its architecture
    repeat: x <- batch of unlabelled images
            student <- Adam step on KL(softmax(mean_k f_k(x)) || softmax(f_S(x)))        Eq. (3)

The teachers never change and the images are not augmented, so each image asks the teachers once
(phase "ask") and its answer serves all steps of phase "distil": the same numbers as asking in
every step, many times cheaper.

Departures: the paper stops early on a labelled validation set; a server without labels runs
``steps`` steps (the authors' 10,000). ``mixed="vote"``: one student per client architecture, all
distilled from the same ensemble, which then vote (FedMHO 5.1.2); "mean-logits": the mean of what
they say. A student whose architecture no client has starts fresh.
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
from attar.blocks.execution import Run, gradient_step, run_on
from attar.blocks.student import (
    AnsweredState,
    StudentPlan,
    ask_phase,
    distillation,
    new_student,
    next_batch,
    server_plan,
)
from attar.core import Metrics, Mixture, Needs, Phase, Result, Server, Upload
from attar.nets import to_shape
from attar.seeds import generator
from attar.settings import require


@dataclass(frozen=True)
class Context:
    uploads: Sequence[Upload]
    server: Server
    teacher: Ensemble
    plans: tuple[StudentPlan, ...]
    pixels: Tensor  # uint8, on the device
    run: Run


@dataclass
class DistillationState(AnsweredState):
    students: list[nn.Module]
    optimisers: list[Optimizer]
    schedules: list[LRScheduler]


@dataclass(frozen=True)
class FedDF:
    """Ensemble distillation on unlabelled images at the server (Lin et al. 2020)."""

    paper: ClassVar[str] = "Lin et al., NeurIPS 2020"
    cost: ClassVar[str] = "each image passes all clients once, then student steps"

    steps: int = 10_000
    batch_size: int = 128
    lr: float = 1e-3
    temperature: float = 1.0
    teacher: RuleName = "mean-logits"  # the paper's avg_logits, or another rule of ``ensemble``
    start_from: Literal["average", "fresh"] = "average"
    mixed: Literal["student", "vote", "mean-logits"] = (
        "student"  # the server's choice, or one per architecture, combined
    )

    def __post_init__(self) -> None:
        require(self, may_be_zero="steps")

    @property
    def needs(self) -> Needs:
        return Needs(
            public_data=True,
            label_counts=rule_needs_counts(self.teacher),
            student=self.mixed == "student",
        )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        assert server.public is not None, "needs.public_data was checked"
        parts = [upload.parts["classifier"] for upload in uploads]
        plans = [server_plan(server)]
        if self.mixed != "student":
            plans = list(
                dict.fromkeys(StudentPlan(p.spec, p.preprocess, server.task.classes) for p in parts)
            )
        teacher = Ensemble(build_mixture(self.teacher, uploads, server.task.classes)).to(
            server.device
        )
        return Context(
            uploads,
            server,
            teacher,
            tuple(plans),
            server.public.pixels.to(server.device),
            run_on(server.device),
        )

    def start(self, context: Context) -> DistillationState:
        server = context.server
        students = [
            new_student(plan, context.uploads, server, self.start_from).train()
            for plan in context.plans
        ]
        optimisers: list[Optimizer] = [
            Adam(student.parameters(), lr=self.lr) for student in students
        ]
        schedules: list[LRScheduler] = [
            CosineAnnealingLR(optimiser, self.steps) for optimiser in optimisers
        ]
        answers = torch.zeros(len(context.pixels), len(server.task.classes), device=server.device)
        order = torch.arange(len(context.pixels), device=server.device)
        return DistillationState(
            answers, order, generator(server.seed, "feddf"), students, optimisers, schedules
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        def distil(state: DistillationState) -> Metrics:
            batch = next_batch(state, self.batch_size)
            inputs, answers = self._images(context, batch), state.answers[batch]
            total = torch.zeros((), device=answers.device)
            for plan, student, optimiser, schedule in zip(
                context.plans, state.students, state.optimisers, state.schedules, strict=True
            ):
                total += gradient_step(
                    context.run,
                    "learn",
                    optimiser,
                    partial(self._loss, plan, student),
                    (inputs, answers),
                    [student],
                )
                schedule.step()
            return {"loss": total / len(state.students)}

        ask = ask_phase(
            context.teacher,
            lambda state, chosen: self._images(context, chosen),
            len(context.pixels),
            len(context.uploads),
            self.batch_size,
        )
        return ask, Phase("distil", self.steps, distil)

    def _loss(
        self, plan: StudentPlan, student: nn.Module, images: Tensor, answers: Tensor
    ) -> Tensor:
        return distillation(plan.logits(student, images), answers, self.temperature)  # Eq. (3)

    def _images(self, context: Context, chosen: Tensor | slice) -> Tensor:
        return to_shape(context.pixels[chosen].float() / 255, context.server.task.input_shape)

    def result(self, context: Context, state: DistillationState) -> Result:
        parts = tuple(
            plan.part(net) for plan, net in zip(context.plans, state.students, strict=True)
        )
        if len(parts) == 1:
            return Result({"student": parts[0]})
        assert self.mixed != "student", "one student was planned"
        return Result(
            {self.mixed: Mixture(parts, REDUCTIONS[self.mixed], None, context.server.task.classes)}
        )
