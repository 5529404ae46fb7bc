"""``attar predict``: classify image files."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from tyro.conf import Positional, arg

from attar.cli.arguments import Device, Json, parse_device, read_canonical_images
from attar.cli.output import console
from attar.internal.files import write_atomic
from attar.models import Classifier, load_deployable

BATCH = 256


def predict(
    model: Positional[Path],
    images: Positional[tuple[Path, ...]],
    /,
    *,
    out: Annotated[
        Path | None, arg(aliases=["-o"], help="A CSV file; standard output unless given.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Classify image files with a model folder or an upload."""
    device = parse_device(device)
    classifier = Classifier(load_deployable(model)).to(device)
    files, pixels = read_canonical_images(images, classifier.input_shape())
    confidence, choice = _classify(classifier, pixels, device).max(-1)
    rows = [
        {
            "image": str(file),
            "class": classifier.classes[index],
            "probability": round(probability, 6),
        }
        for file, index, probability in zip(
            files, choice.tolist(), confidence.tolist(), strict=True
        )
    ]

    def show() -> None:
        if out is None:
            sys.stdout.write(_as_csv(rows))
        else:
            write_atomic(out, _as_csv(rows))
            console.say(f"{len(rows)} predictions written to {out}")

    console.emit(rows, show, json=json)


def _classify(classifier: Classifier, pixels: Tensor, device: str) -> Tensor:
    """Probabilities (N, C), on the CPU."""
    with torch.inference_mode():
        batches = torch.split(pixels, BATCH)
        return torch.cat([classifier(batch.to(device)).softmax(-1).cpu() for batch in batches])


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = ["image", "class", "probability"]
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
