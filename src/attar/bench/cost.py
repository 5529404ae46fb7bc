"""What a cell will take: counted arithmetic and the measured pace of one H200 and of one CPU
core, set right by the records there are.

Rough on purpose. Where a method has run before, the median of (seconds taken / seconds guessed)
corrects the guess; the plan says which of the two it is.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from attar.bench.grid import Cell, ClientSet, cells_of
from attar.bench.oracles import CENTRAL, LOCAL
from attar.bench.recipe import Recipe
from attar.bench.records import FINISHED, Record
from attar.core import ModelSpec
from attar.data.catalogue import SOURCES
from attar.errors import AttarError
from attar.models import parse_nets
from attar.nets.cost import multiply_accumulates
from attar.settings import configure, flatten
from attar.training import LocalTraining, TrainingFlags, paper_training

UNKNOWN = ModelSpec("vit-tiny")
DEFAULT_SHAPE, DEFAULT_IMAGES = (3, 32, 32), 50_000
TRAINED = {"fashion-mini": 6_000, "mnist": 60_000, "fashion-mnist": 60_000, "svhn": 73_257, "cifar10": 50_000, "cifar100": 50_000,
           "emnist": 112_800, "tiny-imagenet": 100_000, "mini-imagenet": 48_000, "officehome": 12_470, "pacs": 7_993}  # fmt: skip


@dataclass(frozen=True)
class Pace:
    """Of a machine: operations a second, and what a step costs besides."""

    flops: float
    image: float  # seconds, an image of local training
    generator_step: float
    pool_batch: float
    step: float  # of a student


PACES = {
    "cuda": Pace(
        24e12, 1e-6, 2.0e-3, 1.1e-3, 1e-3
    ),  # results/speed, lenet5: 2.2 ms, 1.2 ms, 1 microsecond an image
    "cpu": Pace(40e9, 2e-5, 0.9, 0.25, 5e-3),
}


@dataclass(frozen=True)
class Cost:
    """Seconds, and whether runs of this method stand behind them."""

    seconds: float
    measured: bool


class Costs:
    """Guesses for one device, corrected by records."""

    def __init__(self, device: str, records: Iterable[Record] = ()) -> None:
        self._pace = PACES["cuda" if device.startswith("cuda") else "cpu"]
        ratios: dict[str, list[float]] = {}
        for record in records:
            if record["ending"] != FINISHED or (record["device"] == "cpu") == device.startswith(
                "cuda"
            ):
                continue
            guess = self._server(
                record["method"], record.get("settings") or {}, record["federation"], None
            )
            ratios.setdefault(record["method"], []).append(record["seconds"] / max(guess, 1e-3))
        self._factors = {method: statistics.median(found) for method, found in ratios.items()}

    def cell(self, cell: Cell) -> Cost:
        if cell.row.method in (LOCAL, CENTRAL):
            return Cost(self._pace.step, True)
        try:
            settings = flatten(cell.method())
        except AttarError:
            settings = dict(cell.settings)
        federation = vars(cell.federation)
        guess = (
            self._server(cell.row.method, settings, federation, cell.student)
            * cell.federation.rounds
        )
        if cell.federation.rounds > 1:
            groups = [
                ClientSet(cell.federation, name, cell.seed, cell.precision)
                for name in cell.federation.group_names
            ]
            guess += cell.federation.sample * sum(self.clients(one).seconds for one in groups)
        factor = self._factors.get(cell.row.method)
        return Cost(guess * (factor or 1.0), factor is not None)

    def clients(self, clients: ClientSet) -> Cost:
        """Local training of all clients of a set; a group has its share of the images."""
        spec, federation = clients.spec, clients.federation
        images = _images(federation.data) * (1 - federation.hold_out) * max(1, federation.rounds)
        seconds = 0.0
        nets = _nets(spec.net)
        for net in nets:
            try:
                training = configure(
                    TrainingFlags, dict(spec.training), of="local training"
                ).given()
                usual = (
                    paper_training(net, _shape(federation.data), 10)
                    if net.kind == "cvae"
                    else LocalTraining()
                )
            except AttarError:
                training, usual = {}, LocalTraining()
            epochs = float(training.get("epochs", usual.epochs))
            work = (
                6.0 * _operations(net, _shape(federation.data)) / self._pace.flops
                + self._pace.image
            )
            seconds += images * epochs * work / len(nets)
        return Cost(seconds * _share(spec.clients, federation.clients), False)

    def _server(
        self,
        method: str,
        settings: Mapping[str, Any],
        federation: Mapping[str, Any],
        student: str | None,
    ) -> float:
        """Steps of a generator, passes over a pool that grows, steps of a student: whatever the
        settings speak of.
        """
        pace, shape = self._pace, _shape(str(federation["data"]))
        nets = _nets(_all_nets(federation))
        clients = int(federation["clients"])
        batch = float(settings.get("batch_size", 128))
        teachers = (
            clients
            * batch
            * 2.0
            * sum(_operations(net, shape) for net in nets)
            / len(nets)
            / pace.flops
        )
        own = (
            batch * 6.0 * _operations(_nets(student)[0] if student else nets[0], shape) / pace.flops
        )
        epochs, steps = float(settings.get("epochs", 0) or 0), float(settings.get("steps", 0) or 0)
        inner = float(settings.get("generator_steps", settings.get("inversion_steps", 0)) or 0)
        seconds = 0.5 + steps * (pace.step + own)
        if inner:
            seconds += epochs * inner * (pace.generator_step + 2 * teachers)
            passes = (
                epochs * float(settings["student_steps"])
                if "student_steps" in settings
                else epochs * (epochs + 1) / 2
            )
            changes = (
                "weight_steps" in settings or "student_steps" in settings
            )  # an ensemble that does not is asked once
            seconds += passes * (
                pace.pool_batch + 1.5 * teachers + own if changes else pace.step + own
            )
        else:
            samples = float(settings.get("samples", 12_000) or 12_000)
            seconds += epochs * samples / batch * (pace.step + own)
        return seconds


def recipe_cost(recipe: Recipe, device: str = "cuda", seeds: int = 1) -> float:
    """Seconds of a whole recipe, its clients trained once; for the first comment of its file."""
    costs = Costs(device)
    cells = [cell for cell in cells_of(recipe) if cell.seed in recipe.seeds[:seeds]]
    sets = {one.key: one for cell in cells for one in cell.client_sets}
    return total(costs, cells, list(sets.values()))


def total(costs: Costs, cells: Sequence[Cell], sets: Sequence[ClientSet]) -> float:
    return sum(costs.cell(cell).seconds for cell in cells) + sum(
        costs.clients(one).seconds for one in sets
    )


def _all_nets(federation: Mapping[str, Any]) -> str:
    """The architectures of all groups, or of the one there is; groups are dicts in a record."""
    groups = [
        group if isinstance(group, dict) else vars(group) for group in federation["groups"].values()
    ]
    return ",".join(str(group["net"]) for group in groups) or str(federation["net"])


def _images(data: str) -> int:
    return TRAINED.get(data.partition("?")[0].partition(":")[0], DEFAULT_IMAGES)


def _shape(data: str) -> tuple[int, int, int]:
    name, _, options = data.partition("?")
    entry = SOURCES.get(name)
    channels, height, width = entry.shape if entry is not None else DEFAULT_SHAPE
    if options.startswith("size="):
        height = width = int(options.removeprefix("size=") or 32)
    return channels, height, width


@cache
def _nets(names: str) -> list[ModelSpec]:
    """Nets that are not known, or known by their weights alone, count like a small vision
    transformer.
    """
    try:
        return parse_nets(names)
    except AttarError:
        return [UNKNOWN]


@cache
def _operations(net: ModelSpec, shape: tuple[int, int, int]) -> float:
    try:
        return float(multiply_accumulates(net.skeleton(shape, 10), shape))
    except (AttarError, RuntimeError, ValueError):
        return 1e8


def _share(clients: str, count: int) -> float:
    """The part of the clients that ``0-4`` names."""
    if clients == "all":
        return 1.0
    named = 0
    for word in clients.split(","):
        first, dash, last = word.partition("-")
        named += (
            int(last) - int(first) + 1 if dash and first.isdecimal() and last.isdecimal() else 1
        )
    return min(1.0, named / max(1, count))
