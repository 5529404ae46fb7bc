"""How fast the real code paths are on this machine: what ``attar speed`` prints.

An epoch of a method costs a + g s + p b: g generator steps, p batches of pool. Whole epochs with
one and with many of each are timed, and s and b are the slopes. Nothing is taken out of its
method to be measured, and what an epoch costs once blurs no step.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from attar.blocks.execution import Precision, arithmetic, eager, runner_for
from attar.blocks.images import PlainGeneratorTraining
from attar.blocks.student import DataFreeState, DistillationContext, stratify_phase
from attar.core import AnyMethod, ModelSpec, Part, Phase, Preprocess, Server, State, Task, Upload
from attar.errors import SettingsError
from attar.fusion import start_method, start_prepared
from attar.methods import METHODS, find_method
from attar.nets.registry import Shape, find
from attar.running import Driver
from attar.seeds import derive, generator
from attar.settings import flatten
from attar.training import ClassifierTraining, ClientData, LocalTraining
from attar.version import __version__

CLASSES = tuple("0123456789")
WARM_UPS = 3  # plain, recorded, played
NUMBER = 5  # timings, about
LOCAL_BATCHES = 20


@dataclass(frozen=True)
class Setting:
    """What is timed. None: a size that takes seconds on the device."""

    method: str = "co-boosting"
    net: str = "cnn5"
    clients: int = 10
    batch: int = 128
    pool: int | None = None  # batches; 100 on CUDA, 4 elsewhere
    steps: int | None = None  # generator steps; 30 on CUDA, 3 elsewhere
    repeats: int = 5
    size: int | None = None  # side of the images; the net's usual one
    device: str = "cpu"
    precision: Precision = "fp32"
    compile: bool = False

    @property
    def shape(self) -> Shape:
        channels, height, width = find(ModelSpec.parse(self.net).arch).usual_shape
        return (channels, self.size or height, self.size or width)

    @property
    def cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def pool_batches(self) -> int:
        return self.pool or (100 if self.cuda else 4)

    @property
    def generator_steps(self) -> int:
        return self.steps or (30 if self.cuda else 3)


@dataclass(frozen=True)
class Took:
    """Milliseconds on the clock, and of all processor cores together."""

    clock: float
    processor: float

    def per(self, number: float, beyond: "Took | None" = None) -> "Took":
        """One of ``number`` equal pieces of what this took longer than ``beyond``."""
        less = beyond or Took(0.0, 0.0)
        return Took((self.clock - less.clock) / number, (self.processor - less.processor) / number)


@dataclass(frozen=True)
class Timing:
    """One code path: how long it takes, for how many images, and what arithmetic it does."""

    what: str
    took: Took
    images: int
    gigaflops: float | None  # counted, of one such piece of work

    def share(self, peak: float) -> float | None:
        """Of the matrix products that the device could do in this time; ``peak`` in FLOP/s."""
        return None if self.gigaflops is None else self.gigaflops * 1e12 / self.took.clock / peak


def measure(setting: Setting) -> Iterator[Timing]:
    """One timing after the other."""
    room, method = _world(setting)
    if not {"generator_steps", "batch_size", "pool_limit"} <= flatten(method).keys():
        raise SettingsError(
            f"Method {setting.method} has no generator and pool to time.",
            fix="try co-boosting, dense or fedhydra",
        )
    pool, steps, batch = setting.pool_batches, setting.generator_steps, setting.batch
    base = _epoch(setting, room, method, 1, 1)
    made = _epoch(setting, room, method, 1 + steps, 1)
    yield Timing("generator step", made.per(steps, base), batch, _slope_of_flops(setting, (2, 1)))
    passed = _epoch(setting, room, method, 1, pool)
    flops = _slope_of_flops(setting, (1, 2))
    what = (
        "weights and distillation, a pool batch"
        if setting.method == "co-boosting"
        else "distillation, a pool batch"
    )
    yield Timing(what, passed.per(pool - 1, base), batch, flops)
    if setting.method == "co-boosting":
        blind = _epoch(setting, room, replace(method, weight_steps="never"), 1, pool)  # type: ignore[type-var]
        yield Timing("   of it the step of the weights", passed.per(pool - 1, blind), batch, None)
    yield _stratification(setting, room)
    yield _local_epoch(setting)


def surroundings(setting: Setting) -> dict[str, Any]:
    """Where the timings come from, for a record."""
    name = (
        torch.cuda.get_device_name(setting.device)
        if setting.cuda
        else platform.processor() or platform.machine()
    )
    memory = torch.cuda.max_memory_reserved(setting.device) if setting.cuda else None
    return {
        "machine": name,
        "attar": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gpu_memory": memory,
    }


def matrix_peak(setting: Setting) -> float:
    """FLOP/s of a large matrix product in this precision, measured."""
    size = 8192 if setting.cuda else 1024
    with arithmetic(setting.precision, setting.device):
        a, b = (torch.rand(size, size, device=setting.device) for _ in range(2))
        if setting.precision == "bf16":
            a, b = a.bfloat16(), b.bfloat16()
        return 2 * size**3 / (_median(setting, lambda: a @ b).clock / 1000)


def random_uploads(
    net: str, clients: int, *, first: int = 0, shape: Shape | None = None
) -> list[Upload]:
    """Untrained nets, each its own, of the clients from number ``first``."""
    spec = ModelSpec.parse(net)
    shape, numbers = shape or find(spec.arch).usual_shape, range(first, first + clients)
    nets = (spec.build(shape, len(CLASSES), derive(0, "speed", number)) for number in numbers)
    parts = [Part(spec, one.state_dict(), CLASSES, Preprocess.centred(shape)) for one in nets]
    return [
        Upload(f"client{number:04d}", {"classifier": part}, 100, (10,) * 10)
        for number, part in zip(numbers, parts, strict=True)
    ]


def _world(setting: Setting) -> tuple[DistillationContext, AnyMethod]:
    uploads = random_uploads(setting.net, setting.clients, shape=setting.shape)
    part = uploads[0].parts["classifier"]
    task = Task(part.preprocess.input_shape, CLASSES)
    server = Server(
        task,
        part.spec,
        part.preprocess,
        device=setting.device,
        precision=setting.precision,
        compile=setting.compile,
    )
    method: AnyMethod = find_method(setting.method)()
    return start_method(method, uploads, server).context, method


def _sized(setting: Setting, method: AnyMethod, steps: int, pool: int) -> AnyMethod:
    return replace(
        method, generator_steps=steps, batch_size=setting.batch, pool_limit=pool * setting.batch
    )  # type: ignore[type-var]


def _begun(setting: Setting, room: DistillationContext, method: AnyMethod) -> tuple[Phase, State]:
    """The last phase of a method, at a moment when its pool is full."""
    run = start_prepared(method, room)
    state, phases = run.state, run.phases
    state.phase = len(phases) - 1
    if isinstance(state, DataFreeState):
        limit: int = flatten(method).get("pool_limit") or 0
        draws = generator(0, "speed")
        images = torch.rand(setting.batch, *room.server.task.input_shape, generator=draws)
        for _ in range(limit // setting.batch):
            labels = torch.randint(0, len(CLASSES), (setting.batch,), generator=draws)
            state.pool.add(images, labels, **state.pool.blank_extras(setting.batch))
        state.guidance.fill_(1.0)
    return phases[-1], state


def _epoch(
    setting: Setting, room: DistillationContext, method: AnyMethod, steps: int, pool: int
) -> Took:
    """One epoch with so many generator steps and batches of pool."""
    phase, state = _begun(setting, room, _sized(setting, method, steps, pool))
    return _median(setting, lambda: _step(setting, phase, state))


def _step(setting: Setting, phase: Phase, state: State) -> None:
    Driver(0, setting.device, setting.precision).take_step(phase, state)


def _median(setting: Setting, work: Callable[[], object]) -> Took:
    """The middle one of several times, after warming up."""

    def once() -> Took:
        clock, processor = time.perf_counter(), time.process_time()
        work()
        if setting.cuda:
            torch.cuda.synchronize(setting.device)
        return Took(1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - processor))

    for _ in range(WARM_UPS if setting.cuda else 1):
        once()
    times = [once() for _ in range(setting.repeats)]
    return Took(
        statistics.median(took.clock for took in times),
        statistics.median(took.processor for took in times),
    )


def _slope_of_flops(setting: Setting, more: tuple[int, int]) -> float:
    """GFLOP of one more generator step, or of one more batch of pool, counted in plain steps.

    In a world of its own: nets that were compiled and are then counted stay uncompiled from
    there on.
    """
    room, method = _world(replace(setting, compile=False))
    plain, counted = replace(room, run=eager), list[int]()
    for steps, pool in ((1, 1), more):
        phase, state = _begun(setting, plain, _sized(setting, method, steps, pool))
        with Flops() as counter:
            _step(setting, phase, state)
        counted.append(counter.total)
    return (counted[1] - counted[0]) / 1e9


def _stratification(setting: Setting, room: DistillationContext) -> Timing:
    """Algorithm 2 of FedHydra for one client."""
    training = PlainGeneratorTraining(steps=setting.generator_steps)
    fresh = replace(room, run=runner_for(setting.device))
    phase = stratify_phase(fresh, training, setting.batch, 1e-4)
    _, state = _begun(setting, room, METHODS["fedhydra"]())
    took = _median(
        replace(setting, repeats=min(3, setting.repeats)), lambda: _step(setting, phase, state)
    )
    what = f"stratification, a client: {len(CLASSES)} classes, {training.steps} steps"
    return Timing(what, took, len(CLASSES) * training.steps * setting.batch, None)


def _local_epoch(setting: Setting) -> Timing:
    """All clients at home, each with as many images."""
    spec, shape, draws = ModelSpec.parse(setting.net), setting.shape, generator(0, "speed")
    each = setting.batch * (LOCAL_BATCHES if setting.cuda else 2)
    clients = [
        ClientData(
            f"client{number:04d}",
            torch.randint(0, 256, (each, *shape), dtype=torch.uint8, generator=draws),
            torch.randint(0, len(CLASSES), (each,), generator=draws),
            CLASSES,
        )
        for number in range(setting.clients)
    ]
    training = ClassifierTraining(
        clients,
        spec,
        Preprocess.centred(shape),
        LocalTraining(batch_size=setting.batch),
        device=setting.device,
    )
    (phase,), state = training.phases(), training.start()
    took = _median(
        replace(setting, repeats=min(3, setting.repeats)), lambda: _step(setting, phase, state)
    )
    images = each * setting.clients
    net = spec.build(shape, len(CLASSES), 0)
    with Flops() as counter:
        net(torch.zeros(2, *shape)).sum().backward()
    return Timing(
        "local training, an epoch of all clients", took, images, images * counter.total / 2e9
    )


class Flops(TorchDispatchMode):
    """Counts the arithmetic of products and convolutions. (torch's FlopCounterMode cannot follow
    ``autograd.grad`` to a leaf.)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.total += count(*args, **(kwargs or {}), out_val=output)
        return output


def as_record(setting: Setting, timings: Sequence[Timing], peak: float) -> dict[str, Any]:
    """Everything as JSON has it."""
    return {
        "setting": {field.name: getattr(setting, field.name) for field in fields(setting)}
        | {"pool": setting.pool_batches, "steps": setting.generator_steps},
        **surroundings(setting),
        "matrix_peak_tflops": round(peak / 1e12, 2),
        "timings": [
            {
                "what": timing.what.strip(),
                "milliseconds": round(timing.took.clock, 4),
                "processor_milliseconds": round(timing.took.processor, 4),
                "images_per_second": round(1000 * timing.images / timing.took.clock),
                "gigaflops": None if timing.gigaflops is None else round(timing.gigaflops, 3),
                "share_of_peak": None if (share := timing.share(peak)) is None else round(share, 4),
            }
            for timing in timings
        ],
    }
