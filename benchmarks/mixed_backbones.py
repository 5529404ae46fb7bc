"""Accuracy where clients have different frozen backbones: one head for each, and their mixture.

    python benchmarks/backbones.py features efficientnet-lite0 cifar10 -o build/cifar10-lite0
    python benchmarks/backbones.py features efficientnet-lite1 cifar10 -o build/cifar10-lite1
    python benchmarks/mixed_backbones.py build/cifar10-lite0 build/cifar10-lite1 -o results/backbones.json

The clients of a split take the backbones in turn. Beside the mixture stand the heads that one
backbone's clients make alone, and the head if every client had that backbone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from backbones import (
    CLIENTS,
    SPLITS,
    Setup,
    answer,
    make_uploads,
    project,
    read_setup,
    split_clients,
)
from torch import Tensor

from attar import METHODS, fuse
from attar.blocks.ensemble import combine
from attar.core import Mixture, Part, Upload
from attar.training.feature_sums import SumsSettings

HEADS = {"gaussian-head (LDA)": "gaussian-head", "analytic (ridge)": "analytic"}


def measure_split(setups: dict[str, Setup], rule: str, seed: int) -> dict[str, Any]:
    """Accuracy of each head on one split, in percent.

    Args:
        setups: features of the same images by each backbone.
        rule: of the split.
        seed: of the split.

    Returns:
        For each head: the mixture, each backbone's clients alone, and all clients with it.
    """
    plain = SumsSettings()
    by_backbone = {
        name: make_uploads(setup, split_clients(setup.train, rule, CLIENTS, seed), plain)
        for name, setup in setups.items()
    }
    names = list(setups)
    own = {
        name: [
            upload for number, upload in enumerate(uploads) if names[number % len(names)] == name
        ]
        for name, uploads in by_backbone.items()
    }
    mixed = [by_backbone[names[number % len(names)]][number] for number in range(CLIENTS)]
    measured: dict[str, Any] = {}
    for row, method in HEADS.items():
        cells = {"mixture": accuracy(setups, mixed, method)}
        cells |= {
            f"{name}, its clients alone": accuracy(setups, own[name], method) for name in names
        }
        cells |= {
            f"{name}, all clients": accuracy(setups, by_backbone[name], method) for name in names
        }
        measured[row] = cells
    return measured


def accuracy(setups: dict[str, Setup], uploads: list[Upload], method: str) -> float:
    """Of the model that a method makes of the sums, on the test images, in percent."""
    model = next(iter(fuse(uploads, METHODS[method]()).result.models.values()))
    test = next(iter(setups.values())).test
    classes = next(iter(setups.values())).classes
    logits = model_logits(setups, model, classes)
    return round(100 * float((logits.argmax(1) == test.labels).double().mean()), 2)


def model_logits(
    setups: dict[str, Setup], model: Part | Mixture, classes: tuple[str, ...]
) -> Tensor:
    """Of the test images, (N, C)."""
    if isinstance(model, Part):
        return own_logits(setups, model)
    logits = torch.zeros(
        len(model.members), len(next(iter(setups.values())).test.labels), len(classes)
    )
    known = torch.zeros(len(model.members), len(classes), dtype=torch.bool)
    for number, member in enumerate(model.members):
        columns = torch.tensor([classes.index(name) for name in member.classes])
        logits[number][:, columns] = own_logits(setups, member).float()
        known[number, columns] = True
    return combine(model.rule, logits, known, model.weights)


def own_logits(setups: dict[str, Setup], part: Part) -> Tensor:
    """Of a backbone with a head, over its own classes."""
    setup = next(
        setup
        for setup in setups.values()
        if all(
            torch.equal(value, part.state[f"body.{name}"])
            for name, value in setup.backbone.net.state_dict().items()
            if f"body.{name}" in part.state
        )
    )
    return answer(part, project(setup, setup.test.values, SumsSettings()), part.classes)


def main() -> None:
    """Parse the command line, measure, and add the table to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    read = [read_setup(folder) for folder in args.folders]
    setups = {about["backbone"]: setup for setup, about in read}
    tables = json.loads(args.out.read_text()) if args.out.is_file() else {}
    heads = {}
    for rule in SPLITS:
        heads[rule] = measure_split(setups, rule, seed=0)
        print(rule, json.dumps(heads[rule]), flush=True)
    about = [about for _, about in read]
    name = f"{about[0]['data']}-mixed"
    tables[name] = {"features": about, "clients": CLIENTS, "seed": 0, "heads": heads}
    args.out.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
