"""Tiny local trainings whose uploads are on file, so that training does not change without its
version.

    python tests/golden/training_pins.py        # record anew, after TRAINING_VERSION was raised

Each case is a hash of what the clients send and a few numbers of it. The hash counts where this
machine calculates like the one that recorded it (``numerics.py``); elsewhere the numbers are
compared, with tolerances.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numerics import numerics, one_thread
from torch import Tensor

from attar.bench.versions import TRAINING_VERSION
from attar.core import ModelSpec, Part, Upload
from attar.data.partition import partition
from attar.training import (
    LocalTraining,
    RoundInput,
    StatisticsSettings,
    TrainingFlags,
    group_clients,
    make_stacks,
)
from attar.training.clients import ClientData
from attar.training.loop import train_stack
from attar.training.objectives import CONTROL, Mutual, Objective

FILE = Path(__file__).with_suffix(".json")
SIZES = {"ann": 20, "bob": 13, "cy": 9}
CLASSES = ("a", "b", "c")
GREY, COLOUR = (1, 16, 16), (3, 32, 32)
TOLERANCE = 1e-3  # of the length of a vector of weights, on machines that calculate otherwise

Pin = dict[str, Any]  # sha256 and values

CVAES = {"epochs": 1, "lr": None}  # their own rates
FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("mlp:hidden=8,layers=1", {}),
    "sgd without momentum, decay, cosine, clipped": (
        "lenet5",
        {"momentum": 0.0, "weight_decay": 0.01, "schedule": "cosine", "clip": 0.5},
    ),
    "sgd, step, flat minima": ("resnet20", {"schedule": "step", "sam": 0.05, "epochs": 4}),
    "adam, decay": ("lenet5", {"optimiser": "adam", "lr": 0.001, "weight_decay": 0.01}),
    "plain images, own beginnings, images kept back": (
        "cnn2",
        {"normalise": "plain", "init": "separate", "validation": 0.25},
    ),
    "one client at a time": ("lenet5", {"stack": "never"}),
    "transformer": (
        "vit:patch=8,width=12,depth=1,hidden=16,distillation=head",
        {"optimiser": "adam", "lr": 0.001},
    ),
    "small CVAE": ("cvae-small:hidden=8", CVAES),
    "convolutional CVAE": ("cvae-small:form=emnist,hidden=8,latent=3", CVAES),
    "large CVAE": ("cvae-large:hidden=8", CVAES),
}
FAMILIES = (
    "cnn1",
    "cnn5",
    "vgg11",
    "resnet18",
    "wrn16-1",
    "mobilenetv2",
    "mobilenetv3-small",
    "shufflenetv2",
    "googlenet",
    "efficientnetv2-s",
)
RULES = (
    "iid",
    "dirichlet:0.3",
    "dirichlet-equal:0.3",
    "dirichlet-client:0.3",
    "classes:2",
    "disjoint:2",
    "domain",
    "iid+lognormal:0.5",
)


def client(name: str, size: int, shape: tuple[int, int, int] = GREY) -> ClientData:
    draws = torch.Generator().manual_seed(sum(map(ord, name)) + size)
    pixels = torch.randint(0, 256, (size, *shape), generator=draws, dtype=torch.uint8)
    return ClientData(
        name, pixels, torch.randint(0, len(CLASSES), (size,), generator=draws), CLASSES
    )


def everybody(shape: tuple[int, int, int] = GREY, times: int = 1) -> list[ClientData]:
    return [client(name, times * size, shape) for name, size in SIZES.items()]


def trained(
    clients: Sequence[ClientData],
    net: str,
    *,
    initial: Part | None = None,
    knowledge: str | None = None,
    precision: str = "fp32",
    statistics: StatisticsSettings | None = None,
    **flags: Any,
) -> list[Upload]:
    """What the clients of one net send."""
    specs = [ModelSpec.parse(net)] * len(clients)
    asked = TrainingFlags(**{"epochs": 2, "batch_size": 8, "lr": 0.1, **flags})
    taught = None if knowledge is None else ModelSpec.parse(knowledge)
    places = {"preset": "auto", "seed": 3, "device": "cpu"}
    (stack,) = make_stacks(clients, specs, asked, initial=initial, knowledge=taught, **places)
    return train_stack(stack, precision=precision, statistics=statistics)[0]


def from_other_classes() -> list[Upload]:
    """A model of other classes: its body, with a fresh head."""
    start = trained(everybody()[:1], "lenet5", epochs=1)[0].parts["classifier"]
    return trained(everybody(), "lenet5", initial=replace(start, classes=("x", "y", "z")), epochs=1)


def in_rounds(objective: Objective, net: str = "lenet5") -> list[Upload]:
    """Two rounds without a fusion: the second starts from what a client sent in the first."""
    clients = everybody()
    training = LocalTraining(epochs=1, batch_size=8, lr=0.1)
    specs = [ModelSpec.parse(net)] * len(clients)
    (group,) = group_clients(
        clients, specs, training, objective, capacity=len(clients), seed=3, device="cpu"
    )
    homes: dict[str, dict[str, Part]] = {}
    broadcast, sent = {objective.exchanged_part: group.initial_model()}, list[Upload]()
    for number, names in ((1, ["ann", "bob", "cy"]), (2, ["ann", "cy"])):
        stack = group.make_stack(
            names, RoundInput(round=number, broadcast=broadcast, client_state=homes)
        )
        uploads, _ = train_stack(stack, save_client_state=homes.update)
        first = uploads[0].parts
        broadcast = {
            name: first[name] for name in (objective.exchanged_part, CONTROL) if name in first
        }
        sent += [
            replace(upload, client=f"{upload.client} {number}", round=number) for upload in uploads
        ]
        sent += [Upload(f"home {name} {number}", home, 0) for name, home in sorted(homes.items())]
    return sent


def fresh_net(arch: str) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """The first weights of a net and what it answers."""
    net = ModelSpec.parse(arch).build(COLOUR, 10, seed=5).eval()
    yield "weights", [value for _, value in sorted(net.state_dict().items())]
    images = torch.linspace(-1, 1, math.prod(COLOUR)).view(1, *COLOUR)
    with torch.no_grad():
        yield "logits", [net(images)]


def dealt(rule: str) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """Who holds what."""
    labels = np.arange(600) % 10
    domains = np.arange(600) // 7 % 4 if rule == "domain" else None
    found = partition(
        labels,
        rule,
        4,
        7,
        hold_out=0.1,
        min_size=20 if rule.startswith(("iid", "dir")) else 0,
        domains=domains,
    )
    for number, indices in enumerate((*found.clients, found.held_out)):
        yield str(number), [torch.from_numpy(indices)]


def parts_of(uploads: Sequence[Upload]) -> Iterator[tuple[str, Sequence[Tensor]]]:
    for upload in uploads:
        counts = torch.tensor(
            [upload.num_examples, upload.local_steps, *(upload.label_counts or ())]
        )
        yield upload.client, [counts]
        for name, part in sorted(upload.parts.items()):
            yield (
                f"{upload.client} {name} {part.spec}",
                [value for _, value in sorted(part.state.items())],
            )


def cases() -> dict[str, Callable[[], Iterator[tuple[str, Sequence[Tensor]]]]]:
    trainings: dict[str, Callable[[], list[Upload]]] = {
        name: partial(trained, everybody(), net, **flags) for name, (net, flags) in FLAGS.items()
    }
    trainings |= {
        f"one step of {net}": partial(trained, [client("dee", 4, COLOUR)], net, epochs=1)
        for net in FAMILIES
    }
    trainings |= {
        "colours, cropped and flipped": partial(
            trained, everybody(COLOUR), "lenet5", augment="crop-flip"
        ),
        "bfloat16": partial(trained, everybody(), "lenet5", precision="bf16"),
        "statistics": partial(
            trained,
            everybody(times=5),
            "lenet5",
            epochs=1,
            statistics=StatisticsSettings(dimensions=4),
        ),
        "from other classes": from_other_classes,
        "mutual": partial(trained, everybody(), "lenet5", knowledge="mlp:hidden=8,layers=1"),
        "rounds, plain": partial(in_rounds, Objective()),
        "rounds, proximal": partial(in_rounds, Objective(proximal=0.1)),
        "rounds, control": partial(in_rounds, Objective(control=True)),
    }
    for peer, distance in (
        ("updated", "kl"),
        ("detached", "kl"),
        ("attached", "mse"),
        ("accumulated", "mse"),
    ):
        knowledge = ModelSpec.parse("mlp:hidden=8,layers=1")
        mutual = Mutual(knowledge, peer, distance)  # type: ignore[arg-type]
        trainings[f"rounds, mutual, {peer}, {distance}"] = partial(
            in_rounds, Objective(mutual=mutual)
        )
    found: dict[str, Callable[[], Iterator[tuple[str, Sequence[Tensor]]]]] = {
        name: lambda made=made: parts_of(made()) for name, made in trainings.items()
    }
    found |= {
        f"fresh {arch}": partial(fresh_net, arch)
        for arch in ("lenet5", "cnn-mho", "wrn40-1", "vit-tiny:depth=1")
    }
    return found | {f"partition {rule}": partial(dealt, rule) for rule in RULES}


def pin(made: Iterator[tuple[str, Sequence[Tensor]]]) -> Pin:
    """The hash of named tensors; of each its length and two products with fixed numbers."""
    hasher, values = hashlib.sha256(), []
    for name, tensors in made:
        hasher.update(name.encode())
        for tensor in tensors:
            hasher.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            hasher.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        whole = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        places = torch.arange(len(whole), dtype=torch.float64)
        products = (whole.norm(), whole @ (1 + places).sin(), whole @ (2.5 * places).cos())
        values.append([float(f"{float(value):.8g}") for value in products])
    return {"sha256": hasher.hexdigest()[:16], "values": values}


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def differences(found: Mapping[str, Pin], before: Mapping[str, Pin], *, exactly: bool) -> list[str]:
    """The cases that differ, or that only one of the two has."""
    changed = []
    for name in dict.fromkeys([*before, *found]):
        if name not in found or name not in before:
            changed.append(f"{name}: {'not calculated' if name in before else 'not on file'}")
        elif exactly and found[name]["sha256"] != before[name]["sha256"]:
            changed.append(f"{name}: other bits")
        elif not exactly and not _close(found[name]["values"], before[name]["values"]):
            changed.append(f"{name}: other numbers")
    return changed


def _close(found: Sequence[Sequence[float]], before: Sequence[Sequence[float]]) -> bool:
    """Whether the numbers differ by a small part of the length, the first of each three."""
    if len(found) != len(before):
        return False
    return all(
        abs(a - b) <= TOLERANCE * then[0]
        for now, then in zip(found, before, strict=True)
        for a, b in zip(now, then, strict=True)
    )


def advice(changed: Sequence[str], version_on_file: int) -> str:
    """What to do; empty where nothing is."""
    record = "record anew with `python tests/golden/training_pins.py`"
    if version_on_file != TRAINING_VERSION:
        version = f"TRAINING_VERSION is {TRAINING_VERSION}"
        return f"{version}, the pins are of version {version_on_file}: {record}."
    if not changed:
        return ""
    return "\n".join(
        [
            "Clients come out otherwise, and TRAINING_VERSION is what it was:",
            "benches would take old clients for new ones. Undo the change of training; or, where",
            "it is meant, raise TRAINING_VERSION in src/attar/bench/versions.py and",
            f"{record}. A case that is new or gone needs no other version. What differs:",
            *changed,
        ]
    )


@one_thread()
def calculate() -> dict[str, Pin]:
    return {name: pin(made()) for name, made in cases().items()}


def record() -> None:
    """Write the file; training that changed under the version on file is refused."""
    found = calculate()
    before = recorded() if FILE.exists() else {"training_version": None, "cases": {}}
    if before["training_version"] == TRAINING_VERSION:
        both = {name: one for name, one in found.items() if name in before["cases"]}
        known = {name: before["cases"][name] for name in both}
        if changed := differences(both, known, exactly=before["numerics"] == numerics()):
            raise SystemExit(advice(changed, TRAINING_VERSION))
    whole = {"training_version": TRAINING_VERSION, "numerics": numerics(), "cases": found}
    FILE.write_text(
        json.dumps(whole).replace('"cases": {', '"cases": {\n').replace("}, ", "},\n") + "\n"
    )


if __name__ == "__main__":
    record()
