"""For people who add a method: tiny worlds, and the contract that every method keeps.

from attar.testing import check_method
check_method(MyMethod(epochs=2, batch_size=8))        # in your test; raises AssertionError with what is broken
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attar.bundle import encode
from attar.core import AnyMethod, Deployable, Images, Metrics, ModelSpec, Part, Phase, Preprocess, Server, Upload
from attar.errors import NeedsError
from attar.fusion import fuse, server_for
from attar.local.clients import ClientData
from attar.local.statistics import with_statistics
from attar.models import Classifier
from attar.needs import unmet
from attar.seeds import derive, generator

CLASSES = ("ring", "cross", "bar")
SHAPE = (1, 16, 16)
SMALL_NETS = ("mlp:hidden=8,layers=1", "lenet5", "resnet20")
SMALL_VITS = (
    "vit:patch=8,width=12,depth=1,hidden=16",
    "vit:patch=8,width=12,depth=1,hidden=16,distillation=head",
    "vit:patch=8,width=24,depth=2,hidden=16",
)
GREY = Preprocess((1, 14, 14), (0.3,), (0.4,))
COLOUR = Preprocess((3, 16, 16), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SMALL_DECODERS = (
    "cvae-small-decoder:hidden=8",
    "cvae-small-decoder:form=emnist,hidden=8,latent=3",
    "cvae-small-decoder:hidden=8",
)


@dataclass(frozen=True)
class World:
    """A federation small enough for a test: uploads of untrained nets and a server with a few images."""

    uploads: tuple[Upload, ...]
    server: Server


def tiny_upload(
    client: str,
    arch: str = SMALL_NETS[0],
    classes: Sequence[str] = CLASSES,
    *,
    counts: bool = True,
    preprocess: Preprocess | None = None,
) -> Upload:
    """An upload of an untrained net, different for each client's name."""
    return _upload(client, "classifier", arch, classes, preprocess or Preprocess.centred(SHAPE), counts)


def tiny_decoder(
    client: str,
    arch: str = SMALL_DECODERS[0],
    classes: Sequence[str] = CLASSES,
    *,
    counts: bool = True,
    preprocess: Preprocess | None = None,
) -> Upload:
    """The same of an untrained decoder."""
    return _upload(client, "decoder", arch, classes, preprocess or Preprocess.plain(SHAPE), counts)


def tiny_statistics(upload: Upload) -> Upload:
    """The same upload with statistics of its classifier's features on a few random images."""
    part, draws = upload.parts["classifier"], generator(0, "statistics", upload.client)
    pixels = torch.randint(0, 256, (40, *part.preprocess.input_shape), dtype=torch.uint8, generator=draws)
    labels = torch.arange(len(pixels)) % len(part.classes)
    return with_statistics(upload, ClientData(upload.client, pixels, labels, part.classes))


def _upload(client: str, role: str, arch: str, classes: Sequence[str], preprocess: Preprocess, counts: bool) -> Upload:
    spec = ModelSpec.parse(arch)
    net = spec.build(preprocess.input_shape, len(classes), derive(0, "tiny", client))
    draws = generator(0, "tiny", client)
    label_counts = tuple(int(n) for n in torch.randint(1, 9, (len(classes),), generator=draws))
    part = Part(spec, net.state_dict(), tuple(classes), preprocess)
    return Upload(client, {role: part}, sum(label_counts), label_counts if counts else None, local_steps=3)


def tiny_world(
    nets: Sequence[str] = SMALL_NETS[:1] * 3,
    *,
    classes: Sequence[Sequence[str]] | None = None,
    preprocess: Sequence[Preprocess | None] | None = None,
    seed: int = 0,
) -> World:
    """One client per entry of ``nets``, a classifier or a decoder; ``classes`` and ``preprocess`` give each its own."""
    lists, looks = classes or [CLASSES] * len(nets), preprocess or [None] * len(nets)
    uploads = tuple(
        (tiny_decoder if ModelSpec.parse(net).kind == "decoder" else tiny_upload)(f"client{k}", net, own, preprocess=look)
        for k, (net, own, look) in enumerate(zip(nets, lists, looks, strict=True))
    )
    pixels = torch.randint(0, 256, (24, *SHAPE), dtype=torch.uint8, generator=generator(seed, "public"))
    return World(uploads, server_for(uploads, public=Images(pixels, None, "noise"), seed=seed))


def equipped(world: World, method: AnyMethod) -> World:
    """The world, whose server has what the method needs beside uploads: the model that clients started from, labels."""
    server, part = world.server, next(iter(world.uploads[0].parts.values()))
    if method.needs.initial:
        fresh = part.spec.build(part.preprocess.input_shape, len(part.classes), derive(0, "start")).state_dict()
        server = replace(server, initial=replace(part, state=fresh))
    if method.needs.public_labels and server.public is not None:
        labels = torch.arange(len(server.public.pixels)) % len(server.task.classes)
        server = replace(server, public=replace(server.public, labels=labels))
    return replace(world, server=server)


