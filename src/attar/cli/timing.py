"""Time the real code paths of methods and local training: what ``attar speed`` prints.

An epoch of a method costs a + g s + p b: g generator steps, p batches of the pool. Whole epochs
with one and with many of each are timed, and s and b are the slopes. So steps are measured inside
their method, without the constant cost a of an epoch.
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

from attar.blocks.execution import Precision, arithmetic, eager, runner_for, synchronise
from attar.blocks.images import PlainGeneratorTraining
from attar.blocks.student import DataFreeState, DistillationContext, stratify_phase
from attar.core import AnyMethod, ModelSpec, Part, Phase, Preprocess, Server, State, Task, Upload
from attar.errors import SettingsError
from attar.fusion import start_method, start_prepared
from attar.methods import METHODS, find_method
from attar.nets.registry import Shape, find
from attar.running import Driver
from attar.seeds import derive, rng
from attar.settings import flatten
from attar.training import ClassifierTraining, ClientData, LocalTraining
from attar.version import __version__

CLASSES = tuple("0123456789")
WARM_UPS = 3  # on CUDA: an eager step, the capture of the graph, its first replay
NUMBER = 5  # of timings, for the progress; some methods have one less
LOCAL_BATCHES = 20  # of each client's images, on CUDA


@dataclass(frozen=True)
class Setting:
    """What is timed.

    Attributes:
        method: With a generator and a pool.
        net: Architecture of the clients and of the student.
        clients: How many.
        batch: Images in a batch.
        pool: Batches in the pool; None: 100 on CUDA, 4 elsewhere.
        steps: Generator steps; None: 30 on CUDA, 3 elsewhere.
        repeats: The median of so many is taken.
        size: Side of the images; None: the net's usual one.
        device: As torch names it.
        precision: "fp32", "tf32" or "bf16".
        compile: Whether nets are compiled.
    """

    method: str = "co-boosting"
    net: str = "cnn5"
    clients: int = 10
    batch: int = 128
    pool: int | None = None
    steps: int | None = None
    repeats: int = 5
    size: int | None = None
    device: str = "cpu"
    precision: Precision = "fp32"
    compile: bool = False

    @property
    def shape(self) -> Shape:
        """Channels, height and width of the images."""
        channels, height, width = find(ModelSpec.parse(self.net).arch).usual_shape
        return (channels, self.size or height, self.size or width)

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"

    @property
    def pool_batches(self) -> int:
        """Batches in the pool."""
        return self.pool or (100 if self.cuda else 4)

    @property
    def generator_steps(self) -> int:
        """Generator steps of an epoch."""
        return self.steps or (30 if self.cuda else 3)


@dataclass(frozen=True)
class Took:
    """Milliseconds on the clock, and of all processor cores together."""

    clock: float
    processor: float

    def per(self, number: float, base: "Took | None" = None) -> "Took":
        """The mean of ``number`` equal pieces of work, beyond the time ``base``."""
        base = base or Took(0.0, 0.0)
        return Took((self.clock - base.clock) / number, (self.processor - base.processor) / number)


@dataclass(frozen=True)
class Timing:
    """How long one code path takes.

    Attributes:
        what: Its name.
        took: The time.
        images: How many images it processes.
        gigaflops: Its arithmetic, counted; None where it was not.
    """

    what: str
    took: Took
    images: int
    gigaflops: float | None

    def share(self, peak: float) -> float | None:
        """The share of ``peak`` (FLOP/s) that this arithmetic reaches."""
        return None if self.gigaflops is None else self.gigaflops * 1e12 / self.took.clock / peak


def measure(setting: Setting) -> Iterator[Timing]:
    """Time one code path after the other.

    Raises:
        SettingsError: The method has no generator and pool.
    """
    context, method = _make_context(setting)
    if not {"generator_steps", "batch_size", "pool_limit"} <= flatten(method).keys():
        raise SettingsError(
            f"Method {setting.method} has no generator and pool to time.",
            fix="try co-boosting, dense or fedhydra",
        )
    pool = setting.pool_batches
    steps = setting.generator_steps
    batch = setting.batch
    base = _epoch(setting, context, method, 1, 1)
    made = _epoch(setting, context, method, 1 + steps, 1)
    yield Timing("generator step", made.per(steps, base), batch, _slope_of_flops(setting, (2, 1)))
    passed = _epoch(setting, context, method, 1, pool)
    flops = _slope_of_flops(setting, (1, 2))
    what = (
        "weights and distillation, a pool batch"
        if setting.method == "co-boosting"
        else "distillation, a pool batch"
    )
    yield Timing(what, passed.per(pool - 1, base), batch, flops)
    if setting.method == "co-boosting":
        constant = replace(method, weight_steps="never")  # type: ignore[type-var]
        unweighted = _epoch(setting, context, constant, 1, pool)
        took = passed.per(pool - 1, unweighted)
        yield Timing("   of it the step of the weights", took, batch, None)
    yield _stratification(setting, context)
    yield _local_epoch(setting)


def surroundings(setting: Setting) -> dict[str, Any]:
    """The machine and the versions, for a record."""
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
        dtype = torch.bfloat16 if setting.precision == "bf16" else torch.float32
        a = torch.rand(size, size, device=setting.device).to(dtype)
        b = torch.rand(size, size, device=setting.device).to(dtype)
        return 2 * size**3 / (_median(setting, lambda: a @ b).clock / 1000)


def random_uploads(
    net: str, clients: int, *, first: int = 0, shape: Shape | None = None
) -> list[Upload]:
    """Uploads of untrained nets.

    Args:
        net: Their architecture.
        clients: How many.
        first: Number of the first client, which decides the weights.
        shape: Of the images; None: the net's usual one.
    """
    spec = ModelSpec.parse(net)
    shape = shape or find(spec.arch).usual_shape
    numbers = range(first, first + clients)
    nets = [spec.build(shape, len(CLASSES), derive(0, "speed", number)) for number in numbers]
    parts = [Part(spec, module.state_dict(), CLASSES, Preprocess.centred(shape)) for module in nets]
    return [
        Upload(f"client{number:04d}", {"classifier": part}, 100, (10,) * 10)
        for number, part in zip(numbers, parts, strict=True)
    ]


def _make_context(setting: Setting) -> tuple[DistillationContext, AnyMethod]:
    """The context of a fusion of untrained clients, and the method."""
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


def _resize(setting: Setting, method: AnyMethod, steps: int, pool: int) -> AnyMethod:
    """The method with so many generator steps and batches in the pool."""
    return replace(
        method, generator_steps=steps, batch_size=setting.batch, pool_limit=pool * setting.batch
    )  # type: ignore[type-var]


def _start_last_phase(
    setting: Setting, context: DistillationContext, method: AnyMethod
) -> tuple[Phase, State]:
    """The last phase of a method, with a full pool."""
    run = start_prepared(method, context)
    state = run.state
    phases = run.phases
    state.phase = len(phases) - 1
    if isinstance(state, DataFreeState):
        limit: int = flatten(method).get("pool_limit") or 0
        draws = rng(0, "speed")
        images = torch.rand(setting.batch, *context.server.task.input_shape, generator=draws)
        for _ in range(limit // setting.batch):
            labels = torch.randint(0, len(CLASSES), (setting.batch,), generator=draws)
            state.pool.add(images, labels, **state.pool.blank_extras(setting.batch))
        state.guidance.fill_(1.0)
    return phases[-1], state


def _epoch(
    setting: Setting, context: DistillationContext, method: AnyMethod, steps: int, pool: int
) -> Took:
    """Time an epoch with so many generator steps and batches in the pool."""
    phase, state = _start_last_phase(setting, context, _resize(setting, method, steps, pool))
    return _median(setting, lambda: _step(setting, phase, state))


def _step(setting: Setting, phase: Phase, state: State) -> None:
    Driver(0, setting.device, setting.precision).take_step(phase, state)


def _median(setting: Setting, work: Callable[[], object]) -> Took:
    """The median time of some work, after warming up."""

    def once() -> Took:
        clock, processor = time.perf_counter(), time.process_time()
        work()
        synchronise(setting.device)
        return Took(1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - processor))

    for _ in range(WARM_UPS if setting.cuda else 1):
        once()
    times = [once() for _ in range(setting.repeats)]
    return Took(
        statistics.median(took.clock for took in times),
        statistics.median(took.processor for took in times),
    )


def _slope_of_flops(setting: Setting, more: tuple[int, int]) -> float:
    """GFLOP of one more generator step, or of one more batch of the pool, counted eagerly.

    In a context of its own: nets that were compiled stay uncompiled after they are counted.
    """
    context, method = _make_context(replace(setting, compile=False))
    plain = replace(context, run=eager)
    counts: list[int] = []
    for steps, pool in ((1, 1), more):
        phase, state = _start_last_phase(setting, plain, _resize(setting, method, steps, pool))
        with Flops() as counter:
            _step(setting, phase, state)
        counts.append(counter.total)
    return (counts[1] - counts[0]) / 1e9


def _stratification(setting: Setting, context: DistillationContext) -> Timing:
    """Time Algorithm 2 of FedHydra for one client."""
    training = PlainGeneratorTraining(steps=setting.generator_steps)
    fresh = replace(context, run=runner_for(setting.device))
    phase = stratify_phase(fresh, training, setting.batch, 1e-4)
    _, state = _start_last_phase(setting, context, METHODS["fedhydra"]())
    took = _median(
        replace(setting, repeats=min(3, setting.repeats)), lambda: _step(setting, phase, state)
    )
    what = f"stratification, a client: {len(CLASSES)} classes, {training.steps} steps"
    return Timing(what, took, len(CLASSES) * training.steps * setting.batch, None)


def _local_epoch(setting: Setting) -> Timing:
    """Time an epoch of local training of all clients, each with the same number of images."""
    spec = ModelSpec.parse(setting.net)
    shape = setting.shape
    draws = rng(0, "speed")
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
    """Counts the arithmetic of matrix products and convolutions.

    (torch's FlopCounterMode cannot follow ``autograd.grad`` to a leaf.)
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
    """The timings as JSON; ``peak``: FLOP/s of a large matrix product."""
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
