"""The contract finds what is broken, and says it in words: one method that keeps it, and many
that break one rule each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from attar.blocks.student import server_plan
from attar.core import Needs, Phase, Result, State
from attar.testing import check_method, tiny_world, without_extras


@dataclass
class Taught(State):
    student: nn.Module
    optimiser: Optimizer
    seen: set[int] | None = None


@dataclass(frozen=True)
class Plain:
    """Teach a student something from random images."""

    paper: ClassVar[str] = "nobody, never"
    cost: ClassVar[str] = "nothing to speak of"

    steps: int = 3

    @property
    def needs(self) -> Needs:
        return Needs()

    def prepare(self, uploads, server):
        return uploads, server

    def start(self, context):
        student = server_plan(context[1]).fresh(0)
        return Taught(student, SGD(student.parameters(), lr=0.1))

    def learn(self, context, state):
        loss = (
            server_plan(context[1])
            .logits(state.student, torch.rand(4, *context[1].task.input_shape))
            .square()
            .mean()
        )
        state.optimiser.zero_grad()
        loss.backward()
        state.optimiser.step()
        return {"loss": loss.detach()}

    def phases(self, context):
        return [Phase("learn", self.steps, lambda state: self.learn(context, state))]

    def result(self, context, state):
        return Result({"student": server_plan(context[1]).part(state.student)})


def broken(**changes):
    """The method with some of its class replaced."""

    class Broken(Plain):
        """Breaks a rule."""

    for name, value in changes.items():
        setattr(Broken, name, value)
    return Broken()


def metrics(told):
    """``learn``, whose metrics are replaced by what ``told`` makes of the context."""

    def learn(self, context, state):
        Plain.learn(self, context, state)
        return told(context)

    return learn


def counted():
    """Phases that scale their work with how often they were called, which no State knows."""

    def phases(self, context):
        calls = []

        def step(state):
            calls.append(1)
            for parameter in state.student.parameters():
                parameter.data.mul_(1 + 0.1 * len(calls))
            return {}

        return [Phase("learn", 3, step)]

    return phases


def share_of(context):
    return {"share": sum(sum(upload.label_counts) for upload in context[0])}


BROKEN: Mapping[str, tuple[dict[str, Any], str]] = {
    "no paper": ({"paper": None}, "class variable `paper` is missing"),
    "no cost": ({"cost": ""}, "class variable `cost` is missing"),
    "no docstring": ({"__doc__": None}, "no docstring"),
    "needs of another kind": ({"needs": {"classifier": 1}}, "its `needs` is .*, not Needs"),
    "unknown capability": (
        {"needs": Needs(capabilities=("attention",))},
        "needs a net with 'attention', which attar does not know: it knows features, tokens, "
        "batchnorm",
    ),
    "unknown part": (
        {"needs": Needs(parts=("prototype",))},
        "not to be had in a tiny world: clients .* must send a prototype",
    ),
    "images unasked for": (
        {"learn": metrics(lambda context: {"images": len(context[1].public.pixels)})},
        "images at the server, which its `needs` does not ask for, it fails with AttributeError",
    ),
    "counts unasked for": (
        {"learn": metrics(share_of)},
        "without label counts and .* fails with TypeError",
    ),
    "step returns None": (
        {"learn": metrics(lambda _: None)},
        "A step of phase 'learn' returned None in place of its metrics(.|\n)*"
        "a mapping of names to numbers",
    ),
    "metric of a batch": (
        {"learn": metrics(lambda _: {"loss": torch.zeros(4, 2)})},
        r"Metrics of phase 'learn' that are no single number:(.|\n)*"
        r"loss is a tensor of shape \(4, 2\)",
    ),
    "metric in words": (
        {"learn": metrics(lambda _: {"loss": "low"})},
        "Metrics of phase 'learn' that are no single number:(.|\n)*loss is a str",
    ),
    "prints": (
        {"learn": metrics(lambda _: print("step") or {})},  # noqa: T201
        r"it prints \('step'\), which spoils `attar fuse --json`",
    ),
    "one phase": (
        {"phases": lambda self, _: Phase("learn", 3, dict)},
        "`phases` returns a Phase: a list",
    ),
    "half steps": (
        {"phases": lambda self, _: [Phase("learn", 1.5, dict)]},
        "a whole number of steps(.|\n)*learn: 1.5 steps",
    ),
    "steps below 0": (
        {"phases": lambda self, _: [Phase("learn", -3, dict)]},
        "a whole number of steps(.|\n)*learn: -3 steps",
    ),
    "no State": ({"start": lambda self, _: {}}, "`start` returns a dict, which is no State"),
    "State with a set": (
        {"start": lambda self, context: replace(Plain.start(self, context), seen={1})},
        "the State cannot be saved: a State cannot hold a set",
    ),
    "no Result": (
        {"result": lambda self, context, state: {"student": state.student}},
        "`result` returns a dict",
    ),
    "no model": ({"result": lambda self, context, state: Result({})}, "the Result has no model"),
    "a module": (
        {"result": lambda self, context, state: Result({"student": state.student})},
        "model 'student' of the Result is a .*: a Part is expected",
    ),
    "counts in a closure": (
        {"phases": counted()},
        "resumed to other bits: something that changes lies outside the State",
    ),
    "global draws": (
        {"prepare": lambda self, uploads, server: (uploads, server, torch.rand(3))},
        "global random state",
    ),
}


def test_check_method_passes():
    check_method(Plain())


@pytest.mark.parametrize(("changes", "said"), BROKEN.values(), ids=BROKEN)
def test_check_method_says_what_is_broken(changes, said):
    with pytest.raises(AssertionError, match=said):
        check_method(broken(**changes))


def test_check_method_refuses_mutable_class():
    @dataclass
    class Mutable:
        """Steps."""

        steps: int = 3

    with pytest.raises(
        AssertionError, match=r"it has no method `prepare`.*it is no frozen dataclass"
    ):
        check_method(Mutable())  # type: ignore[arg-type]


@dataclass(frozen=True)
class Odd(Plain):
    """A method with fields that no text becomes."""

    widths: list[int] = field(default_factory=lambda: [8])
    act: object = None
    sizes: tuple[int, ...] = (1, 2)


def test_check_method_names_fields_without_text():
    with pytest.raises(AssertionError) as caught:
        check_method(Odd())
    text = str(caught.value)
    assert "widths: text cannot become its type list[int]" in text
    assert "tuple[T, ...] in place of a list" in text
    assert "act: text cannot become its type object" in text
    assert "sizes" not in text


def test_without_extras_keeps_needs():
    world = tiny_world()

    class Asking(Plain):
        needs = Needs(label_counts=True, public_data=True)  # type: ignore[assignment]

    assert without_extras(world, Asking()) == (world, [])
    poorer, taken = without_extras(world, Plain())
    assert taken == ["label counts", "images at the server"]
    assert poorer.server.public is None
    assert [upload.label_counts for upload in poorer.uploads] == [None] * 3
    assert [upload.label_counts is None for upload in world.uploads] == [False] * 3


def test_without_extras_keeps_counts_of_a_part():
    world = tiny_world(("lenet5", "cvae-small-decoder:hidden=8"))

    class Asking(Plain):
        needs = Needs(  # type: ignore[assignment]
            parts=("classifier", "decoder"), label_counts_with=("decoder",)
        )

    poorer, _ = without_extras(world, Asking())
    assert [upload.label_counts is None for upload in poorer.uploads] == [True, False]
