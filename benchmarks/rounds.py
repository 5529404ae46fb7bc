"""Seconds of a round of FedKEM: local training, fusion, and the rest (evaluation, files).

    python benchmarks/rounds.py --device cuda old-tf32-4 new-bf16-4 new-bf16-12 new-bf16-4-stacked

Random images of the size of CIFAR-10, dealt by dirichlet:0.1. A form is PATH-PRECISION-STREAMS:
"old" records halves of steps and runs last batches eagerly, "new" records whole steps
(src/attar/training/pairs.py), in which STREAMS nets run at the same time; "-stacked": knowledge
networks run as one stack instead of in streams. The first rounds search for kernels and record; the
means are those of the last half. With --profile the kernels of the last round are listed by their
time (take --epochs 1: a round has a million of them). What was measured: docs/speed.md.
"""

import argparse
import json
import statistics

import torch
from torch.profiler import ProfilerActivity, profile

from attar import METHODS, LocalTraining, ModelSpec, Rounds, RunOptions, ServerOptions
from attar.blocks.execution import streams
from attar.core import Images
from attar.data.partition import partition
from attar.federation import federate
from attar.models import Classifier, Evaluation, evaluate
from attar.training import ClientData, client_names, pairs

SHAPE = (3, 32, 32)
CLASSES = tuple("0123456789")
PARTS = ("train_seconds", "fuse_seconds", "rest", "seconds")


def choose(form: str) -> str:
    """Set what a form says; return its precision."""
    path, precision, number, *more = form.split("-")
    pairs.RECORD_WHOLE_STEPS = {"new": True, "old": False}[path]
    pairs.STREAMS = int(number)
    # between the products of resnet20 (41 million) and those of vgg11 (153 million)
    streams.MIN_PRODUCTS = 60_000_000 if "stacked" in more else 8_000_000
    return precision


def images(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (number, *SHAPE), generator=draws, dtype=torch.uint8)
    return pixels, torch.randint(0, len(CLASSES), (number,), generator=draws)


def rounds(form: str, given: argparse.Namespace) -> list[dict[str, float]]:
    precision = choose(form)
    pixels, labels = images(given.images, 0)
    split = partition(labels.numpy(), "dirichlet:0.1", given.clients, 0, min_size=10)
    clients = [
        ClientData(name, pixels[rows], labels[rows], CLASSES)
        for name, rows in zip(client_names(given.clients), split.clients, strict=True)
    ]
    public, known = images(5000, 1)
    test, truth = images(10_000, 2)
    test = test.to(given.device)

    ended = []
    kernels = profile(
        activities=[ProfilerActivity.CUDA if "cuda" in given.device else ProfilerActivity.CPU]
    )

    def measure(model: Classifier) -> Evaluation:
        ended.append(model)  # called at the end of each round
        if given.profile and len(ended) == given.rounds - 1:
            kernels.start()
        elif given.profile and len(ended) == given.rounds:
            kernels.stop()
            print(kernels.key_averages().table(sort_by=given.profile, row_limit=25))
        return evaluate(
            model, test, truth, CLASSES, model_classes=model.classes, device=given.device
        )

    done = federate(
        clients,
        [ModelSpec.parse(given.net)] * given.clients,
        METHODS["fedkem"](variant=given.variant, knowledge=given.knowledge),
        Rounds(given.rounds, fraction=0.4),
        training=LocalTraining(epochs=given.epochs, batch_size=64, augment="reflect-crop-flip"),
        server=ServerOptions(public=Images(public, known, "random"), precision=precision),
        device=given.device,
        options=RunOptions(evaluate=measure),
    )
    found = []
    for record in done.record["rounds"]:
        rest = record["seconds"] - record["train_seconds"] - record["fuse_seconds"]
        found.append({part: {**record, "rest": rest}[part] for part in PARTS})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("forms", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--net", default="vgg11")
    parser.add_argument("--knowledge", default="resnet20")
    parser.add_argument("--variant", default="paper")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--images", type=int, default=45_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--profile",
        nargs="?",
        const="self_device_time_total",
        help="by this column of the profiler",
    )
    given = parser.parse_args()
    for form in given.forms:
        found = rounds(form, given)
        for number, row in enumerate(found, 1):
            print(
                form, number, json.dumps({part: round(row[part], 2) for part in PARTS}), flush=True
            )
        later = found[len(found) // 2 :]
        means = {part: round(statistics.fmean(row[part] for row in later), 2) for part in PARTS}
        print(form, "mean of the last", len(later), json.dumps(means), flush=True)


if __name__ == "__main__":
    main()
