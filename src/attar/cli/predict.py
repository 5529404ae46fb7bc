"""``attar predict``: classify image files."""

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from tyro.conf import Positional, arg

from attar.cli.arguments import Device, Json, parse_device, read_canonical_images
from attar.cli.output import console
from attar.deploy import (
    MOST_SHOWN,
    Answer,
    draw_thumbnail_of,
    gallery_page,
    rank,
    unsure_first,
)
from attar.errors import SettingsError
from attar.internal.files import write_atomic
from attar.internal.text import escape_cell
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
    gallery: Annotated[
        Path | None, arg(help="A page of images and answers, unsure ones first: an .html file.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Classify image files with a model folder or an upload."""
    if gallery is not None and gallery.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(
            f"--gallery {gallery}: a page ends in .html.",
            fix=f"--gallery {gallery.with_suffix('.html')}",
        )
    device = parse_device(device)
    classifier = Classifier(load_deployable(model)).to(device)
    files, pixels = read_canonical_images(images, classifier.input_shape())
    probabilities = _classify(classifier, pixels, device)
    confidence, choice = probabilities.max(-1)
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
    if gallery is not None:
        _write_gallery(gallery, model, files, rank(probabilities, classifier.classes))

    def show() -> None:
        if out is None and gallery is not None:
            console.say(f"{len(rows)} predictions shown in {gallery}")
        elif out is None:
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


def _write_gallery(
    path: Path, model: Path, files: Sequence[Path], tops: Sequence[tuple[tuple[str, float], ...]]
) -> None:
    """Write the page of the answers that are least sure."""
    pairs = zip(files, tops, strict=True)
    answers = unsure_first(Answer(str(file), top) for file, top in pairs)
    shown = [
        replace(answer, thumbnail=draw_thumbnail_of(Path(answer.image)))
        for answer in answers[:MOST_SHOWN]
    ]
    note = "Unsure answers come first."
    if len(shown) < len(answers):
        note = f"The {len(shown):,} least sure of {len(answers):,} images, unsure ones first."
    write_atomic(path, gallery_page(f"What {model.name} sees", shown, note=note))


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = ["image", "class", "probability"]
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: escape_cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()