def check_method(method: AnyMethod) -> None:
    """Assert the contract. Give settings that make the method quick: a few steps, small batches."""
    _check_shape(method)
    world = equipped(tiny_world(_nets(method, 3)), method)
    straight = _check_leaves_no_trace(method, world)
    _check_repeats(method, world, straight)
    _check_resumes(method, world, straight)
    _check_federations(method)
    _check_refusals(method)


def _nets(method: AnyMethod, number: int, *, mixed: bool = False) -> list[str]:
    """Nets of a federation that the method can fuse: ``number`` classifiers or decoders, or a few of both."""
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
    frozen = is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen  # noqa: B009
    assert frozen, "a method is a frozen dataclass: its fields are the record of the run"
    without = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    assert not without, f"fields without a default (the paper's value): {', '.join(without)}"


def _check_leaves_no_trace(method: AnyMethod, world: World) -> list[bytes]:
    """A run that is left alone changes nothing but its own models: their bits."""
    before = [encode(upload) for upload in world.uploads]
    torch.manual_seed(7)
    drawn = torch.get_rng_state()
    result = fuse(world.uploads, method, world.server).result
    assert torch.equal(torch.get_rng_state(), drawn), "global random state was touched"
    assert [encode(upload) for upload in world.uploads] == before, "an upload was changed"
    for name, model in result.models.items():
        _check_model(name, model, world.server)
    return _bits(result.models)


def _check_model(name: str, model: Deployable, server: Server) -> None:
    logits = Classifier(model)(torch.rand(2, *server.task.input_shape, generator=generator(0, "probe")))
    assert logits.shape == (2, len(server.task.classes)), f"model {name} gives logits of shape {tuple(logits.shape)}"
    assert model.classes == server.task.classes, f"model {name} has other classes than the task"
    assert bool(torch.isfinite(logits).all()), f"model {name} gives NaN or infinite logits"


def _check_repeats(method: AnyMethod, world: World, straight: list[bytes]) -> None:
    again = fuse(world.uploads, method, world.server).result.models
    assert _bits(again) == straight, "the same seed gave other bits"


def _check_resumes(method: AnyMethod, world: World, straight: list[bytes]) -> None:
    """Killed after any number of steps and resumed, a run ends in the same bits as one that was left alone."""
    context = method.prepare(world.uploads, world.server)
    steps = sum(phase.steps for phase in method.phases(context))
    for after in sorted({1, steps // 2, steps - 1} & set(range(1, steps))):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            try:
                fuse(world.uploads, _mortal(method, after), world.server, out=out, checkpoint_seconds=0)
            except _Killed:
                resumed = fuse(world.uploads, _mortal(method, None), world.server, out=out, resume=True)
            else:
                raise AssertionError(f"the run took fewer than {after + 1} steps, its phases announce {steps}")
            assert _bits(resumed.result.models) == straight, f"killed after {after} of {steps} steps, resumed to other bits"


class _Killed(Exception):
    pass


def _mortal(method: AnyMethod, steps: int | None) -> AnyMethod:
    """The same method, whose run is killed in the step after ``steps`` steps have been saved; None: it lives."""
    kind: Any = type(method)
    taken = 0

    def counted(step: Callable[[Any], Metrics]) -> Callable[[Any], Metrics]:
        def take(state: Any) -> Metrics:
            nonlocal taken
            metrics = step(state)
            taken += 1
            if steps is not None and taken > steps:
                raise _Killed
            return metrics

        return take

    class Mortal(kind):  # type: ignore[misc]
        def phases(self, context: Any) -> list[Phase]:
            return [replace(phase, step=counted(phase.step)) for phase in super().phases(context)]

    mortal: AnyMethod = Mortal(**{field.name: getattr(method, field.name) for field in fields(kind)})
    return mortal


def _check_federations(method: AnyMethod) -> None:
    """One client; mixed architectures, grey and colour, different class lists where the method says that it takes them."""
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
        fused = fuse(world.uploads, method, world.server)
        for name, model in fused.result.models.items():
            _check_model(name, model, world.server)


def _check_refusals(method: AnyMethod) -> None:
    """What a method says it needs is asked for before anything runs, all reasons at once."""
    needs = method.needs
    world = tiny_world(_pair(method, mixed=True), classes=[CLASSES[:2], CLASSES[1:]])
    uploads = tuple(replace(upload, label_counts=None) for upload in world.uploads)
    server = replace(world.server, public=None)
    counted = needs.label_counts or bool(needs.label_counts_with)
    expected = sum([needs.same_architecture, counted, needs.public_data, needs.initial, not needs.different_classes])
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
    parts = [part for model in models.values() for part in ((model,) if isinstance(model, Part) else model.members)]
    return [_raw(tensor) for part in parts for tensor in part.state.values()]


def _raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
