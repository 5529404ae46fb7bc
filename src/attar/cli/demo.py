"""``attar demo``: five clients with five nets on a skewed split, and nine ways to fuse them.

Four clients send a classifier. Together they are three ensembles; distilled without any real
image they are the students of DENSE, Co-Boosting, FedHydra (a small generator and few epochs, as
the table says) and accord; FedDF has unlabelled images. The fifth client is too weak for a
classifier and sends the decoder of a small autoencoder: FedMHO-SD lets it teach the student of
FedDF.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from attar.bench import (
    FORMAT,
    Record,
    arrays_json,
    describe_machine,
    digest,
    outcome_json,
    write_record,
)
from attar.cli.arguments import Json, Seed
from attar.cli.demo_backbone import demo_backbone
from attar.cli.output import console, tables
from attar.core import AnyMethod, Images, Part, Server, Upload
from attar.data import draw_partition
from attar.data.dataset import Dataset
from attar.data.partition import Partition, label_counts, partition
from attar.data.partition_file import write_partition
from attar.data.sources import load_data
from attar.errors import RunError
from attar.fusion import Fused, fuse, server_for
from attar.internal.files import write_atomic
from attar.internal.text import human_bytes
from attar.methods import Accord, CoBoosting, Dense, FedDF, FedEns, FedHydra, FedMho
from attar.models import Classifier, Evaluation, evaluate_on, load_description, parse_nets
from attar.report import Bar, draw_bars, write_report
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
CURVE = 10  # points of the accuracy curve of a student
TRAINING = LocalTraining(epochs=15, batch_size=64, optimiser="adam", lr=1e-3)
# a few seconds a method
SMALL: dict[str, Any] = {
    "epochs": 16,
    "generator_steps": 10,
    "batch_size": 32,
    "generator_width": 16,
}
SHOWN: dict[str, AnyMethod] = {
    "ensemble-vote": FedEns(rule="vote"),
    "ensemble-mean-probabilities": FedEns(rule="mean-probabilities"),
    "ensemble-class-share": FedEns(rule="class-share"),
    "dense": Dense(**SMALL),
    # By default every epoch has a fresh generator, for which so few steps are not enough.
    "co-boosting": CoBoosting(**SMALL, variant="paper"),
    "fedhydra": FedHydra(**SMALL),
    "accord": Accord(),
    "feddf": FedDF(steps=1000, lr=2e-3, teacher="class-share"),
    # The paper's trade-off of 0.5 is for as many weak as strong clients.
    "fedmho-sd": FedMho(remember="sd", samples=1000, trade_off=0.3, allocation="labels"),
}
# of SHOWN: students that learn from a generator's images
GENERATED = {"dense", "co-boosting", "fedhydra"}
# students that see no real image: the longest fusions
NOT_IN_SHORT = {*GENERATED, "accord"}
# keys that a record of the demo copies from the record of the fusion
COPIED = (
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


@dataclass(frozen=True)
class Line:
    """One line of the demo's table.

    Attributes:
        name: Of the client or the method.
        what: What the model is.
        accuracy: On the test part; None for a decoder, which classifies nothing.
        size: Bytes of its file.
        kind: "client" or "fused".
    """

    name: str
    what: str
    accuracy: float | None
    size: int
    kind: str


def demo(
    out: Path = Path("demo"),
    *,
    short: Annotated[
        bool,
        arg(help="Leave out the students that never see an image; they take most of the time."),
    ] = False,
    backbone: Annotated[
        str | None,
        arg(
            help="Another demo: three clients send sums of the features of a pre-trained net, "
            "such as efficientnet-lite0, which needs attar[backbone]."
        ),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train five clients with different nets on unequal data, fuse them, and compare methods.

    One client sends a decoder in place of a classifier. Takes two to four minutes on
    two cores; with --backbone there are three clients, and it takes less than a minute.
    """
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty.", fix="name another --out folder, or delete this one")
    if backbone is not None:
        demo_backbone(backbone, out, seed, json=json)
        return
    begun = time.monotonic()
    dataset = load_data(DATA)
    split = _split(dataset, out, seed, quiet=json)
    paths = _train(dataset, split, out / "uploads", seed, quiet=json)
    uploads = read_bundles(paths)
    sizes = [path.stat().st_size for path in paths]
    if not json:
        tables.show_uploads(uploads, sizes)

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_on(model, dataset.test, dataset.classes)

    lines = [
        _client_line(upload, size, evaluate) for upload, size in zip(uploads, sizes, strict=True)
    ]
    alone = {line.name: line.accuracy for line in lines if line.accuracy is not None}
    public = server_images(dataset.train.take(split.held_out), f"{DATA}, held out before the split")
    server = server_for(uploads, student=STUDENT, seed=seed)
    for name, method in SHOWN.items():
        if short and name in NOT_IN_SHORT:
            continue
        fused = _fuse(name, method, uploads, server, public, out, evaluate, quiet=json)
        write_record(out, _record(name, fused, alone))
        size = (out / "models" / name / "model.safetensors").stat().st_size
        lines.append(Line(name, _describe(name), fused.record["accuracy"], size, "fused"))
    _write_pictures(lines, out)
    seconds = time.monotonic() - begun
    best = max(alone.values())
    console.emit(
        _summary(lines, out, seconds, best), lambda: _show(lines, out, seconds, best), json=json
    )


