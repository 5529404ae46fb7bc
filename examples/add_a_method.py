"""A complete method: distil the ensemble into a student on plain noise.

This is the simplest data-free baseline.

Run it:   python examples/add_a_method.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from attar import METHODS, Needs, Phase, Result, Server, State, Upload, fuse
from attar.blocks.ensemble import Ensemble, build_mixture
from attar.blocks.student import StudentPlan, distillation, server_plan
from attar.seeds import rng
from attar.settings import NonNegativeInt, Positive, PositiveInt, settings
from attar.testing import check_method, tiny_world


@dataclass(frozen=True)
class Context:
    """What does not change: made from the uploads, never saved.

    Attributes:
        server: The task, the seed and the device.
        teacher: The ensemble of the clients.
        plan: The student without its weights.
    """

    server: Server
    teacher: Ensemble
    plan: StudentPlan


@dataclass
class NoiseState(State):
    """Everything that changes: attar saves and restores it bit for bit.

    Attributes:
        student: The net that learns.
        optimiser: Updates it.
        draws: The source of noise.
    """

    student: nn.Module
    optimiser: Optimizer
    draws: torch.Generator


@settings()  # checks the bounds in the types below whenever a method is made
@dataclass(frozen=True)
class NoiseDistillation:
    """Distil the mean of the clients' logits on uniform noise."""

    paper: ClassVar[str] = "none: a baseline for comparison"
    cost: ClassVar[str] = "a step: one pass through all clients"

    steps: NonNegativeInt = 200
    batch_size: PositiveInt = 128
    lr: Positive = 1e-3
    temperature: Positive = 4.0

    @property
    def needs(self) -> Needs:
        return Needs()  # a classifier from each client, any architectures, any class lists

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        mixture = build_mixture("mean-logits", uploads, server.task.classes)
        teacher = Ensemble(mixture).to(server.device)
        return Context(server=server, teacher=teacher, plan=server_plan(server))

    def start(self, context: Context) -> NoiseState:
        seed = context.server.seed
        student = context.plan.fresh(seed).to(context.server.device)
        return NoiseState(
            student=student,
            optimiser=Adam(student.parameters(), lr=self.lr),
            draws=rng(seed, "noise"),
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        def step(state: NoiseState) -> dict[str, torch.Tensor]:
            shape = (self.batch_size, *context.server.task.input_shape)
            images = torch.rand(shape, generator=state.draws).to(context.server.device)
            with torch.no_grad():
                targets = context.teacher(images)
            logits = context.plan.logits(state.student, images)
            loss = distillation(logits, targets, self.temperature)
            state.optimiser.zero_grad()
            loss.backward()
            state.optimiser.step()
            return {"loss": loss.detach()}

        return [Phase("distil", self.steps, step)]

    def result(self, context: Context, state: NoiseState) -> Result:
        return Result({"student": context.plan.part(state.student)})


if __name__ == "__main__":
    METHODS["noise"] = NoiseDistillation
    check_method(NoiseDistillation(steps=4, batch_size=8))
    world = tiny_world()
    fused = fuse(world.uploads, NoiseDistillation(steps=50, batch_size=16), world.server)
    last = fused.record["history"][-1]
    print(f"the contract holds; last loss {last['loss']:.4f}")
