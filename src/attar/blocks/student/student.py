"""The server's own model: where it starts, how it looks at images, how it is handed over."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from attar.blocks.ensemble import average, data_shares
from attar.blocks.execution import heavy_on
from attar.core import ModelSpec, Part, Preprocess, Server, Upload
from attar.nets.registry import Look, token_net
from attar.seeds import derive


@dataclass(frozen=True)
class StudentPlan:
    """Everything about a student but its weights."""

    spec: ModelSpec
    preprocess: Preprocess
    classes: tuple[str, ...]

    def fresh(self, seed: int) -> nn.Module:
        return self.spec.build(
            self.preprocess.input_shape, len(self.classes), derive(seed, "student")
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of a student with tokens."""
        found = self.spec.patches(self.preprocess.input_shape)
        assert found is not None, "needs.same_patches was checked"
        return found

    def part(self, net: nn.Module) -> Part:
        """The student as a Part of its own (weights copied to the CPU)."""
        return self.part_of(net.state_dict())

    def part_of(self, weights: Mapping[str, Tensor]) -> Part:
        state = {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in weights.items()
        }
        return Part(self.spec, state, self.classes, self.preprocess)

    def logits(self, net: nn.Module, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """``keep`` (B, k), of a student with tokens: the patches that it is shown."""
        inputs = self.preprocess(images)
        output: Tensor = net(inputs) if keep is None else net(inputs, keep)
        return output

    def look(self, net: nn.Module, images: Tensor, keep: Tensor | None = None) -> Look:
        """The same of a student with tokens, and its class attention."""
        return token_net(self.spec.arch, net).look(self.preprocess(images), keep)

    def rested_logits(self, net: nn.Module, images: Tensor) -> Tensor:
        """What a student in training would answer if it were asked in earnest: in eval mode,
        without gradients.
        """
        with resting(net), torch.no_grad():
            return self.logits(net, images)


def server_plan(server: Server) -> StudentPlan:
    """The student that the server was asked for."""
    return StudentPlan(server.student, server.student_preprocess, server.task.classes)


def same_kind(uploads: Sequence[Upload], plan: StudentPlan) -> list[Upload]:
    """The uploads whose classifier can be averaged into this student, with that alone, its
    classes in the student's order.
    """
    turned = [(upload, upload.parts["classifier"].in_order(plan.classes)) for upload in uploads]
    return [
        replace(upload, parts={"classifier": part}, label_counts=None)
        for upload, part in turned
        if part is not None and fits(part, plan)
    ]


def averaged(uploads: Sequence[Upload], weights: Tensor | None = None) -> Part:
    """The average of classifiers of one kind, by examples unless told otherwise."""
    first = uploads[0].parts["classifier"]
    states = [upload.parts["classifier"].state for upload in uploads]
    return Part(
        first.spec,
        average(states, data_shares(uploads) if weights is None else weights),
        first.classes,
        first.preprocess,
    )


def given_start(plan: StudentPlan, server: Server) -> Part | None:
    """The weights that the server was told to start from, where this student can take them; for
    other classes, a fresh head.
    """
    given = server.initial
    if given is None or (given.spec, given.preprocess) != (plan.spec, plan.preprocess):
        return None
    return given.for_classes(plan.classes, derive(server.seed, "student"))


def fits(part: Part, plan: StudentPlan) -> bool:
    """Whether these are weights of such a student."""
    return StudentPlan(part.spec, part.preprocess, part.classes) == plan


def new_student(
    plan: StudentPlan, uploads: Sequence[Upload], server: Server, start_from: str = "fresh"
) -> nn.Module:
    """The student at its beginning, on the server's device: the given weights, or the average of
    the clients of its kind, or fresh.

    ``start_from`` is "average" (by examples), "uniform" (each client counts the same) or
    "fresh". Fresh is for the first round: later it goes on from where the last one ended.
    Channels of a large net on CUDA lie last in memory: cuDNN turns them over otherwise.
    """
    student = plan.fresh(server.seed)
    if (given := given_start(plan, server)) is not None:
        student.load_state_dict(dict(given.state))
    elif start_from != "fresh" and (alike := same_kind(uploads, plan)):
        weights = torch.ones(len(alike)) if start_from == "uniform" else None
        student.load_state_dict(dict(averaged(alike, weights).state))
    elif (last := server.memory.get("model")) is not None and fits(last, plan):
        student.load_state_dict(dict(last.state))
    heavy = heavy_on(student, plan.preprocess.input_shape, torch.device(server.device))
    layout = torch.channels_last if heavy else torch.preserve_format
    return student.to(server.device).to(memory_format=layout)  # type: ignore[call-overload,no-any-return]


@torch.no_grad()
def follow(mean: Mapping[str, Tensor], net: nn.Module, decay: float, steps: int) -> None:
    """mean <- d mean + (1 - d) weights, in place, after the net's ``steps``-th step; what is
    counted is copied.

    d = min(decay, steps / (steps + 10)): the first steps are forgotten soon, so that a short run
    does not end where it began.
    """
    weights = net.state_dict()
    moving = [name for name, tensor in mean.items() if tensor.is_floating_point()]
    update = get_ema_multi_avg_fn(min(decay, steps / (steps + 10)))
    update([mean[name] for name in moving], [weights[name] for name in moving], steps)
    for name in mean.keys() - set(moving):
        mean[name].copy_(weights[name])


@contextmanager
def resting(student: nn.Module) -> Iterator[None]:
    """While images are made against it, the student is in eval mode and gathers no gradients."""
    student.eval().requires_grad_(False)
    try:
        yield
    finally:
        student.train().requires_grad_(True)