def _split(dataset: Dataset, out: Path, seed: int, *, quiet: bool) -> Partition:
    """Deal out the images to five clients, and write who holds what."""
    labels = dataset.train.labels
    split = partition(labels, RULE, 5, seed, hold_out=HOLD_OUT, min_size=100)
    write_partition(out / "partition.json", split, DATA, labels)
    names = client_names(5)
    counts = label_counts(labels, split.clients, len(dataset.classes))
    title = f"{DATA}, {RULE}, seed {seed}"
    write_atomic(out / "partition.svg", draw_partition(counts, dataset.classes, names, title))
    if not quiet:
        tables.show_partition(title, names, counts, dataset.classes)
    return split


def _train(
    dataset: Dataset, split: Partition, folder: Path, seed: int, *, quiet: bool
) -> list[Path]:
    """Train each client's own net and write its upload."""
    clients = share_out(dataset, split)
    nets = list(zip(clients, parse_nets(NETS), strict=True))
    strong = [(client, net) for client, net in nets if net.kind != "cvae"]
    weak = [(client, net) for client, net in nets if net.kind == "cvae"]
    stacks: list[LocalStack] = [
        *stack_classifiers(
            [client for client, _ in strong], [net for _, net in strong], TRAINING, seed=seed
        ),
        *stack_cvaes([client for client, _ in weak], [net for _, net in weak], seed=seed),
    ]
    for stack in stacks:
        with console.progress(f"train {stack.clients[0].name}, {stack.spec}", quiet=quiet) as watch:
            uploads, _ = train_stack(stack, watch=watch)
        for upload in uploads:
            write_bundle(folder / f"{upload.client}.attar", upload)
    return [folder / f"{client.name}.attar" for client in clients]


def _fuse(
    name: str,
    method: AnyMethod,
    uploads: Sequence[Upload],
    server: Server,
    public: Images,
    out: Path,
    evaluate: Evaluate,
    *,
    quiet: bool,
) -> Fused:
    """Fuse by one method of ``SHOWN``; FedMHO starts from FedDF's student."""
    server = replace(server, public=public if method.needs.public_data else None)
    if isinstance(method, FedMho):
        distilled = load_description(out / "models" / "feddf")
        assert isinstance(distilled, Part)
        server = replace(server, initial=distilled)
    else:
        uploads = [upload for upload in uploads if "classifier" in upload.parts]
    with console.progress(name, quiet=quiet) as watch:
        return fuse(
            uploads,
            method,
            server,
            options=RunOptions(
                out=out / "models" / name,
                watch=watch,
                evaluate=evaluate,
                evaluate_every=_steps_between_points(method),
                evaluated_on=f"the test part of {DATA}",
            ),
        )


