"""Which device gets which net (FedKEM, section 4.4): the largest that its memory and its
multiply-accumulates allow.

A TOML file describes the devices:

    [task]                              # of all devices
    image = [3, 32, 32]
    classes = 10
    batch_size = 64                     # of local training; 64 unless given
    nets = ["resnet20", "vgg11"]        # to choose from; all classifiers unless given
    knowledge = "resnet20"              # of FedKEM: trained beside the net, and what is uploaded;
                                        # none unless given

    [classes.camera]                    # device classes, for those who have many of a kind
    memory = "300 MB"                   # that local training may take
    macs = "60 M"                       # multiply-accumulates of an image on its way forward

    [devices.gate]
    class = "camera"
    [devices.office]
    memory = "8 GB"
    macs = "1 G"

Memory is counted for SGD with momentum: weights, gradients and momentum, and what a batch leaves
behind for the backward pass. The largest net is the one with most parameters; of equals, the one
with fewer multiply-accumulates.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import AttarError, SettingsError
from attar.internal.text import human_bytes
from attar.nets import registry
from attar.nets.cost import multiply_accumulates
from attar.nets.registry import NETS, Shape
from attar.training import activation_bytes
from attar.uploads import encode, is_client_name

COPIES = 3  # of each weight: itself, its gradient, its momentum
FLOAT = 4  # bytes

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)b?\s*", re.I)


@dataclass(frozen=True)
class Device:
    """What one client can afford.

    Attributes:
        name: Of the client.
        memory: Bytes that local training may take.
        macs: Multiply-accumulates of an image on its way forward.
    """

    name: str
    memory: int
    macs: int


@dataclass(frozen=True)
class Fleet:
    """All devices and the task that they share.

    Attributes:
        devices: What each client can afford.
        shape: Of an image: channels, height, width.
        classes: How many.
        batch_size: Of local training.
        nets: To choose from.
        knowledge: The net that is trained beside the chosen one and uploaded in its place.
    """

    devices: tuple[Device, ...]
    shape: Shape
    classes: int
    batch_size: int
    nets: tuple[ModelSpec, ...]
    knowledge: ModelSpec | None


@dataclass(frozen=True)
class Cost:
    """What training one net takes; with a knowledge network, what both take.

    Attributes:
        spec: The net.
        fleet: The task.
    """

    spec: ModelSpec
    fleet: Fleet

    @cached_property
    def parameters(self) -> int:
        """Of the net alone."""
        skeleton = self.spec.skeleton(self.fleet.shape, self.fleet.classes)
        return sum(parameter.numel() for parameter in skeleton.parameters())

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of an image on its way forward."""
        skeletons = [spec.skeleton(self.fleet.shape, self.fleet.classes) for spec in self._trained]
        return sum(multiply_accumulates(skeleton, self.fleet.shape) for skeleton in skeletons)

    @cached_property
    def memory(self) -> int:
        """Bytes that local training takes."""
        total = 0
        for spec in self._trained:
            net = spec.build(self.fleet.shape, self.fleet.classes, seed=0)
            weights = sum(parameter.numel() for parameter in net.parameters())
            total += COPIES * FLOAT * weights + self.fleet.batch_size * activation_bytes(
                net, self.fleet.shape
            )
        return total

    @cached_property
    def upload_bytes(self) -> int:
        """Of the file that is sent: the net, or the knowledge network in its place."""
        spec, role = (
            (self.spec, "classifier")
            if self.fleet.knowledge is None
            else (self.fleet.knowledge, "knowledge")
        )
        state = spec.build(self.fleet.shape, self.fleet.classes, seed=0).state_dict()
        names = tuple(f"class {number}" for number in range(self.fleet.classes))
        part = Part(spec, state, names, Preprocess.centred(self.fleet.shape))
        return len(encode(Upload("device", {role: part}, 1)))

    @property
    def _trained(self) -> list[ModelSpec]:
        return [spec for spec in (self.spec, self.fleet.knowledge) if spec is not None]

    def __str__(self) -> str:
        macs = f"{self.macs / 1e6:.1f} M multiply-accumulates"
        return f"{self.spec} ({human_bytes(self.memory)}, {macs})"


def allocate(fleet: Fleet) -> list[dict[str, Any]]:
    """Choose a net for each device.

    Returns:
        A row for each device: its budgets, its net and what that costs.

    Raises:
        SettingsError: No net fits some devices; the smallest budgets that would do are named.
    """
    costs = sorted(
        (Cost(spec, fleet) for spec in fleet.nets), key=lambda cost: (-cost.parameters, cost.macs)
    )
    rows = []
    problems = []
    for device in fleet.devices:
        chosen = next(
            (cost for cost in costs if cost.macs <= device.macs and cost.memory <= device.memory),
            None,
        )
        if chosen is None:
            budgets = f"{human_bytes(device.memory)}, {device.macs / 1e6:g} M"
            problems.append(f"{device.name} ({budgets}): {_smallest_budget(device, costs)}")
            continue
        rows.append(
            {
                "device": device.name,
                "net": str(chosen.spec),
                "knowledge": None if fleet.knowledge is None else str(fleet.knowledge),
                "parameters": chosen.parameters,
                "macs": chosen.macs,
                "mac_budget": device.macs,
                "memory_bytes": chosen.memory,
                "memory_budget": device.memory,
                "upload_bytes": chosen.upload_bytes,
            }
        )
    if problems:
        raise SettingsError(
            "No net fits these devices:",
            problems=problems,
            fix="give them more, name smaller nets under [task], or a smaller batch_size",
        )
    return rows


