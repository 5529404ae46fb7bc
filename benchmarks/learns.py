"""Whether ``attar train``'s default settings train a net: nets x numbers of images, one table.

    python benchmarks/learns.py --images 60,200,1000,10000 --device cuda --out results/learns.jsonl
    python benchmarks/learns.py --nets lenet5,mlp --images 60 --set optimiser=sgd,lr=0.01

Each cell trains one client on so many images, drawn from the training images (the same for all
nets), and measures it on test images. A row of --out is one cell; cells that it has are not run
again. "stuck" marks a net at the share of one class where lenet5 of the same images is not.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attar.core import ModelSpec
from attar.data.sources import load_data
from attar.models import Classifier, evaluate
from attar.nets import NETS
from attar.settings import pairs
from attar.training import (
    ClientData,
    TrainingFlags,
    judge,
    make_client,
    make_stacks,
    train_stack,
)

OTHERS = ("graph", "frozen-backbone")  # have no weights of their own to train from a name
STUCK = 0.1  # of the way from chance to 1


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", default="cifar10")
    words.add_argument("--nets", default=",".join(names_of_nets()))
    words.add_argument("--images", default="60,200,1000")
    words.add_argument("--test", type=int, default=2000)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--device", default="cpu")
    words.add_argument("--precision", default="fp32")
    words.add_argument("--set", default="", help="Settings of training: lr=0.01,optimiser=sgd")
    words.add_argument("--out", type=Path)
    asked = words.parse_args()
    data = load_data(asked.data)
    whole = make_client("client", data.train, data.classes)
    test = take(make_client("test", data.test, data.classes), asked.test, seed=1)
    before = (
        [json.loads(line) for line in asked.out.read_text().splitlines()]
        if (asked.out is not None and asked.out.exists())
        else []
    )
    rows = []
    for images in map(int, asked.images.split(",")):
        for net in asked.nets.split(","):
            what = {
                "data": asked.data,
                "net": net,
                "images": images,
                "seed": asked.seed,
                "set": asked.set,
            }
            row = next((one for one in before if what.items() <= one.items()), None)
            if row is None:
                row = {**what, **run(take(whole, images, asked.seed), test, net, asked)}
                if asked.out is not None:
                    with asked.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            rows.append(row)
            print(line(row), flush=True)
    for row in rows:
        if is_stuck(row, rows):
            print(f"stuck: {row['net']} with {row['images']} images")


def names_of_nets() -> list[str]:
    return [
        name for name, entry in NETS.items() if entry.kind == "classifier" and name not in OTHERS
    ]


def take(client: ClientData, number: int, seed: int) -> ClientData:
    """Some of a client's images, the same for all nets."""
    chosen = torch.randperm(len(client.labels), generator=torch.Generator().manual_seed(seed))
    rows = chosen[:number].sort().values
    return ClientData(client.name, client.pixels[rows], client.labels[rows], client.classes)


def run(client: ClientData, test: ClientData, net: str, asked: Any) -> dict[str, Any]:
    """Train one client, and measure it."""
    begun = time.monotonic()
    flags = TrainingFlags(**parsed(asked.set))
    (stack,) = make_stacks(
        [client],
        [ModelSpec.parse(net)],
        flags,
        preset="auto",
        seed=asked.seed,
        device=asked.device,
        initial=None,
        suited=True,
    )
    how = {name: value for name, value in asdict(stack.training).items() if value is not None}
    try:
        (upload,), _ = train_stack(stack, precision=asked.precision)
    except Exception as error:  # a cell that fails is a row of the table, not its end
        return {"error": str(error), "training": how}
    part = upload.parts["classifier"]
    verdict = judge(part, client, stack.training, seed=asked.seed, device=asked.device)
    measured = evaluate(
        Classifier(part).to(asked.device),
        test.pixels,
        test.labels,
        test.classes,
        device=asked.device,
    )
    return {
        "test": round(measured.accuracy, 4),
        "own": round(verdict.own, 4),
        "held_out": verdict.held_out,
        "outcome": verdict.outcome,
        "steps": upload.local_steps,
        "seconds": round(time.monotonic() - begun, 1),
        "training": how,
    }


def parsed(text: str) -> dict[str, Any]:
    """Settings of ``--set``, as values of Python."""
    values = pairs(text.split(",")) if text else {}
    kinds = {"optimiser": str, "schedule": str, "augment": str}
    whole = ("epochs", "min_steps", "batch_size", "patience")
    return {
        name: kinds.get(name, int if name in whole else float)(value)
        for name, value in values.items()
    }


def line(row: dict[str, Any]) -> str:
    name = f"{row['data']:14} {row['net']:18} {row['images']:6} {row['set']:30}"
    if "error" in row:
        return f"{name} {row['error']}"
    how = row["training"]
    return (
        f"{name} test {100 * row['test']:5.1f} %  own {100 * row['own']:5.1f} %  "
        f"{row['outcome']:11} {how['epochs']:4} epochs, batch {how['batch_size']:3}, "
        f"{row['steps']} steps sent, {row['seconds']} s"
    )


def is_stuck(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether a net learned nothing from images that lenet5 learned from."""
    chance = 0.1
    least = chance + STUCK * (1 - chance)
    same = [one for one in rows if one["images"] == row["images"] and one["net"] == "lenet5"]
    taught = any(one.get("own", 0.0) > least for one in same)
    failed = row.get("outcome") in ("one class", "nothing", "diverged") or "error" in row
    return taught and failed


if __name__ == "__main__":
    main()
