"""``attar demo --backbone NAME``: three clients send sums of a pre-trained net's features.

The server solves for one head. Beside it stand what the clients could do otherwise with the same
images: a head each, an ensemble of these heads, and nets from scratch, which accord distils into
one. The test images pass through the backbone once, for all heads.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from attar.backbones import Backbone, fast_copy, load_backbone
from attar.cli.output import console, tables
from attar.core import AnyMethod, Mixture, Part, Upload
from attar.data import Dataset, Partition, Split, label_counts, load_data, partition
from attar.data.streams import stream_split
from attar.fusion import Fused, fuse, server_for
from attar.internal.text import human_bytes
from attar.methods import Accord, Analytic, GaussianHead, LocalHeads
from attar.models import Classifier, evaluate_on
from attar.nets import Net, project_features
from attar.running import RunOptions
from attar.training import (
    LocalTraining,
    SumsPass,
    SumsSettings,
    client_names,
    share_out,
    sum_features,
    train_classifiers,
)
from attar.uploads import write_bundle

DATA = "fashion-mini"
RULE = "dirichlet:0.1"
CLIENTS = 3
HOLD_OUT = 0.9  # of the 6,000 training images: the clients have 600
TESTED = 300  # images
STUDENT = "lenet5"
TRAINING = LocalTraining(epochs=40, batch_size=32, optimiser="adam", lr=1e-3)
BATCH = 16
FROM_SCRATCH = Accord()
FUSED: dict[str, tuple[AnyMethod, str]] = {
    "gaussian-head": (GaussianHead(contributions=0), "one head from all sums (LDA)"),
    "analytic": (Analytic(contributions=0), "one head from all sums (ridge)"),
    "local-heads": (LocalHeads(), "the clients' own heads together"),
}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        model: the client or the method.
        what: the model is.
        sent: bytes of all files that it was made from; None where nothing was sent.
        seconds: at the server.
        accuracy: on the test images.
    """

    model: str
    what: str
    sent: int | None
    seconds: float | None
    accuracy: float


def demo_backbone(name: str, out: Path, seed: int, *, json: bool) -> None:
    """Sum, fuse and compare.

    Args:
        name: of the backbone.
        out: an empty folder, or none yet.
        seed: of the split and of the nets from scratch.
        json: whether to print for machines, and no progress.

    Raises:
        SpecError: the backbone or its package is missing.
    """
    backbone = load_backbone(name)
    begun = time.monotonic()
    dataset = load_data(DATA)
    labels = dataset.train.labels
    split = partition(labels, RULE, CLIENTS, seed, hold_out=HOLD_OUT, min_size=100)
    names = client_names(CLIENTS)
    if not json:
        counts = label_counts(labels, split.clients, len(dataset.classes))
        tables.show_partition(f"{DATA}, {RULE}, seed {seed}", names, counts, dataset.classes)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(dataset.test))[:TESTED])
    test = dataset.test.take(chosen)
    uploads: list[Upload] = []
    sizes: dict[str, int] = {}
    for client, indices in zip(names, split.clients, strict=True):
        stream = stream_split(dataset.train.take(indices), dataset.classes, DATA)
        job = SumsPass(stream, backbone, SumsSettings(), client)
        with console.progress(f"{backbone.name}, {client}", quiet=json) as watch:
            uploads.append(sum_features(job, watch=watch))
        sizes[client] = _write(out / "sums" / f"{client}.attar", uploads[-1])
    phi = _features(backbone, test)
    rows = _rows_of_heads(uploads, sizes, phi, test, dataset.classes, out)
    rows += _rows_from_scratch(dataset, split, test, out, seed, quiet=json)
    seconds = time.monotonic() - begun
    record = {
        "backbone": backbone.name,
        "seconds": round(seconds, 1),
        "rows": [asdict(row) for row in rows],
        "out": str(out),
    }
    console.emit(record, lambda: _show(backbone, rows, seconds, out), json=json)


def _write(path: Path, upload: Upload) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bundle(path, upload)
    return path.stat().st_size


