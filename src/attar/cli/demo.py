"""The whole path in a minute: five clients with five nets on a skewed split, nine ways to make
one model of them.

Four clients send a classifier. Side by side they are three ensembles; distilled without any
image they are the students of DENSE, Co-Boosting, FedHydra (a small generator and few epochs, as
the table says) and accord; FedDF has unlabelled images. The fifth client is too weak for a
classifier and sends the decoder of a small autoencoder: FedMHO-SD lets it teach the student of
FedDF.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attar.bench import FORMAT, Record, arrays_json, digest, outcome_json, write_record
from attar.bench import describe_machine as surroundings
from attar.cli.output import console, tables
from attar.core import AnyMethod, Part, Upload
from attar.data.dataset import Dataset
from attar.data.partition import label_counts, partition
from attar.data.partition_file import write_partition
from attar.data.picture import draw_partition
from attar.data.sources import load_data
from attar.errors import RunError
from attar.fusion import Fused, fuse, server_for
from attar.internal.files import write_atomic
from attar.internal.text import human_bytes
from attar.methods import Accord, CoBoosting, Dense, FedDF, FedEns, FedHydra, FedMho
from attar.models import Classifier, Evaluation, evaluate_on, load_description, parse_nets
from attar.report import Bar, bars, write_report
from attar.running import Evaluate, RunOptions
from attar.training import (
    LocalStack,
    LocalTraining,
    client_names,
    server_images,
    share_out,
    stack_classifiers,
    stack_cvaes,
    train_stack,
)
from attar.uploads import read_bundles, write_bundle

DATA = "fashion-mini"
RULE = "dirichlet:0.15"
HOLD_OUT = 0.2
NETS = "vit-tiny:patch=7,depth=2,mlp,cnn1,cvae-small,lenet5"
STUDENT = "lenet5"
CURVE = 10  # points of FedDF's accuracy curve
TRAINING = LocalTraining(epochs=15, batch_size=64, optimiser="adam", lr=1e-3)
SMALL: dict[str, Any] = {
    "epochs": 16,
    "generator_steps": 10,
    "batch_size": 32,
    "generator_width": 16,
}  # a few seconds a method
SHOWN: dict[str, AnyMethod] = {
    "ensemble-vote": FedEns(rule="vote"),
    "ensemble-mean-probabilities": FedEns(rule="mean-probabilities"),
    "ensemble-class-share": FedEns(rule="class-share"),
    "dense": Dense(**SMALL),
    "co-boosting": CoBoosting(**SMALL),
    "fedhydra": FedHydra(**SMALL),
    "accord": Accord(),
    "feddf": FedDF(steps=1000, lr=2e-3, teacher="class-share"),
    "fedmho-sd": FedMho(
        remember="sd", samples=1000, trade_off=0.3
    ),  # the paper's 0.5 is for as many weak as strong clients
}
# of SHOWN: students that learn from a generator's images
GENERATED = {"dense", "co-boosting", "fedhydra"}
# students that never see an image of anybody: the longest fusions
NOT_IN_SHORT = {*GENERATED, "accord"}


@dataclass(frozen=True)
class Line:
    """One line of the demo's table."""

    name: str
    what: str
    accuracy: float | None  # None: a decoder makes images, it recognises none
    size: int
    kind: str  # client | fused


def run_demo(out: Path, *, seed: int, json: bool, short: bool = False) -> None:
    """Train, bundle, inspect, fuse, evaluate; print the table, write uploads, models and
    pictures to ``out``.

    With ``short`` the fusions of ``NOT_IN_SHORT`` are left out; the others give the same
    numbers.
    """
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
    write_atomic(out / "partition.svg", draw_partition(counts, dataset.classes, names, title))
    if not json:
        tables.show_partition(title, names, counts, dataset.classes)
    paths = _train(dataset, dealt, out / "uploads", seed, json)
    uploads = read_bundles(paths)
    sizes = [path.stat().st_size for path in paths]
    if not json:
        tables.show_uploads(uploads, sizes)

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_on(model, dataset.test, dataset.classes)

    lines = [
        _client_line(upload, size, evaluate) for upload, size in zip(uploads, sizes, strict=True)
    ]
    own = {line.name: line.accuracy for line in lines if line.accuracy is not None}
    strong = [upload for upload in uploads if "classifier" in upload.parts]
    public = server_images(dataset.train.take(dealt.held_out), f"{DATA}, held out before the split")
    without = server_for(uploads, student=STUDENT, seed=seed)
    shown = {name: method for name, method in SHOWN.items() if not (short and name in NOT_IN_SHORT)}
    for name, method in shown.items():
        server = replace(without, public=public if method.needs.public_data else None)
        if isinstance(method, FedMho):
            distilled = load_description(out / "models" / "feddf")
            assert isinstance(distilled, Part)
            server = replace(server, initial=distilled)
        with console.progress(name, quiet=json) as watch:
            fused = fuse(
                uploads if isinstance(method, FedMho) else strong,
                method,
                server,
                options=RunOptions(
                    out=out / "models" / name,
                    watch=watch,
                    evaluate=evaluate,
                    evaluate_every=method.steps // CURVE if isinstance(method, FedDF) else None,
                    evaluated_on=f"the test part of {DATA}",
                ),
            )
        write_record(out, _record(name, fused, own))
        size = (out / "models" / name / "model.safetensors").stat().st_size
        lines.append(Line(name, _what(name), fused.record["accuracy"], size, "fused"))
    labelled = [
        Bar(f"{x.name}, {x.what}" if x.kind == "client" else x.name, x.accuracy, x.kind)
        for x in lines
        if x.accuracy is not None
    ]
    picture = bars(labelled, f"Accuracy on the test part of {DATA}")
    write_atomic(out / "accuracy.svg", picture)
    write_report(out, out / "report.html", [])
    _report(lines, out, time.monotonic() - begun, json)


