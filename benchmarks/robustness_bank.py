"""Clients for the measurements of the robustness report: trained once, kept under build/.

    python benchmarks/robustness_bank.py

Each split of fashion-mini gives every client each of three nets after 1, 4, 12 and 25 epochs, so
that a federation can mix nets and training lengths at will. Three clients of each split are also
trained on labels moved by three classes, and with a backdoor (a 4 x 4 patch that means one class).
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import attar
from attar.core import Upload
from attar.data import Dataset
from attar.training import ClientData

FOLDER = Path("build/robustness-bank")
STAGES = (1, 3, 8, 13)  # epochs, each from the weights of the stage before: 1, 4, 12 and 25 in all
LENGTHS = (1, 4, 12, 25)
BAD = 3  # clients of a split that are also trained badly
POISONED_EPOCHS = 8  # of a backdoor, after the last stage
PATCH = 4
RULES = ("iid", "dirichlet:0.1", "dirichlet:0.3", "dirichlet:0.5", "classes:4")
TWO_CLASSES = ((0, 6), (7, 9), (1, 8), (2, 4), (0, 3), (5, 7))


@dataclass(frozen=True)
class Place:
    """A split of fashion-mini, and how its clients train."""

    name: str
    rule: str
    clients: int
    seed: int
    nets: tuple[str, ...]
    training: attar.LocalTraining
    classes: tuple[int, ...] = ()  # of the ten; empty: all


def places() -> list[Place]:
    """The splits: seven with ten classes, six with two."""
    sgd = attar.LocalTraining(batch_size=64, optimiser="sgd", lr=0.05)
    adam = attar.LocalTraining(batch_size=64, optimiser="adam", lr=2e-3)
    ten = [
        Place(
            name=f"ten-{number}",
            rule=RULES[number % len(RULES)],
            clients=5 + number % 6,
            seed=number,
            nets=("lenet5", "mlp", "cnn-dense")
            if number % 4 == 3
            else ("lenet5", "mlp", "cnn-mho"),
            training=(sgd, adam)[number % 2],
        )
        for number in range(7)
    ]
    two = [
        Place(
            name=f"two-{number}",
            rule=("iid", "dirichlet:0.5", "dirichlet-client:1")[number % 3],
            clients=5 + number % 4,
            seed=100 + number,
            nets=("lenet5", "mlp", "cnn-mho"),
            training=(adam, sgd)[number % 2],
            classes=pair,
        )
        for number, pair in enumerate(TWO_CLASSES)
    ]
    return [place for group in zip(ten, two, strict=False) for place in group] + ten[len(two) :]


@cache
def clients_of(place: Place) -> list[ClientData]:
    """The clients of a split with their images."""
    data = attar.load_data("fashion-mini")
    if place.classes:
        data = only(data, place.classes)
    parts = attar.partition(data.train.labels, place.rule, clients=place.clients, seed=place.seed)
    return attar.share_out(data, parts)


def only(data: Dataset, chosen: Sequence[int]) -> Dataset:
    """The images of some classes alone."""
    names = tuple(data.classes[label] for label in chosen)
    splits = {}
    for part in ("train", "test"):
        split = getattr(data, part)
        rows = [row for row, label in enumerate(split.labels) if label in chosen]
        kept = split.take(rows)
        splits[part] = replace(kept, labels=np.searchsorted(chosen, kept.labels))
    return replace(data, classes=names, **splits)


def train_honest(place: Place, clients: Sequence[ClientData], net: str) -> list[list[Upload]]:
    """The uploads of all clients after each stage: (stages, clients)."""
    stages = []
    before: list[Upload] = []
    for epochs in STAGES:
        before = train_further(place, clients, net, epochs, before)
        stages.append(before)
    return stages


def train_further(
    place: Place, clients: Sequence[ClientData], net: str, epochs: int, before: Sequence[Upload]
) -> list[Upload]:
    """Train the clients from where each stands; fresh nets where there is nothing before."""
    training = replace(place.training, epochs=epochs)
    if not before:
        return attar.train_classifiers(clients, [net] * len(clients), training, seed=place.seed)
    return [
        attar.train_classifiers(
            [client], [net], training, seed=place.seed, initial=upload.parts["classifier"]
        )[0]
        for client, upload in zip(clients, before, strict=True)
    ]


def flipped(client: ClientData) -> ClientData:
    """The same images, each label moved on by three."""
    return replace(client, labels=(client.labels + 3) % len(client.classes))


def poisoned(client: ClientData, target: int, corner: int) -> ClientData:
    """The images, and every second once more with the trigger and the class ``target``."""
    marked = add_trigger(client.pixels[::2], corner)
    return replace(
        client,
        pixels=torch.cat([client.pixels, marked]),
        labels=torch.cat([client.labels, torch.full((len(marked),), target)]),
    )


def add_trigger(pixels: Tensor, corner: int) -> Tensor:
    """Images with a white 4 x 4 patch, black in its inner 2 x 2, in one of four corners."""
    marked = pixels.clone()
    size = pixels.shape[-1]
    top = (1, size - PATCH - 1)[corner // 2]
    left = (1, size - PATCH - 1)[corner % 2]
    marked[..., top : top + PATCH, left : left + PATCH] = 255
    marked[..., top + 1 : top + 3, left + 1 : left + 3] = 0
    return marked


def backdoor_of(place: Place, row: int) -> tuple[int, int]:
    """Target class and corner of the backdoor of a client."""
    number = len(place.classes) or 10
    return (place.seed + 3 * row + 8) % number, (place.seed + row) % 4


def train_bad(
    place: Place, clients: Sequence[ClientData], honest: dict[str, list[list[Upload]]]
) -> dict[str, list[Upload]]:
    """The first clients of a split with moved labels and with a backdoor, nets in turn."""
    bad: dict[str, list[Upload]] = {"labels": [], "backdoor": []}
    for row in range(BAD):
        net = place.nets[row % len(place.nets)]
        training = replace(place.training, epochs=LENGTHS[2])
        (liar,) = attar.train_classifiers([flipped(clients[row])], [net], training, seed=place.seed)
        bad["labels"].append(liar)
        target, corner = backdoor_of(place, row)
        (traitor,) = attar.train_classifiers(
            [poisoned(clients[row], target, corner)],
            [net],
            replace(place.training, epochs=POISONED_EPOCHS),
            seed=place.seed,
            initial=honest[net][-1][row].parts["classifier"],
        )
        counts = honest[net][-1][row]
        bad["backdoor"].append(
            replace(traitor, num_examples=counts.num_examples, label_counts=counts.label_counts)
        )
    return bad


@cache
def load(place: Place) -> tuple[dict[str, list[list[Upload]]], dict[str, list[Upload]]]:
    """The honest clients by net, stage and client, and the bad ones by attack; trained if new."""
    path = FOLDER / f"{place.name}.pt"
    if not path.exists():
        clients = clients_of(place)
        honest = {net: train_honest(place, clients, net) for net in place.nets}
        kept = (honest, train_bad(place, clients, honest))
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(kept, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
    honest, bad = torch.load(path, weights_only=False)  # written by the line above
    return honest, bad


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for place in places():
        begun = time.process_time()
        load(place)
        print(f"{place}: {time.process_time() - begun:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