def _smallest_budget(device: Device, costs: Sequence[Cost]) -> str:
    """Name the smallest budget that would do: more of one thing where that is enough, else of
    both.
    """
    ways = []
    if affordable := [cost for cost in costs if cost.macs <= device.macs]:
        cost = min(affordable, key=lambda cost: cost.memory)
        ways.append(f"{cost.memory:,} bytes of memory for {cost}")
    if roomy := [cost for cost in costs if cost.memory <= device.memory]:
        cost = min(roomy, key=lambda cost: cost.macs)
        ways.append(f"{cost.macs:,} multiply-accumulates for {cost}")
    if not ways:
        cost = min(costs, key=lambda cost: (cost.memory, cost.macs))
        ways.append(f"{cost.memory:,} bytes and {cost.macs:,} multiply-accumulates for {cost}")
    return "the smallest budget that would do is " + ", or ".join(ways)


def read_devices(path: Path) -> Fleet:
    """Read the devices of a TOML file.

    Raises:
        SettingsError: With all that is wrong with the file.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"{path} cannot be read: {error}", fix="see examples/devices.toml"
        ) from None
    problems = [
        f"[{name}]: there is no such table"
        for name in tables
        if name not in ("task", "classes", "devices")
    ]
    kinds = _as_table(tables.get("classes", {}))
    described = _as_table(tables.get("devices", {}))
    if not described:
        problems.append("[devices.NAME]: there is none")
    devices = []
    for name, table in described.items():
        budgets, problems_of_device = _parse_budgets(name, table, kinds)
        problems += problems_of_device
        if not problems_of_device:
            devices.append(Device(name, budgets["memory"], budgets["macs"]))
    fleet, problems_of_task = _parse_task(_as_table(tables.get("task", {})), tuple(devices))
    problems += problems_of_task
    if problems:
        raise SettingsError(
            f"{path} does not describe devices:",
            problems=problems,
            fix="see examples/devices.toml",
        )
    return fleet


def _as_table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_budgets(
    name: str, table: object, kinds: Mapping[str, Any]
) -> tuple[dict[str, int], list[str]]:
    """The budgets of a device, those of its class where it has none of its own; and what is wrong
    with them.
    """
    if not is_client_name(name):
        return {}, [
            f"{name[:40]!r}: a device's name has up to 64 letters, digits, spaces or . _ @ + -"
        ]
    if not isinstance(table, dict):
        return {}, [f"{name}: a table with memory and macs is expected"]
    problems = [f"{name}.{key}: unknown" for key in table if key not in ("class", "memory", "macs")]
    kind = table.get("class")
    if kind is not None and kind not in kinds:
        problems.append(f"{name}.class = {kind!r}: there is no [classes.{kind}]")
    values = {**_as_table(kinds.get(str(kind), {})), **table}
    budgets = {}
    for key in ("memory", "macs"):
        amount = _parse_amount(values.get(key))
        if amount is None:
            problems.append(
                f"{name}.{key} = {values.get(key)!r}: an amount such as "
                '"300 MB" or "60 M" is expected'
            )
        else:
            budgets[key] = amount
    return budgets, problems


def _parse_amount(value: object) -> int | None:
    """``"1.5 GB"`` -> 1500000000; None where it is no amount above 0."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return int(value)
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else int(float(match[1]) * _SCALES[match[2].lower()]) or None


def _parse_task(table: Mapping[str, Any], devices: tuple[Device, ...]) -> tuple[Fleet, list[str]]:
    """The fleet of these devices; and what is wrong with its task."""
    keys = ("image", "classes", "batch_size", "nets", "knowledge")
    problems = [
        f"task.{key}: unknown, it has {', '.join(keys)}" for key in table if key not in keys
    ]
    image = table.get("image", [3, 32, 32])
    if not (isinstance(image, list) and len(image) == 3 and all(map(_is_positive, image))):
        problems.append(
            f"task.image = {image!r}: channels, height and width are expected, such as [3, 32, 32]"
        )
        image = [3, 32, 32]
    shape: Shape = (image[0], image[1], image[2])
    classes = table.get("classes", 10)
    batch_size = table.get("batch_size", 64)
    problems += [
        f"task.{key} = {value!r}: a whole number"
        for key, value in (("classes", classes), ("batch_size", batch_size))
        if not _is_positive(value)
    ]
    nets, problems_of_nets = _parse_nets(table.get("nets"), shape)
    problems += problems_of_nets
    knowledge = None
    if table.get("knowledge") is not None:
        try:
            knowledge = ModelSpec.parse(str(table["knowledge"]))
            knowledge.skeleton(shape, 2)
        except AttarError as error:
            problems.append(f"task.knowledge: {error.what}")
    problems += [
        f"task.nets: {spec} is a {spec.kind}" for spec in nets if spec.kind != "classifier"
    ]
    if problems:
        return Fleet(devices, shape, 1, 1, (), None), problems
    return Fleet(devices, shape, classes, batch_size, tuple(nets), knowledge), []


def _parse_nets(names: object, shape: Shape) -> tuple[list[ModelSpec], list[str]]:
    """Nets that can see images of this shape, of all classifiers where none are named; and what
    is wrong with those that are named.
    """
    if names is None:
        registry.load_plugins()
        classifiers = [
            entry.name
            for entry in NETS.values()
            if entry.kind == "classifier" and not entry.required
        ]
        specs, _ = _parse_nets(classifiers, shape)
        return specs, []  # those that cannot see such images are passed over
    if not isinstance(names, list) or not names:
        return [], ["task.nets: a list of nets is expected"]
    specs = []
    problems = []
    for name in names:
        try:
            spec = ModelSpec.parse(str(name))
            spec.skeleton(shape, 2)
            specs.append(spec)
        except AttarError as error:
            problems.append(f"task.nets: {error.what}")
    return specs, problems


def _is_positive(value: object) -> bool:
    """Whether it is a whole number from 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
