"""What surrounds a data-free method and never changes: teachers, their weighting, the student."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attar.blocks.ensemble import Teachers, combine, data_shares
from attar.blocks.execution import Runner, compile_blocks, eager, runner_for
from attar.blocks.images import PlainGeneratorTraining
from attar.blocks.student.stratify import (
    Stratification,
    guidance,
    guidance_losses,
    label_free_weights,
    stratified_weights,
)
from attar.blocks.student.student import StudentPlan, server_plan
from attar.core import Metrics, Mixture, Phase, Server, State, Upload

Weighting = Literal["uniform", "data", "stratified"]
"""How clients are weighted: all alike, by their share of the data, or by FedHydra's guidance U."""

# Batches that the clients answer in one call: small nets leave a GPU idle with one batch, and nets
# that do not all fit into its memory are loaded a quarter as often.
BATCHES_TOGETHER = 4


@dataclass
class GuidedState(State):
    """The part of a state that stratification fills.

    Attributes:
        guidance: U of FedHydra, (K, C); zero where it has not been measured.
    """

    guidance: Tensor


@dataclass(frozen=True)
class EnsembleWeighting:
    """The weights of the clients in a weighted mean of logits.

    Attributes:
        kind: uniform, by share of the data, or by guidance for the target label.
        known: (K, C), whether a client knows a class.
        data_shares: (K,), each client's share of the data.
    """

    kind: Weighting
    known: Tensor
    data_shares: Tensor

    def for_labels(self, guidance: Tensor, labels: Tensor) -> Tensor:
        """The weights for images with target labels.

        Args:
            guidance: U, (K, C); read by the stratified weighting alone.
            labels: target labels, (B,).

        Returns:
            (K,), or (B, K, C) of the stratified weighting.
        """
        if self.kind == "stratified":
            return stratified_weights(guidance, labels)
        return self._constant(guidance)

    def without_labels(self, guidance: Tensor) -> Tensor:
        """The weights for images without labels: (K,), or (K, C) of the stratified weighting."""
        return (
            label_free_weights(guidance) if self.kind == "stratified" else self._constant(guidance)
        )

    def combine(self, logits: Tensor, labels: Tensor, guidance: Tensor) -> Tensor:
        """The ensemble's logits (B, C) from those of the clients, (K, B, C)."""
        rule = "sum" if self.kind == "stratified" else "logits"
        return combine(rule, logits, self.known, self.for_labels(guidance, labels))

    def _constant(self, like: Tensor) -> Tensor:
        if self.kind == "data":
            return self.data_shares
        clients = len(self.known)
        return like.new_full((clients,), 1 / clients)


@dataclass(frozen=True)
class DistillationContext:
    """What ``prepare`` makes for a data-free method; it never changes.

    Attributes:
        uploads: of the clients that are the teachers.
        server: task, student, device, seed.
        teachers: the clients' frozen nets: images to logits (K, B, C).
        weighting: how their logits are combined.
        plan: everything about the student but its weights.
        run: how steps run on the device.
        batches_together: batches of the pool that the teachers answer in one call.
    """

    uploads: Sequence[Upload]
    server: Server
    teachers: Teachers
    weighting: EnsembleWeighting
    plan: StudentPlan
    run: Runner
    batches_together: int = 1

    @property
    def device(self) -> str:
        """Where everything is."""
        return self.server.device

    @property
    def num_classes(self) -> int:
        """Classes of the task."""
        return len(self.server.task.classes)

    def ensemble(self, state: GuidedState, images: Tensor, labels: Tensor) -> Tensor:
        """The ensemble's logits (B, C) on images with target labels, under the weighting."""
        return self.weighting.combine(self.teachers(images), labels, state.guidance)

    def student_logits(self, student: nn.Module, images: Tensor) -> Tensor:
        """The student's logits (B, C) on canonical images."""
        return self.plan.logits(student, images)

    def maybe_compile(self, net: nn.Module) -> nn.Module:
        """The same module, compiled in place where the server asks for it."""
        if self.server.compile and not compile_blocks(net):
            net.compile(dynamic=False)
        return net

    def mixture(self, rule: str, weights: Tensor | None) -> Mixture:
        """The ensemble as a deployable model.

        Args:
            rule: how logits are combined, a key of ``attar.blocks.ensemble.RULES``.
            weights: (K,) or (K, C); None: 1 for each client.
        """
        return Mixture(
            members=tuple(upload.parts["classifier"] for upload in self.uploads),
            rule=rule,
            weights=None if weights is None else weights.detach().cpu().clone(),
            classes=self.server.task.classes,
        )


def prepare_context(
    uploads: Sequence[Upload],
    server: Server,
    weighting: Weighting = "uniform",
    *,
    partial: bool = False,
) -> DistillationContext:
    """Put the clients' classifiers on the server's device as teachers of a student.

    Args:
        uploads: each with a classifier.
        server: task, student, device.
        weighting: how the teachers' logits are combined.
        partial: allow classes that none of the teachers knows.
    """
    teachers = Teachers(
        [upload.parts["classifier"] for upload in uploads],
        server.task.classes,
        compile=server.compile,
        memory=server.teacher_memory,
        partial=partial,
    ).to(server.device)
    cuda = torch.device(server.device).type == "cuda"
    return DistillationContext(
        uploads=uploads,
        server=server,
        teachers=teachers,
        weighting=EnsembleWeighting(
            weighting, teachers.known, data_shares(uploads).to(server.device)
        ),
        plan=server_plan(server),
        # Nets that take turns in memory have no fixed address to record.
        run=eager if teachers.swapped else runner_for(server.device),
        batches_together=BATCHES_TOGETHER if teachers.swapped or cuda else 1,
    )


def blank_guidance(context: DistillationContext) -> Tensor:
    """U before anything is measured: zeros (K, C)."""
    return torch.zeros(len(context.uploads), context.num_classes, device=context.device)


def stratify_phase(
    context: DistillationContext,
    generator: PlainGeneratorTraining,
    batch_size: int,
    floor: float,
    guidance_of: Callable[[Tensor, float], Tensor] = guidance,
    stratification: Stratification = Stratification(),  # noqa: B008
) -> Phase:
    """FedHydra's Algorithm 2 as a phase: one step a client, each of which fills its row of U.

    Args:
        context: whose teachers are measured.
        generator: how the generator of each class is trained.
        batch_size: images b of each generator.
        floor: under the divisor of Eq. (2).
        guidance_of: Eq. (2), from losses (T_G, classes) and the floor to u of each class.
        stratification: how the generators begin, and whether their images are augmented.
    """
    teachers = context.teachers

    def step(state: GuidedState) -> Metrics:
        client = state.step
        classes = teachers.known[client].nonzero().squeeze(1)

        def teacher(images: Tensor) -> Tensor:
            # 0 for classes that it does not know: the loss of a client of one class can fall, too.
            return teachers.run_one(client, images)

        losses = guidance_losses(
            teacher,
            classes,
            context.server.task.input_shape,
            generator,
            batch_size,
            context.server.seed,
            stratification,
            client,
        )
        state.guidance[client, classes] = guidance_of(losses, floor)
        return {}

    return Phase(
        "stratify", len(context.uploads), step, lambda _: 2.0 * generator.steps, learns=False
    )
