"""The contract that every method keeps."""

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attar.core import AnyMethod, Deployable, Metrics, Mixture, Part, Phase, Result, Server, State
from attar.errors import AttarError, NeedsError
from attar.fusion import fuse, start_method
from attar.internal.plugins import in_a_line
from attar.methods import class_problems, unmet_needs
from attar.models import Classifier
from attar.running import ProgressReport, RunOptions, as_numbers, check_steps, save_state
from attar.seeds import rng
from attar.settings import can_be_set, explain_type, settings_of
from attar.testing.toy_federations import (
    CLASSES,
    COLOUR,
    GREY,
    SMALL_DECODERS,
    SMALL_NETS,
    SMALL_SUMS,
    SMALL_VITS,
    World,
    tiny_world,
    with_needs,
    without_extras,
)
from attar.uploads import encode


def check_method(method: AnyMethod) -> None:
    """Assert the contract of a method: it can be listed and run, repeats to the same bits, resumes
    to the same bits, leaves no trace, and asks for what it needs.

    Args:
        method: With settings that make it quick: a few steps, small batches.

    Raises:
        AssertionError: With what is broken, in words.
    """
    _check_declaration(method)
    world = with_needs(tiny_world(_choose_nets(method, 3)), method)
    reasons = unmet_needs(method.needs, world.uploads, world.server)
    assert not reasons, f"what it needs is not to be had in a tiny world: {'; '.join(reasons)}"
    expected = _check_leaves_no_trace(method, world)
    check_repeats(method, world, expected)
    check_resumes(method, world, expected)
    _check_without_extras(method, world)
    _check_federations(method)
    _check_refusals(method)


def check_repeats(method: AnyMethod, world: World, expected: list[bytes]) -> None:
    """Assert that a run gives these bits; ``model_bits`` makes them."""
    assert model_bits(_run(method, world).models) == expected, "the same seed gave other bits"