def _steps_between_points(method: AnyMethod) -> int | None:
    """Steps between two points of the curve; None: the method takes no steps."""
    if isinstance(method, FedDF):
        return method.steps // CURVE
    if isinstance(method, Accord | Dense | CoBoosting | FedHydra):
        return max(1, method.epochs // CURVE)
    return None


def _record(name: str, fused: Fused, alone: Mapping[str, float]) -> Record:
    """A fusion of the demo as the page shows it; ``alone``: each client's own accuracy."""
    record = fused.record
    clients = [{**client, "accuracy": alone.get(client["client"])} for client in record["clients"]]
    return {
        **{key: record[key] for key in COPIED},
        **describe_machine("cpu"),
        **outcome_json(fused.evaluations, record["history"]),
        "format": FORMAT,
        "recipe": "demo",
        "row": name,
        "labels": {},
        "key": digest(record["clients"] + [record["settings"]]),
        "name": name,
        "federation": {"data": DATA, "rule": RULE},
        "engine": "inline",
        "clients": clients,
        "classes": record["task"]["classes"],
        "ensemble_accuracy": None,
        "arrays": arrays_json(fused.result),
        "gallery": None,
        "oracle": None,
        "bytes_up": record["bytes_received"],
        "bytes_down": 0,
        "fid": None,
    }


def _client_line(upload: Upload, size: int, evaluate: Evaluate) -> Line:
    if "classifier" not in upload.parts:
        what = f"sends no classifier but {upload.parts['decoder'].spec}"
        return Line(upload.client, what, None, size, "client")
    part = upload.parts["classifier"]
    accuracy = evaluate(Classifier(part)).accuracy
    return Line(upload.client, f"alone, {part.spec}", accuracy, size, "client")


def _describe(name: str) -> str:
    """What a method of ``SHOWN`` makes, for the table."""
    method = SHOWN[name]
    if isinstance(method, FedDF):
        return f"one {STUDENT}, distilled on unlabelled held-out images ({method.steps} steps)"
    if isinstance(method, FedMho):
        return f"that {STUDENT}, taught by {method.samples} images of the weak client's decoder"
    if isinstance(method, Accord):
        return f"one {STUDENT}, no real image: taught on drawn sketches ({method.epochs} epochs)"
    if isinstance(method, Dense | CoBoosting | FedHydra):
        return (
            f"one {STUDENT}, no real image: a small generator, {method.epochs} epochs "
            f"(by default {type(method)().epochs})"
        )
    return "all four classifiers together"


def _write_pictures(lines: Sequence[Line], out: Path) -> None:
    """The accuracies as bars, and the report."""
    entries = [
        Bar(
            label=f"{line.name}, {line.what}" if line.kind == "client" else line.name,
            value=line.accuracy,
            kind=line.kind,
        )
        for line in lines
        if line.accuracy is not None
    ]
    entries.sort(key=lambda bar: -bar.value)
    write_atomic(out / "accuracy.svg", draw_bars(entries, f"Accuracy on the test part of {DATA}"))
    write_report(out, out / "report.html", [], f"The demo: five clients share out {DATA}")


def _summary(lines: Sequence[Line], out: Path, seconds: float, best: float) -> dict[str, Any]:
    """For ``--json``; ``best``: the best client's accuracy."""
    rows = [
        {
            "name": line.name,
            "kind": line.kind,
            "what": line.what,
            "accuracy": line.accuracy,
            "bytes": line.size,
        }
        for line in lines
    ]
    return {
        "seconds": round(seconds, 1),
        "best_client": best,
        "lines": rows,
        "out": str(out),
        "report": str(out / "report.html"),
    }


def _show(lines: Sequence[Line], out: Path, seconds: float, best: float) -> None:
    columns = ("model", "what", "bytes", "accuracy", "against best client")
    cells = [
        (line.name, line.what, human_bytes(line.size), *_accuracy_cells(line, best))
        for line in lines
    ]
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
                "The demo uses shortened schedules and a small generator; "
                "docs/results.md has the full runs."
            )
    console.say(
        f"{console.human_seconds(seconds)}. "
        f"Uploads, models and pictures (partition.svg, accuracy.svg) are in {out}"
    )
    console.say(f"Report: {out / 'report.html'}")


def _accuracy_cells(line: Line, best: float) -> tuple[str, str]:
    """The accuracy, and of a fused model its difference to the best client."""
    if line.accuracy is None:
        return ("", "")
    difference = "" if line.kind == "client" else f"{100 * (line.accuracy - best):+.1f}"
    return (f"{100 * line.accuracy:.1f} %", difference)
