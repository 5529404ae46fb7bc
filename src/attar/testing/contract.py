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
from attar.fusion import fuse
from attar.internal.plugins import in_a_line
from attar.methods import class_problems
from attar.methods.needs import unmet
from attar.models import Classifier
from attar.running import Moment, check_steps, numbers_of, save_state
from attar.seeds import generator
from attar.settings import can_be_set, explain_type, settings_of
from attar.testing.worlds import (
    CLASSES,
    COLOUR,
    GREY,
    SMALL_DECODERS,
    SMALL_NETS,
    SMALL_VITS,
    World,
    bare,
    equipped,
    tiny_world,
)
from attar.uploads import encode


def check_method(method: AnyMethod) -> None:
    """Assert the contract. Give settings that make the method quick: a few steps, small batches."""
    _check_shape(method)
    world = equipped(tiny_world(_nets(method, 3)), method)
    reasons = unmet(method.needs, world.uploads, world.server)
    assert not reasons, f"what it needs is not to be had in a tiny world: {'; '.join(reasons)}"
    straight = _check_leaves_no_trace(method, world)
    _check_repeats(method, world, straight)
    _check_resumes(method, world, straight)
    _check_bare(method, world)
    _check_federations(method)
    _check_refusals(method)


def _nets(method: AnyMethod, number: int, *, mixed: bool = False) -> list[str]:
    """Nets of a federation that the method can fuse: ``number`` classifiers or decoders, or a
    few of both.
    """
    parts, known = set(method.needs.parts), SMALL_VITS if method.needs.same_patches else SMALL_NETS
    strong = known[:number] if mixed else known[:1] * number
    weak = SMALL_DECODERS[:number] if mixed else SMALL_DECODERS[:1] * number
    if not parts & {"decoder"}:
        return [*strong]
    return [*strong[: max(1, number - 1)], *weak] if "classifier" in parts else [*weak]


def _pair(method: AnyMethod, *, mixed: bool = False) -> list[str]:
    """Two nets of two clients; one of each kind where the method needs both."""
    both = set(method.needs.parts) >= {"classifier", "decoder"}
    return _nets(method, 1) if both else _nets(method, 2, mixed=mixed)


def _check_shape(method: AnyMethod) -> None:
    kind: Any = type(method)
    problems = class_problems(kind)
    assert not problems, f"{kind.__name__} cannot be listed and run: {'; '.join(problems)}"
    odd = [
        explain_type(setting.name, setting.type)
        for setting in settings_of(kind).values()
        if not can_be_set(setting.type)
    ]
    assert not odd, f"fields that --set and a record cannot hold: {'; '.join(odd)}"


def _run(method: AnyMethod, world: World, **how: Any) -> Result:
    """A run as the command line makes it: somebody watches, and standard output is for others."""
    said, told = io.StringIO(), list[Moment]()
    with redirect_stdout(said):
        result = fuse(
            world.uploads, _observed(method), world.server, watch=told.append, **how
        ).result
    line = said.getvalue().strip().partition("\n")[0]
    assert not said.getvalue(), (
        f"it prints ({line!r}), which spoils `attar fuse --json`: report metrics, or remarks in the Result"
    )
    return result


def _check_leaves_no_trace(method: AnyMethod, world: World) -> list[bytes]:
    """A run that is left alone changes nothing but its own models: their bits."""
    before = [encode(upload) for upload in world.uploads]
    torch.manual_seed(7)
    drawn = torch.get_rng_state()
    result = _run(method, world)
    assert torch.equal(torch.get_rng_state(), drawn), "global random state was touched"
    assert [encode(upload) for upload in world.uploads] == before, "an upload was changed"
    _check_models(result, world)
    return _bits(result.models)


def _check_models(result: Result, world: World) -> None:
    for name, model in result.models.items():
        _check_model(name, model, world.server)


def _check_model(name: str, model: Deployable, server: Server) -> None:
    logits = Classifier(model)(
        torch.rand(2, *server.task.input_shape, generator=generator(0, "probe"))
    )
    assert logits.shape == (2, len(server.task.classes)), (
        f"model {name} gives logits of shape {tuple(logits.shape)}"
    )
    assert model.classes == server.task.classes, f"model {name} has other classes than the task"
    assert bool(torch.isfinite(logits).all()), f"model {name} gives NaN or infinite logits"


def _check_repeats(method: AnyMethod, world: World, straight: list[bytes]) -> None:
    assert _bits(_run(method, world).models) == straight, "the same seed gave other bits"