def _record(name: str, fused: Fused, own: Mapping[str, float]) -> Record:
    """A fusion of the demo as the page shows it."""
    told = fused.record
    clients = [{**client, "accuracy": own.get(client["client"])} for client in told["clients"]]
    kept = (
        "method",
        "settings",
        "student",
        "seed",
        "precision",
        "steps",
        "remarks",
        "seconds",
        "seconds_by_phase",
        "ending",
    )
    return {
        **{key: told[key] for key in kept},
        **surroundings("cpu"),
        **outcome_json(fused.evaluations, told["history"]),
        "format": FORMAT,
        "recipe": "demo",
        "row": name,
        "labels": {},
        "key": digest(told["clients"] + [told["settings"]]),
        "name": name,
        "federation": {"data": DATA, "rule": RULE},
        "engine": "inline",
        "clients": clients,
        "classes": told["task"]["classes"],
        "ensemble_accuracy": None,
        "arrays": arrays_json(fused.result),
        "gallery": None,
        "oracle": None,
        "bytes_up": told["bytes_received"],
        "bytes_down": 0,
        "fid": None,
    }


def _train(dataset: Dataset, dealt: Any, folder: Path, seed: int, json: bool) -> list[Path]:
    """Every client trains its own net and writes its one file."""
    clients = share_out(dataset, dealt)
    nets = list(zip(clients, parse_nets(NETS), strict=True))
    strong, weak = (
        [pair for pair in nets if (pair[1].kind == "cvae") is small] for small in (False, True)
    )
    stacks: list[LocalStack] = [
        *stack_classifiers([c for c, _ in strong], [net for _, net in strong], TRAINING, seed=seed)
    ]
    stacks += stack_cvaes([c for c, _ in weak], [net for _, net in weak], seed=seed)
    for stack in stacks:
        with console.progress(f"train {stack.clients[0].name}, {stack.spec}", quiet=json) as watch:
            uploads, _ = train_stack(stack, watch=watch)
        for upload in uploads:
            write_bundle(folder / f"{upload.client}.attar", upload)
    return [folder / f"{client.name}.attar" for client in clients]


def _client_line(upload: Upload, size: int, evaluate: Evaluate) -> Line:
    if "classifier" not in upload.parts:
        return Line(
            upload.client,
            f"sends no classifier but {upload.parts['decoder'].spec}",
            None,
            size,
            "client",
        )
    part = upload.parts["classifier"]
    accuracy = evaluate(Classifier(part)).accuracy
    return Line(upload.client, f"alone, {part.spec}", accuracy, size, "client")


def _what(name: str) -> str:
    method = SHOWN[name]
    if isinstance(method, FedDF):
        return f"one {STUDENT}, distilled on unlabelled held-out images ({method.steps} steps)"
    if isinstance(method, FedMho):
        return f"that {STUDENT}, taught by {method.samples} images of the weak client's decoder"
    if isinstance(method, Accord):
        return f"one {STUDENT}, no image of anybody: taught on drawings of a program ({method.epochs} epochs)"
    if isinstance(method, Dense | CoBoosting | FedHydra):
        return f"one {STUDENT}, no image of anybody: a small generator, {method.epochs} epochs (by default {type(method)().epochs})"
    return "all four classifiers side by side"


def _report(lines: list[Line], out: Path, seconds: float, json: bool) -> None:
    best = max(
        line.accuracy for line in lines if line.kind == "client" and line.accuracy is not None
    )
    if json:
        rows = [
            {
                "name": x.name,
                "kind": x.kind,
                "what": x.what,
                "accuracy": x.accuracy,
                "bytes": x.size,
            }
            for x in lines
        ]
        console.show_json(
            {
                "seconds": round(seconds, 1),
                "best_client": best,
                "lines": rows,
                "out": str(out),
                "report": str(out / "report.html"),
            }
        )
        return
    cells = [
        (
            line.name,
            line.what,
            human_bytes(line.size),
            "" if line.accuracy is None else f"{100 * line.accuracy:.1f} %",
            ""
            if line.kind == "client" or line.accuracy is None
            else f"{100 * (line.accuracy - best):+.1f}",
        )
        for line in lines
    ]
    columns = ("model", "what", "bytes", "accuracy", "against best client")
    console.show_table(f"Test accuracy on {DATA}", columns, cells, right=columns[2:])
    behind = [
        line.name
        for line in lines
        if line.kind == "fused" and line.accuracy is not None and line.accuracy <= best
    ]
    if behind:
        console.say(f"With this seed {', '.join(behind)} did not beat the best client alone.")
        if GENERATED.intersection(behind):
            console.say(
                "Few epochs with a small generator show the way, not what it leads to: docs/results.md has that."
            )
    console.say(
        f"{console.human_seconds(seconds)}. Uploads, models and pictures (partition.svg, accuracy.svg) lie in {out}"
    )
    console.say(f"Report: {out / 'report.html'}")