def check_resumes(method: AnyMethod, world: World, expected: list[bytes]) -> None:
    """Assert that a run that is killed after any number of steps and resumed ends in these bits."""
    run = start_method(method, world.uploads, world.server)
    _check_can_be_saved(run.state)
    steps = sum(phase.steps for phase in run.phases)
    for after in sorted({1, steps // 2, steps - 1} & set(range(1, steps))):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            try:
                _run(_observe(method, after), world, out=out, checkpoint_seconds=0)
            except _KilledError:
                resumed = _run(method, world, out=out, resume=True)
            else:
                raise AssertionError(
                    f"the run took fewer than {after + 1} steps, its phases announce {steps}"
                )
            assert model_bits(resumed.models) == expected, (
                f"killed after {after} of {steps} steps, resumed to other bits: something that "
                "changes lies outside the State (in a closure, in the context, in self), or does "
                "not come back from it"
            )


def model_bits(models: Mapping[str, Deployable]) -> list[bytes]:
    """The bits of all weights of a result's models."""
    parts = [
        part
        for model in models.values()
        for part in ((model,) if isinstance(model, Part) else model.members)
    ]
    return [_raw(tensor) for part in parts for tensor in part.state.values()]


def _raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _choose_nets(method: AnyMethod, number: int, *, mixed: bool = False) -> list[str]:
    """Nets of a federation that the method can fuse: ``number`` classifiers or decoders, or a
    few of both.
    """
    parts = set(method.needs.parts)
    if "sums" in parts:
        return _choose_sums(method, number, mixed=mixed)
    known = SMALL_VITS if method.needs.same_patches else SMALL_NETS
    classifiers = known[:number] if mixed else known[:1] * number
    decoders = SMALL_DECODERS[:number] if mixed else SMALL_DECODERS[:1] * number
    if "decoder" not in parts:
        return [*classifiers]
    if "classifier" in parts:
        return [*classifiers[: max(1, number - 1)], *decoders]
    return [*decoders]


def _choose_sums(method: AnyMethod, number: int, *, mixed: bool) -> list[str]:
    """Sums of one backbone; mixed: of two, some with squares by class, and a classifier."""
    plain, by_class, other = SMALL_SUMS
    if method.needs.squares_by_class:
        plain = other = by_class
    if not mixed:
        return [plain] * number
    last = SMALL_NETS[1] if "classifier" in method.needs.parts else other
    return [*[plain, by_class, other][: number - 1], last]


def _choose_pair(method: AnyMethod, *, mixed: bool = False) -> list[str]:
    """Two nets of two clients; one of each kind where the method needs both."""
    both = set(method.needs.parts) >= {"classifier", "decoder"}
    return _choose_nets(method, 1) if both else _choose_nets(method, 2, mixed=mixed)


def _check_declaration(method: AnyMethod) -> None:
    """Assert that the class can be listed, and that its settings can be set and recorded."""
    kind: Any = type(method)
    problems = class_problems(kind)
    assert not problems, f"{kind.__name__} cannot be listed and run: {'; '.join(problems)}"
    odd = [
        explain_type(setting.name, setting.type)
        for setting in settings_of(kind).values()
        if not can_be_set(setting.type)
    ]
    assert not odd, f"fields that --set and a record cannot hold: {'; '.join(odd)}"


def _run(method: AnyMethod, world: World, **options: Any) -> Result:
    """Run a method as the command line does: with somebody watching, and nothing printed."""
    printed = io.StringIO()
    moments: list[ProgressReport] = []
    with redirect_stdout(printed):
        fused = fuse(
            world.uploads,
            _observe(method),
            world.server,
            options=RunOptions(watch=moments.append, **options),
        )
    line = printed.getvalue().strip().partition("\n")[0]
    assert not printed.getvalue(), (
        f"it prints ({line!r}), which spoils `attar fuse --json`: report metrics, or remarks in "
        "the Result"
    )
    return fused.result


def _check_leaves_no_trace(method: AnyMethod, world: World) -> list[bytes]:
    """Assert that a run changes nothing but its own models, and return their bits."""
    before = [encode(upload) for upload in world.uploads]
    torch.manual_seed(7)
    random_state = torch.get_rng_state()
    result = _run(method, world)
    assert torch.equal(torch.get_rng_state(), random_state), "global random state was touched"
    assert [encode(upload) for upload in world.uploads] == before, "an upload was changed"
    _check_models(result, world)
    return model_bits(result.models)


def _check_models(result: Result, world: World) -> None:
    for name, model in result.models.items():
        _check_model(name, model, world.server)


def _check_model(name: str, model: Deployable, server: Server) -> None:
    """Assert that a model gives finite logits for the task's classes."""
    logits = Classifier(model)(torch.rand(2, *server.task.input_shape, generator=rng(0, "probe")))
    assert logits.shape == (2, len(server.task.classes)), (
        f"model {name} gives logits of shape {tuple(logits.shape)}"
    )
    assert model.classes == server.task.classes, f"model {name} has other classes than the task"
    assert bool(torch.isfinite(logits).all()), f"model {name} gives NaN or infinite logits"


def _check_can_be_saved(state: State) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_state(Path(folder) / "state", state, {})
        except TypeError as error:
            raise AssertionError(f"the State cannot be saved: {error}") from error


class _KilledError(Exception):
    """Ends a run in the middle of a step, as a kill would."""


def _observe(method: AnyMethod, kill_after: int | None = None) -> AnyMethod:
    """The same method, but what it hands over is checked.

    Args:
        method: With its settings.
        kill_after: Its run is killed in the step after so many; None: it is not.
    """
    kind: Any = type(method)
    steps_taken = 0

    def observe_step(phase: Phase) -> Callable[[Any], Metrics]:
        def step(state: Any) -> Metrics:
            nonlocal steps_taken
            metrics = phase.step(state)
            with _errors_as_assertions():
                as_numbers(phase, metrics)
            steps_taken += 1
            if kill_after is not None and steps_taken > kill_after:
                raise _KilledError
            return metrics

        return step

    class Observed(kind):  # type: ignore[misc]
        def start(self, context: Any) -> Any:
            state = super().start(context)
            assert isinstance(state, State), (
                f"`start` returns a {type(state).__name__}, which is no State: class ...(State)"
            )
            return state

        def phases(self, context: Any) -> list[Phase]:
            phases = super().phases(context)
            _check_phases(phases)
            return [replace(phase, step=observe_step(phase)) for phase in phases]

        def result(self, context: Any, state: Any) -> Any:
            result = super().result(context, state)
            _check_result(result)
            return result

    observed: AnyMethod = Observed(
        **{field.name: getattr(method, field.name) for field in fields(kind) if field.init}
    )
    return observed


def _check_phases(phases: object) -> None:
    listed = isinstance(phases, list | tuple) and all(isinstance(phase, Phase) for phase in phases)
    assert listed, (
        f"`phases` returns a {type(phases).__name__}: a list of Phase is expected, [Phase(...)] "
        "where there is one"
    )
    with _errors_as_assertions():
        check_steps(phases)  # type: ignore[arg-type]


@contextmanager
def _errors_as_assertions() -> Iterator[None]:
    """What a run refuses is a broken contract."""
    try:
        yield
    except AttarError as error:
        raise AssertionError(str(error)) from error


def _check_result(result: object) -> None:
    assert isinstance(result, Result), (
        f"`result` returns a {type(result).__name__}: Result({{'student': ...}}) is expected"
    )
    assert result.models, "the Result has no model"
    for name, model in result.models.items():
        assert isinstance(model, Part | Mixture), (
            f"model {name!r} of the Result is a {type(model).__name__}: a Part is expected "
            "(StudentPlan.part makes one) or a Mixture"
        )


def _check_federations(method: AnyMethod) -> None:
    """Assert that the method fuses one client, and, where it says so, mixed architectures, grey
    and colour, and different class lists; all of them also without what it does not ask for.
    """
    worlds = [tiny_world(_choose_nets(method, 1))]
    if not method.needs.same_architecture:
        worlds.append(tiny_world(_choose_nets(method, 3, mixed=True)))
        nets = _choose_pair(method)
        if method.needs.same_patches:  # 2 x 2 of them in 14 and in 16 pixels
            nets[0] = nets[0].replace("patch=8", "patch=7")
        worlds.append(tiny_world(nets, preprocess=[GREY, COLOUR]))
    if method.needs.different_classes:
        worlds.append(tiny_world(_choose_pair(method), classes=[CLASSES[:2], CLASSES[1:]]))
    for world in (with_needs(world, method) for world in worlds):
        _check_models(_run(method, world), world)
        _check_without_extras(method, world)


def _check_without_extras(method: AnyMethod, world: World) -> None:
    """Assert that the method does without what it does not ask for."""
    poorer, removed = without_extras(world, method)
    if not removed:
        return
    try:
        result = _run(method, poorer)
    except Exception as error:  # whatever the method's code raises where it finds nothing
        raise AssertionError(
            f"without {' and '.join(removed)}, which its `needs` does not ask for, it fails with "
            f"{in_a_line(error)}. Ask for it, or do without."
        ) from error
    _check_models(result, poorer)


def _check_refusals(method: AnyMethod) -> None:
    """Assert that what a method needs is asked for before anything runs, all reasons at once."""
    needs = method.needs
    world = tiny_world(_choose_pair(method, mixed=True), classes=[CLASSES[:2], CLASSES[1:]])
    uploads = tuple(replace(upload, label_counts=None) for upload in world.uploads)
    server = replace(world.server, public=None)
    broken = [
        needs.same_architecture,
        needs.label_counts or bool(needs.label_counts_with),
        needs.public_data,
        needs.initial,
        not needs.different_classes,
    ]
    expected = sum(broken)
    reasons = unmet_needs(needs, uploads, server)
    assert len(reasons) >= expected, f"only {reasons} for {expected} broken needs"
    if not expected:
        return
    problems: Sequence[str] = ()
    try:
        fuse(uploads, method, server)
    except NeedsError as error:
        problems = error.problems
    assert list(problems) == reasons, f"an error with every reason is expected, got {problems}"