@torch.inference_mode()
def _features(backbone: Backbone, test: Split) -> Tensor:
    """phi of the test images, (N, D)."""
    net = cast(Net, fast_copy(backbone.extractor, "cpu"))
    done = []
    for pixels in torch.from_numpy(test.images).split(BATCH):
        inputs = backbone.preprocess(pixels.permute(0, 3, 1, 2).float() / 255)
        done.append(net.features(inputs.contiguous(memory_format=torch.channels_last)))
    return project_features(torch.cat(done), centre=backbone.centre, dimensions=0, clip=0.0)


def _rows_of_heads(
    uploads: Sequence[Upload],
    sizes: Mapping[str, int],
    phi: Tensor,
    test: Split,
    classes: tuple[str, ...],
    out: Path,
) -> list[Row]:
    truth = torch.from_numpy(test.labels)

    def accuracy(fused: Fused) -> float:
        model = next(iter(fused.result.models.values()))
        answers = answer_with_heads(model, phi, classes).argmax(1)
        return float((answers == truth).double().mean())

    rows = []
    for method, (how, what) in FUSED.items():
        begun = time.monotonic()
        fused = fuse(uploads, how, options=RunOptions(out=out / "models" / method))
        seconds = time.monotonic() - begun
        rows.append(Row(method, what, sum(sizes.values()), seconds, accuracy(fused)))
    for upload in uploads:
        fused = fuse([upload], FUSED["gaussian-head"][0])
        rows.append(Row(upload.client, "its own head alone", None, None, accuracy(fused)))
    return rows


def answer_with_heads(model: Part | Mixture, phi: Tensor, classes: tuple[str, ...]) -> Tensor:
    """Scores of a head, or the mean of the probabilities of several, (N, C).

    Args:
        model: a backbone with a head, or a mixture of such.
        phi: features of the backbone, (N, D).
        classes: in the order of the scores.
    """
    if isinstance(model, Part):
        weight, bias = (model.state[f"head.{name}"].double() for name in ("weight", "bias"))
        scores = torch.full((len(phi), len(classes)), -torch.inf, dtype=torch.float64)
        scores[:, [classes.index(name) for name in model.classes]] = phi @ weight.T + bias
        return scores
    members = [answer_with_heads(member, phi, classes).softmax(1) for member in model.members]
    known = torch.tensor([[name in part.classes for name in classes] for part in model.members])
    total: Tensor = torch.stack(members).sum(0) / known.sum(0).clamp(min=1)
    return total


def _rows_from_scratch(
    dataset: Dataset, split: Partition, test: Split, out: Path, seed: int, *, quiet: bool
) -> list[Row]:
    """A net for each client, and accord's student of the three."""
    clients = share_out(dataset, split)
    with console.progress(f"train {CLIENTS} {STUDENT} from scratch", quiet=quiet) as watch:
        uploads = train_classifiers(clients, [STUDENT] * CLIENTS, TRAINING, seed=seed, watch=watch)
    sent = sum(_write(out / "scratch" / f"{one.client}.attar", one) for one in uploads)
    alone = [
        evaluate_on(Classifier(one.parts["classifier"]), test, dataset.classes).accuracy
        for one in uploads
    ]
    begun = time.monotonic()
    with console.progress("accord", quiet=quiet) as watch:
        fused = fuse(
            uploads,
            FROM_SCRATCH,
            server_for(uploads, student=STUDENT, seed=seed),
            options=RunOptions(out=out / "models" / "accord", watch=watch),
        )
    seconds = time.monotonic() - begun
    accuracy = evaluate_on(fused.model, test, dataset.classes).accuracy
    return [
        Row("accord", f"one {STUDENT} from scratch, no image sent", sent, seconds, accuracy),
        Row("the best client", f"its own {STUDENT} from scratch", None, None, max(alone)),
    ]


def _show(backbone: Backbone, rows: Sequence[Row], seconds: float, out: Path) -> None:
    columns = ("model", "what", "sent", "server", "accuracy")
    cells = [
        (
            row.model,
            row.what,
            "" if row.sent is None else human_bytes(row.sent),
            "" if row.seconds is None else console.human_seconds(row.seconds),
            f"{100 * row.accuracy:.1f} %",
        )
        for row in rows
    ]
    title = f"Accuracy on {TESTED} test images of {DATA}, {backbone.name}"
    console.show_table(title, columns, cells, right=columns[2:])
    console.say(
        "The heads from all sums are the same for every split of these images over the clients."
    )
    console.say(f"{console.human_seconds(seconds)}. Files and models are in {out}")
