"""Synthetic images at the points of the accuracy curve, as one picture beside the record."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from attar.bench.records import Record
from attar.core import Result
from attar.internal.files import write_atomic
from attar.models import draw_sheet

MOST_IMAGES = 10  # of an epoch
MOST_ROWS = 8  # epochs
FOLDER = "looks"  # in a run's folder


def save_epoch_images(run: Path) -> Callable[[str, int, Result], None]:
    """Make a function that saves a row of synthetic images at each evaluation.

    Args:
        run: The run's folder. Rows are there so that a run that is resumed still has them.
    """

    def save(phase: str, step: int, result: Result) -> None:
        if not result.images:
            return
        images = next(iter(result.images.values()))
        flat = images.flatten(0, 1) if images.ndim == 5 else images
        # Evenly from first to last, because the images of a class follow each other.
        count = min(MOST_IMAGES, len(flat))
        places = torch.linspace(0, len(flat) - 1, count).long().to(flat.device)
        levels = flat[places].detach().cpu().float().clamp(0, 1) * 255
        folder = run / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{step:07d}.npy", levels.round().to(torch.uint8).numpy())

    return save


def draw_epoch_images(run: Path, file: Path) -> Record | None:
    """Draw the saved rows as one picture, an epoch in each row.

    Args:
        run: The run's folder.
        file: The picture.

    Returns:
        What the record says of the picture; None where no images were saved. Images that do not
        change are drawn once.
    """
    rows = [(int(path.stem), np.load(path)) for path in sorted((run / FOLDER).glob("*.npy"))]
    changed = [
        row for before, row in pairwise([(0, None), *rows]) if not np.array_equal(before[1], row[1])
    ]
    if not changed:
        return None
    step = (len(changed) - 1) / max(1, MOST_ROWS - 1)
    chosen = [changed[place] for place in sorted({round(i * step) for i in range(MOST_ROWS)})]
    images = [torch.from_numpy(row) for _, row in chosen]
    width = min(len(row) for row in images)
    picture = draw_sheet(torch.stack([row[:width] for row in images]).float() / 255)
    write_atomic(file, picture)
    return {"file": file.name, "steps": [step for step, _ in chosen]}
