"""What every method of the generator family has around it: teachers, the student's plan, the
guidance they give.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attar.blocks.ensemble import Teachers, combine, data_shares
from attar.blocks.execution import Run, at_once, compile_blocks, run_on
from attar.blocks.images import GeneratorWork
from attar.blocks.student.stratify import (
    Highest,
    Stratification,
    guidance,
    guidance_losses,
    label_free_weights,
    stratified_weights,
)
from attar.blocks.student.student import StudentPlan, server_plan
from attar.core import Mixture, Phase, Server, State, Upload

Weighing = Literal["uniform", "data", "stratified"]

TOGETHER = (
    4  # small nets leave a GPU idle with one batch; nets in turns are fetched a quarter as often
)


@dataclass(frozen=True)
class Classroom:
    """Teachers and the plan of the student: made by ``prepare``, never changed."""

    uploads: Sequence[Upload]
    server: Server
    teachers: Teachers
    plan: StudentPlan
    data_shares: Tensor  # (K,) each client's share of the data
    run: Run  # how the steps of this room run on its device
    together: int = 1  # batches of the pool that the clients are shown in one go

    @property
    def device(self) -> str:
        return self.server.device

    @property
    def num_classes(self) -> int:
        return len(self.server.task.classes)

    def quickened(self, net: nn.Module) -> nn.Module:
        """``net``, compiled where the server asks for that: the same module, its weights where
        they were.
        """
        if self.server.compile and not compile_blocks(net):
            net.compile(dynamic=False)
        return net

    def mixture(self, rule: str, weights: Tensor | None) -> Mixture:
        """The ensemble as a deployable model."""
        members = tuple(upload.parts["classifier"] for upload in self.uploads)
        return Mixture(
            members,
            rule,
            None if weights is None else weights.detach().cpu().clone(),
            self.server.task.classes,
        )


def open_classroom(
    uploads: Sequence[Upload], server: Server, *, partial: bool = False
) -> Classroom:
    """``partial``: there may be classes that none of these teachers knows."""
    parts, classes = [upload.parts["classifier"] for upload in uploads], server.task.classes
    teachers = Teachers(
        parts, classes, compile=server.compile, memory=server.teacher_memory, partial=partial
    )
    teachers = teachers.to(server.device)
    shares = data_shares(uploads).to(server.device)
    run = (
        at_once if teachers.in_turns else run_on(server.device)
    )  # weights that come and go have no address to record
    together = TOGETHER if teachers.in_turns or torch.device(server.device).type == "cuda" else 1
    return Classroom(uploads, server, teachers, server_plan(server), shares, run, together)


@dataclass
class GuidedState(State):
    """The part of a state that stratification fills: U as (K, C), zero where nothing is measured
    yet.
    """

    guidance: Tensor


def no_guidance(room: Classroom) -> Tensor:
    return torch.zeros(len(room.uploads), room.num_classes, device=room.device)


def stratify_phase(
    room: Classroom, how: Stratification, floor: float, highest_of: Highest = "class"
) -> Phase:
    """FedHydra's Algorithm 2 as a phase: one step a client, each filling its row of U."""

    def step(state: GuidedState) -> dict[str, float]:
        row = state.step
        classes = room.teachers.known[row].nonzero().squeeze(1)

        def teacher(images: Tensor) -> Tensor:
            return room.teachers.one(
                row, images
            )  # 0 for classes it does not know: even a client of one class can fail

        losses = guidance_losses(
            teacher, classes, room.server.task.input_shape, how, room.server.seed
        )
        state.guidance[row, classes] = guidance(losses, floor, highest_of)
        return {}

    return Phase("stratify", len(room.uploads), step, lambda _: 2.0 * how.steps, learns=False)


def guided_phases(
    room: Classroom,
    settings: GeneratorWork,
    weighing: Weighing,
    floor: float,
    phase: Phase,
    highest_of: Highest = "class",
) -> Sequence[Phase]:
    """``phase``, and before it the stratification where that is how clients are weighed."""
    if weighing != "stratified":
        return [phase]
    how = Stratification(
        settings.generator_steps,
        settings.batch_size,
        settings.generator_lr,
        settings.noise,
        settings.generator_width,
    )
    return [stratify_phase(room, how, floor, highest_of), phase]


@dataclass(frozen=True)
class Guide:
    """How the ensemble answers about images with target labels: one of the three ways to weigh
    clients.

    A method may have learned weights of its own, ``own`` (K,), which start at 1/n; they multiply
    the others.
    """

    room: Classroom
    weighing: Weighing

    def combine(
        self,
        logits: Tensor,
        labels: Tensor,
        state: GuidedState,
        *,
        own: Tensor | None = None,
        divide: bool = True,
    ) -> Tensor:
        """Per-client logits (K, B, C) -> the ensemble's (B, C); ``divide``: by the sum of the weights."""
        base = (
            stratified_weights(state.guidance, labels)
            if self.weighing == "stratified"
            else self._shares(logits)
        )
        return combine(self._rule(divide), logits, self.room.teachers.known, self._times(base, own))

    def answer(self, images: Tensor, labels: Tensor, state: GuidedState) -> Tensor:
        return self.combine(self.room.teachers(images), labels, state)

    def deployable(
        self, state: GuidedState, *, own: Tensor | None = None, divide: bool = True
    ) -> Mixture:
        """The same ensemble for images without labels, (K,) or (K, C) weights. Divided, no class
        is louder than another.
        """
        base = (
            label_free_weights(state.guidance)
            if self.weighing == "stratified"
            else self._shares(state.guidance)
        )
        return self.room.mixture("logits" if divide else "sum", self._times(base, own))

    def _shares(self, like: Tensor) -> Tensor:
        """(K,): 1/n for each client, or its share of the data."""
        clients = len(self.room.uploads)
        return (
            self.room.data_shares
            if self.weighing == "data"
            else like.new_full((clients,), 1 / clients)
        )

    def _times(self, base: Tensor, own: Tensor | None) -> Tensor:
        if own is None:
            return base
        scale = len(own) * own  # 1 for everybody at the start
        return base * (scale if base.dim() == 1 else scale[:, None])

    def _rule(self, divide: bool) -> str:
        return "logits" if divide and self.weighing != "stratified" else "sum"
