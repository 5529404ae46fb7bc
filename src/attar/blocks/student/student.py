"""The server's own model: its initial weights, its logits, its delivery as a Part."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from attar.blocks.ensemble import average, data_shares
from attar.blocks.execution import prefers_streams
from attar.core import ModelSpec, Part, Preprocess, Server, Upload
from attar.nets.registry import Look, token_net
from attar.seeds import derive


@dataclass(frozen=True)
class StudentPlan:
    """Everything about a student but its weights.

    Attributes:
        spec: its architecture.
        preprocess: from canonical images to its inputs.
        classes: that its outputs stand for, in order.
    """

    spec: ModelSpec
    preprocess: Preprocess
    classes: tuple[str, ...]

    def fresh(self, seed: int) -> nn.Module:
        """A student with the initial weights of this seed, on the CPU."""
        return self.spec.build(
            self.preprocess.input_shape, len(self.classes), derive(seed, "student")
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of a student with tokens."""
        grid = self.spec.patches(self.preprocess.input_shape)
        assert grid is not None, "needs.same_patches was checked"
        return grid

    def part(self, net: nn.Module) -> Part:
        """The student as a Part, its weights copied to the CPU."""
        return self.part_of(net.state_dict())

    def part_of(self, weights: Mapping[str, Tensor]) -> Part:
        """The same of weights by name, such as a running mean."""
        state = {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in weights.items()
        }
        return Part(self.spec, state, self.classes, self.preprocess)

    def logits(self, net: nn.Module, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """The student's logits on canonical images.

        Args:
            net: a net of this plan.
            images: (B, C, H, W) in [0, 1].
            keep: (B, k), of a student with tokens: the patches that it sees; None: all.

        Returns:
            (B, classes).
        """
        inputs = self.preprocess(images)
        output: Tensor = net(inputs) if keep is None else net(inputs, keep)
        return output

    def look(self, net: nn.Module, images: Tensor, keep: Tensor | None = None) -> Look:
        """The same of a student with tokens, together with its class attention."""
        return token_net(self.spec.arch, net).look(self.preprocess(images), keep)

    def eval_logits(self, net: nn.Module, images: Tensor) -> Tensor:
        """Logits (B, C) of a student in training, in eval mode and without gradients."""
        with frozen(net), torch.no_grad():
            return self.logits(net, images)


def server_plan(server: Server) -> StudentPlan:
    """The student that the server was asked for."""
    return StudentPlan(server.student, server.student_preprocess, server.task.classes)


def same_kind(uploads: Sequence[Upload], plan: StudentPlan) -> list[Upload]:
    """The uploads whose classifier can be averaged into this student.

    Returns:
        These uploads with that part alone, its classes in the student's order.
    """
    ordered = [(upload, upload.parts["classifier"].in_order(plan.classes)) for upload in uploads]
    return [
        replace(upload, parts={"classifier": part}, label_counts=None)
        for upload, part in ordered
        if part is not None and fits(part, plan)
    ]


def average_classifiers(uploads: Sequence[Upload], weights: Tensor | None = None) -> Part:
    """The weighted average of classifiers of one kind.

    Args:
        uploads: with classifiers of one architecture, preprocessing and class list.
        weights: (K,); None: by each client's number of examples.
    """
    first = uploads[0].parts["classifier"]
    states = [upload.parts["classifier"].state for upload in uploads]
    mean = average(states, data_shares(uploads) if weights is None else weights)
    return Part(first.spec, mean, first.classes, first.preprocess)


def initial_weights(plan: StudentPlan, server: Server) -> Part | None:
    """The server's initial weights where they fit this student; for other classes a fresh head."""
    initial = server.initial
    if initial is None or (initial.spec, initial.preprocess) != (plan.spec, plan.preprocess):
        return None
    return initial.for_classes(plan.classes, derive(server.seed, "student"))


def fits(part: Part, plan: StudentPlan) -> bool:
    """Whether a part has the architecture, preprocessing and classes of this student."""
    return StudentPlan(part.spec, part.preprocess, part.classes) == plan


def new_student(
    plan: StudentPlan, uploads: Sequence[Upload], server: Server, start_from: str = "fresh"
) -> nn.Module:
    """The student before its first step, on the server's device.

    It starts from the server's initial weights if there are any. Otherwise ``start_from`` decides.
    A large net on CUDA has its channels last in memory, or cuDNN would convert them at every step.

    Args:
        plan: what the student is.
        uploads: of the clients.
        server: seed, device, initial weights, and the model of the last round.
        start_from: "average" of the clients of its kind by examples; their "uniform" average; or
            "fresh", which in later rounds means the model of the last round.
    """
    student = plan.fresh(server.seed)
    if (initial := initial_weights(plan, server)) is not None:
        student.load_state_dict(dict(initial.state))
    elif start_from != "fresh" and (alike := same_kind(uploads, plan)):
        weights = torch.ones(len(alike)) if start_from == "uniform" else None
        student.load_state_dict(dict(average_classifiers(alike, weights).state))
    elif (last := server.memory.get("model")) is not None and fits(last, plan):
        student.load_state_dict(dict(last.state))
    large = prefers_streams(student, plan.preprocess.input_shape, torch.device(server.device))
    layout = torch.channels_last if large else torch.preserve_format
    student.to(server.device).to(memory_format=layout)  # type: ignore[call-overload]
    return student


@torch.no_grad()
def follow(mean: Mapping[str, Tensor], net: nn.Module, decay: float, steps: int) -> None:
    """Update a running mean of a net's weights in place: mean <- d mean + (1 - d) weights.

    d = min(decay, steps / (steps + 10)): the first steps lose their weight soon, so that a short
    run does not end where it began. Integers such as counters are copied.

    Args:
        mean: by name, all tensors of the net.
        net: after its last step.
        decay: the largest d.
        steps: how many steps the net has taken.
    """
    weights = net.state_dict()
    moving = [name for name, tensor in mean.items() if tensor.is_floating_point()]
    update = get_ema_multi_avg_fn(min(decay, steps / (steps + 10)))
    update([mean[name] for name in moving], [weights[name] for name in moving], steps)
    for name in mean.keys() - set(moving):
        mean[name].copy_(weights[name])


@contextmanager
def frozen(student: nn.Module) -> Iterator[None]:
    """Keep a student in eval mode and without gradients within a ``with`` block.

    Images are made against a frozen student. It returns to train mode afterwards.
    """
    student.eval().requires_grad_(False)
    try:
        yield
    finally:
        student.train().requires_grad_(True)
