"""What every method of the generator family has around it: teachers, the student's plan, the guidance they give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from attar.blocks.average import data_shares
from attar.blocks.ensemble import NEVER, Teachers, combine
from attar.blocks.stratify import Stratification, guidance, guidance_losses, label_free_weights, stratified_weights
from attar.blocks.student import StudentPlan, server_plan
from attar.core import Mixture, Phase, Server, State, Upload

Weighing = Literal["uniform", "data", "stratified"]


@dataclass(frozen=True)
class Classroom:
    """Teachers and the plan of the student: made by ``prepare``, never changed."""

    uploads: Sequence[Upload]
    server: Server
    teachers: Teachers
    plan: StudentPlan

    @property
    def device(self) -> str:
        return self.server.device

    @property
    def num_classes(self) -> int:
        return len(self.server.task.classes)

    def mixture(self, rule: str, weights: Tensor | None) -> Mixture:
        """The ensemble as a deployable model."""
        members = tuple(upload.parts["classifier"] for upload in self.uploads)
        return Mixture(members, rule, None if weights is None else weights.detach().cpu().clone(), self.server.task.classes)


def open_classroom(uploads: Sequence[Upload], server: Server) -> Classroom:
    parts = [upload.parts["classifier"] for upload in uploads]
    return Classroom(uploads, server, Teachers(parts, server.task.classes).to(server.device), server_plan(server))


@dataclass
class GuidedState(State):
    """The part of a state that stratification fills: U as (K, C), zero where nothing is measured yet."""

    guidance: Tensor


def no_guidance(room: Classroom) -> Tensor:
    return torch.zeros(len(room.uploads), room.num_classes, device=room.device)


def stratify_phase(room: Classroom, how: Stratification, floor: float) -> Phase:
    """FedHydra's Algorithm 2 as a phase: one step a client, each filling its row of U."""

    def step(state: GuidedState) -> dict[str, float]:
        row = state.step
        classes = room.teachers.known[row].nonzero().squeeze(1)

        def teacher(images: Tensor) -> Tensor:
            return room.teachers.one(row, images).masked_fill(~room.teachers.known[row], NEVER)

        losses = guidance_losses(teacher, classes, room.server.task.input_shape, how, room.server.seed)
        state.guidance[row, classes] = guidance(losses, floor)
        return {}

    return Phase("stratify", len(room.uploads), step, lambda _: 2.0 * how.steps)


@dataclass(frozen=True)
class Guide:
    """How the ensemble answers about images with target labels: one of the three ways to weigh clients."""

    room: Classroom
    weighing: Weighing

    def weights(self, labels: Tensor, state: GuidedState) -> Tensor | None:
        """(K,) or (B, K, C) for the rule that ``rule`` names."""
        if self.weighing == "stratified":
            return stratified_weights(state.guidance, labels)
        return data_shares(self.room.uploads).to(labels.device) if self.weighing == "data" else None

    @property
    def rule(self) -> str:
        return "sum" if self.weighing == "stratified" else "logits"

    def combine(self, logits: Tensor, labels: Tensor, state: GuidedState) -> Tensor:
        """Per-client logits (K, B, C) -> the ensemble's (B, C)."""
        return combine(self.rule, logits, self.room.teachers.known, self.weights(labels, state))

    def answer(self, images: Tensor, labels: Tensor, state: GuidedState) -> Tensor:
        return self.combine(self.room.teachers(images), labels, state)

    def deployable(self, state: GuidedState) -> Mixture:
        """The same ensemble for images without labels."""
        if self.weighing == "stratified":
            return self.room.mixture("sum", label_free_weights(state.guidance))
        return self.room.mixture("logits", data_shares(self.room.uploads) if self.weighing == "data" else None)


def student_optimiser(
    student: nn.Module, lr: float, momentum: float, weight_decay: float, schedule: str, epochs: int
) -> tuple[Optimizer, LRScheduler]:
    """SGD, constant or with a cosine over the epochs."""
    optimiser = SGD(student.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    if schedule == "cosine":
        return optimiser, CosineAnnealingLR(optimiser, max(1, epochs))
    return optimiser, LambdaLR(optimiser, lambda _: 1.0)
