"""Estimates of how long a cell takes.

An estimate is counted arithmetic at the measured pace of one H200 or of one CPU core, and rough on
purpose. Where a method has run before, the median of (seconds taken / seconds estimated) corrects
it; the plan says which of the two it is.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from attar.bench.cells import Cell, ClientSet
from attar.bench.defaults import training_defaults
from attar.bench.methods import WITHOUT_FUSION
from attar.bench.records import FINISHED, Record
from attar.core import ModelSpec
from attar.data.catalogue import SOURCES
from attar.errors import AttarError
from attar.models import parse_nets
from attar.nets.cost import multiply_accumulates
from attar.settings import configure, flatten
from attar.training import TrainingFlags, paper_training

UNKNOWN = ModelSpec("vit-tiny")
UNKNOWN_OPERATIONS = 1e8  # of a net that cannot be counted
DEFAULT_SHAPE = (3, 32, 32)
DEFAULT_IMAGES = 50_000
TRAINING_IMAGES = {
    "fashion-mini": 6_000,
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "svhn": 73_257,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "emnist": 112_800,
    "tiny-imagenet": 100_000,
    "mini-imagenet": 48_000,
    "officehome": 12_470,
    "pacs": 7_993,
}


@dataclass(frozen=True)
class Pace:
    """How fast a machine is.

    Attributes:
        flops: Operations a second.
        image: Seconds that an image of local training takes besides.
        generator_step: Seconds that a step of a generator takes besides.
        pool_batch: The same for a batch of a pool.
        step: The same for a step of a student.
    """

    flops: float
    image: float
    generator_step: float
    pool_batch: float
    step: float


PACES = {
    # results/speed, lenet5: 2.2 ms, 1.2 ms, 1 microsecond an image
    "cuda": Pace(flops=24e12, image=1e-6, generator_step=2.0e-3, pool_batch=1.1e-3, step=1e-3),
    "cpu": Pace(flops=40e9, image=2e-5, generator_step=0.9, pool_batch=0.25, step=5e-3),
}


@dataclass(frozen=True)
class Cost:
    """An estimate.

    Attributes:
        seconds: How long it takes.
        measured: Whether it is corrected by runs of the same method.
    """

    seconds: float
    measured: bool


class Costs:
    """Estimates for one device.

    Args:
        device: Where cells are to run.
        records: Earlier runs, which correct the estimates for their methods.
    """

    def __init__(self, device: str, records: Iterable[Record] = ()) -> None:
        on_cuda = device.startswith("cuda")
        self._pace = PACES["cuda" if on_cuda else "cpu"]
        ratios: dict[str, list[float]] = {}
        for record in records:
            if record["ending"] != FINISHED or (record["device"] == "cpu") == on_cuda:
                continue
            method = record["method"]
            settings = record.get("settings") or {}
            estimate = self._estimate_fusion(settings, record["federation"], None)
            ratios.setdefault(method, []).append(record["seconds"] / max(estimate, 1e-3))
        self._factors = {method: statistics.median(values) for method, values in ratios.items()}

    def cell(self, cell: Cell) -> Cost:
        """How long a cell takes whose clients are trained, or that trains them in its rounds."""
        if cell.row.method in WITHOUT_FUSION:
            return Cost(self._pace.step, True)
        federation = cell.federation
        try:
            settings = flatten(cell.method())
        except AttarError:
            settings = dict(cell.settings)
        seconds = self._estimate_fusion(settings, vars(federation), cell.student)
        seconds *= federation.rounds
        if federation.rounds > 1:
            groups = [
                ClientSet(federation, name, cell.seed, cell.precision, cell.defaults)
                for name in federation.group_names
            ]
            seconds += federation.sample * sum(self.clients(group).seconds for group in groups)
        factor = self._factors.get(cell.row.method)
        return Cost(seconds * (factor or 1.0), factor is not None)

    def clients(self, clients: ClientSet) -> Cost:
        """How long the clients of a set train; a group has its share of the images."""
        spec = clients.spec
        federation = clients.federation
        shape = _shape(federation.data)
        images = _images(federation.data) * (1 - federation.hold_out) * max(1, federation.rounds)
        nets = _parse_nets(spec.net)
        seconds = 0.0
        for net in nets:
            operations = 6.0 * _operations(net, shape)
            per_image = operations / self._pace.flops + self._pace.image
            seconds += images * _epochs(net, clients) * per_image / len(nets)
        return Cost(seconds * _share(spec.clients, federation.clients), False)

    def _estimate_fusion(
        self, settings: Mapping[str, Any], federation: Mapping[str, Any], student: str | None
    ) -> float:
        """Seconds of one fusion, by the loops that the method's settings speak of.

        These are steps of a generator, passes over a pool that grows, and steps of a student.
        """
        pace = self._pace
        shape = _shape(str(federation["data"]))
        nets = _parse_nets(_all_nets(federation))
        batch = float(settings.get("batch_size", 128))
        answers = int(federation["clients"]) * batch
        operations = sum(_operations(net, shape) for net in nets)
        teachers = answers * 2.0 * operations / len(nets) / pace.flops
        student_net = _parse_nets(student)[0] if student else nets[0]
        own = batch * 6.0 * _operations(student_net, shape) / pace.flops
        epochs = float(settings.get("epochs", 0) or 0)
        steps = float(settings.get("steps", 0) or 0)
        inner = float(settings.get("generator_steps", settings.get("inversion_steps", 0)) or 0)
        seconds = 0.5 + steps * (pace.step + own)
        if not inner:
            samples = float(settings.get("samples", 12_000) or 12_000)
            return seconds + epochs * samples / batch * (pace.step + own)
        seconds += epochs * inner * (pace.generator_step + 2 * teachers)
        passes = epochs * (epochs + 1) / 2
        if "student_steps" in settings:
            passes = epochs * float(settings["student_steps"])
        # An ensemble that does not change is asked once.
        changes = "weight_steps" in settings or "student_steps" in settings
        per_pass = pace.pool_batch + 1.5 * teachers + own if changes else pace.step + own
        return seconds + passes * per_pass


def _epochs(net: ModelSpec, clients: ClientSet) -> float:
    """The epochs of local training."""
    defaults = training_defaults(clients.defaults)
    try:
        flags = configure(TrainingFlags, dict(clients.spec.training), of="local training")
        settings = flags.settings()
        usual = defaults.classifier
        if net.kind == "cvae":
            usual = paper_training(net, _shape(clients.federation.data), 10, defaults=defaults)
    except AttarError:
        return float(defaults.classifier.epochs)
    return float(settings.get("epochs", usual.epochs))


def _all_nets(federation: Mapping[str, Any]) -> str:
    """The architectures of all groups, or of the one there is; groups are dicts in a record."""
    groups = [
        group if isinstance(group, dict) else vars(group) for group in federation["groups"].values()
    ]
    return ",".join(str(group["net"]) for group in groups) or str(federation["net"])


def _images(data: str) -> int:
    return TRAINING_IMAGES.get(data.partition("?")[0].partition(":")[0], DEFAULT_IMAGES)


def _shape(data: str) -> tuple[int, int, int]:
    name, _, options = data.partition("?")
    entry = SOURCES.get(name)
    channels, height, width = entry.shape if entry is not None else DEFAULT_SHAPE
    if options.startswith("size="):
        height = width = int(options.removeprefix("size=") or 32)
    return channels, height, width


@cache
def _parse_nets(names: str) -> list[ModelSpec]:
    """The nets of a text; those that are not known count like a small vision transformer."""
    try:
        return parse_nets(names)
    except AttarError:
        return [UNKNOWN]


@cache
def _operations(net: ModelSpec, shape: tuple[int, int, int]) -> float:
    try:
        return float(multiply_accumulates(net.skeleton(shape, 10), shape))
    except (AttarError, RuntimeError, ValueError):
        return UNKNOWN_OPERATIONS


def _share(clients: str, count: int) -> float:
    """The part of all clients that a text such as ``0-4`` names."""
    if clients == "all":
        return 1.0
    named = 0
    for word in clients.split(","):
        first, dash, last = word.partition("-")
        named += (
            int(last) - int(first) + 1 if dash and first.isdecimal() and last.isdecimal() else 1
        )
    return min(1.0, named / max(1, count))