def _check_resumes(method: AnyMethod, world: World, straight: list[bytes]) -> None:
    """Killed after any number of steps and resumed, a run ends in the same bits as one that was
    left alone.
    """
    context = method.prepare(world.uploads, world.server)
    _check_can_be_saved(method.start(context))
    steps = sum(phase.steps for phase in method.phases(context))
    for after in sorted({1, steps // 2, steps - 1} & set(range(1, steps))):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            try:
                _run(_observed(method, after), world, out=out, checkpoint_seconds=0)
            except _Killed:
                resumed = _run(_observed(method), world, out=out, resume=True)
            else:
                raise AssertionError(
                    f"the run took fewer than {after + 1} steps, its phases announce {steps}"
                )
            assert _bits(resumed.models) == straight, (
                f"killed after {after} of {steps} steps, resumed to other bits: something that changes lies outside the State "
                "(in a closure, in the context, in self), or does not come back from it"
            )


def _check_can_be_saved(state: State) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_state(Path(folder) / "state", state, {})
        except TypeError as error:
            raise AssertionError(f"the State cannot be saved: {error}") from error


class _Killed(Exception):
    pass


def _observed(method: AnyMethod, lives: int | None = None) -> AnyMethod:
    """The same method, with an eye on what it hands over. Its run is killed in the step after
    ``lives`` steps; None: it goes on.
    """
    kind: Any = type(method)
    taken = 0

    def counted(phase: Phase) -> Callable[[Any], Metrics]:
        def take(state: Any) -> Metrics:
            nonlocal taken
            metrics = phase.step(state)
            with _as_assertion():
                numbers_of(phase, metrics)
            taken += 1
            if lives is not None and taken > lives:
                raise _Killed
            return metrics

        return take

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
            return [replace(phase, step=counted(phase)) for phase in phases]

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
        f"`phases` returns a {type(phases).__name__}: a list of Phase is expected, [Phase(...)] where there is one"
    )
    with _as_assertion():
        check_steps(phases)  # type: ignore[arg-type]


@contextmanager
def _as_assertion() -> Iterator[None]:
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
            f"model {name!r} of the Result is a {type(model).__name__}: a Part is expected (StudentPlan.part makes one) or a Mixture"
        )


def _check_federations(method: AnyMethod) -> None:
    """One client; mixed architectures, grey and colour, different class lists where the method
    says that it takes them.

    All of them a second time without what the method does not ask for.
    """
    worlds = [tiny_world(_nets(method, 1))]
    if not method.needs.same_architecture:
        worlds.append(tiny_world(_nets(method, 3, mixed=True)))
        looks = _pair(method)
        if method.needs.same_patches:  # 2 x 2 of them in 14 and in 16 pixels
            looks[0] = looks[0].replace("patch=8", "patch=7")
        worlds.append(tiny_world(looks, preprocess=[GREY, COLOUR]))
    if method.needs.different_classes:
        worlds.append(tiny_world(_pair(method), classes=[CLASSES[:2], CLASSES[1:]]))
    for world in (equipped(world, method) for world in worlds):
        _check_models(_run(method, world), world)
        _check_bare(method, world)


def _check_bare(method: AnyMethod, world: World) -> None:
    poorer, taken = bare(world, method)
    if not taken:
        return
    try:
        result = _run(method, poorer)
    except Exception as error:  # whatever the method's code raises where it finds nothing
        raise AssertionError(
            f"without {' and '.join(taken)}, which its `needs` does not ask for, it fails with {in_a_line(error)}. "
            "Ask for it, or do without."
        ) from error
    _check_models(result, poorer)


def _check_refusals(method: AnyMethod) -> None:
    """What a method says it needs is asked for before anything runs, all reasons at once."""
    needs = method.needs
    world = tiny_world(_pair(method, mixed=True), classes=[CLASSES[:2], CLASSES[1:]])
    uploads = tuple(replace(upload, label_counts=None) for upload in world.uploads)
    server = replace(world.server, public=None)
    counted = needs.label_counts or bool(needs.label_counts_with)
    expected = sum(
        [
            needs.same_architecture,
            counted,
            needs.public_data,
            needs.initial,
            not needs.different_classes,
        ]
    )
    reasons = unmet(needs, uploads, server)
    assert len(reasons) >= expected, f"only {reasons} for {expected} broken needs"
    if not expected:
        return
    told: Sequence[str] = ()
    try:
        fuse(uploads, method, server)
    except NeedsError as error:
        told = error.problems
    assert list(told) == reasons, f"an error with every reason is expected, got {told}"


def _bits(models: Mapping[str, Deployable]) -> list[bytes]:
    parts = [
        part
        for model in models.values()
        for part in ((model,) if isinstance(model, Part) else model.members)
    ]
    return [_raw(tensor) for part in parts for tensor in part.state.values()]


def _raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
