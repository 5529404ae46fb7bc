"""The whole path in a minute: five clients with five nets on a skewed split, four ways to make one model of them."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attar import console, tables
from attar.bundle import read_bundles, write_bundle
from attar.core import AnyMethod, Upload
from attar.data.dataset import Dataset
from attar.data.partition import label_counts, partition
from attar.data.partition_file import write_partition
from attar.data.picture import bubbles
from attar.data.sources import load_data
from attar.errors import RunError
from attar.evaluation import evaluate_on
from attar.files import human_bytes, write_atomic
from attar.fusion import fuse, server_for
from attar.inputs import nets_called
from attar.local.classifier import group_clients
from attar.local.options import LocalTraining
from attar.local.session import train_stack
from attar.local.sharing import client_names, server_images, share_out
from attar.methods import FedDF, FedEns
from attar.models import Classifier
from attar.report.bars import Bar, bars

DATA = "fashion-mini"
RULE = "dirichlet:0.15"
HOLD_OUT = 0.2
NETS = "vit-tiny:patch=7,depth=2,mlp,cnn1,cnn-mho,lenet5"
STUDENT = "lenet5"
TRAINING = LocalTraining(epochs=15, batch_size=64, optimiser="adam", lr=1e-3)
SHOWN: dict[str, AnyMethod] = {
    "ensemble-vote": FedEns(rule="vote"),
    "ensemble-mean-probabilities": FedEns(rule="mean-probabilities"),
    "ensemble-class-share": FedEns(rule="class-share"),
    "feddf": FedDF(steps=1000, lr=2e-3, teacher="class-share"),
}


@dataclass(frozen=True)
class Line:
    """One line of the demo's table."""

    name: str
    what: str
    accuracy: float
    size: int
    kind: str  # client | fused


def run_demo(out: Path, *, seed: int, json: bool) -> None:
    """Train, bundle, inspect, fuse, evaluate; print the table, write uploads, models and pictures to ``out``."""
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty.", fix="name another --out folder, or delete this one")
    begun = time.monotonic()
    dataset = load_data(DATA)
    labels = dataset.train.labels
    dealt = partition(labels, RULE, 5, seed, hold_out=HOLD_OUT, min_size=100)
    write_partition(out / "partition.json", dealt, DATA, labels)
    names = client_names(5)
    counts = label_counts(labels, dealt.clients, len(dataset.classes))
    title = f"{DATA}, {RULE}, seed {seed}"
    write_atomic(out / "partition.svg", bubbles(counts, dataset.classes, names, title))
    if not json:
        tables.show_partition(title, names, counts, dataset.classes)
    paths = _train(dataset, dealt, out / "uploads", seed, json)
    uploads = read_bundles(paths)
    sizes = [path.stat().st_size for path in paths]
    if not json:
        tables.show_uploads(uploads, sizes)

    def accuracy(model: Classifier) -> float:
        return evaluate_on(model, dataset.test, dataset.classes).accuracy

    lines = [
        Line(upload.client, _spec(upload), accuracy(Classifier(upload.parts["classifier"])), size, "client")
        for upload, size in zip(uploads, sizes, strict=True)
    ]
    public = server_images(dataset.train.take(dealt.held_out), f"{DATA}, held out before the split")
    server = server_for(uploads, student=STUDENT, public=public, seed=seed)
    for name, method in SHOWN.items():
        with console.progress(name, quiet=json) as watch:
            fused = fuse(
                uploads,
                method,
                server,
                out=out / "models" / name,
                watch=watch,
                evaluate=accuracy,
                evaluated_on=f"the test part of {DATA}",
            )
        size = (out / "models" / name / "model.safetensors").stat().st_size
        lines.append(Line(name, _what(name), fused.record["accuracy"], size, "fused"))
    labelled = [Bar(f"{x.name}, {x.what}" if x.kind == "client" else x.name, x.accuracy, x.kind) for x in lines]
    picture = bars(labelled, f"Accuracy on the test part of {DATA}")
    write_atomic(out / "accuracy.svg", picture)
    _report(lines, out, time.monotonic() - begun, json)


def _train(dataset: Dataset, dealt: Any, folder: Path, seed: int, json: bool) -> list[Path]:
    """Every client trains its own net and writes its one file."""
    clients = share_out(dataset, dealt)
    for stack in group_clients(clients, nets_called(NETS), TRAINING, seed=seed):
        with console.progress(f"train {stack.clients[0].name}, {stack.spec}", quiet=json) as watch:
            uploads, _ = train_stack(stack, watch=watch)
        for upload in uploads:
            write_bundle(folder / f"{upload.client}.attar", upload)
    return [folder / f"{client.name}.attar" for client in clients]


def _spec(upload: Upload) -> str:
    return str(upload.parts["classifier"].spec)


def _what(name: str) -> str:
    method = SHOWN[name]
    if isinstance(method, FedDF):
        return f"one {STUDENT}, distilled on unlabelled held-out images ({method.steps} steps)"
    return "all five nets side by side"


def _report(lines: list[Line], out: Path, seconds: float, json: bool) -> None:
    best = max(line.accuracy for line in lines if line.kind == "client")
    if json:
        rows = [{"name": x.name, "kind": x.kind, "what": x.what, "accuracy": x.accuracy, "bytes": x.size} for x in lines]
        console.show_json({"seconds": round(seconds, 1), "best_client": best, "lines": rows, "out": str(out)})
        return
    cells = [
        (
            line.name,
            f"alone, {line.what}" if line.kind == "client" else line.what,
            human_bytes(line.size),
            f"{100 * line.accuracy:.1f} %",
            "" if line.kind == "client" else f"{100 * (line.accuracy - best):+.1f}",
        )
        for line in lines
    ]
    columns = ("model", "what", "bytes", "accuracy", "against best client")
    console.show_table(f"Test accuracy on {DATA}", columns, cells, right=columns[2:])
    behind = [line.name for line in lines if line.kind == "fused" and line.accuracy <= best]
    if behind:
        console.say(f"With this seed {', '.join(behind)} did not beat the best client alone.")
    console.say(f"{console.human_seconds(seconds)}. Uploads, models and pictures (partition.svg, accuracy.svg) lie in {out}")
