"""The pictures of a run folder: synthetic images as PNG sheets, tables as heat maps."""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attar.core import Result
from attar.models.heatmap import draw_heat_map
from attar.nets import to_shape

SMALLEST = 64  # pixels, the least side that an image is shown with
GAP = 2  # pixels between images

# Sheets and tables of the methods, and what they show; the one to look at first is first.
SHEETS = {
    "synthetic after filter": "images from the clients' decoders that the filter let through: "
    "the student learned from these",
    "of the server's decoder": "images that the server's own decoder made: "
    "the student learned from these",
    "synthetic": "synthetic images that were made to learn from",
    "synthetic before filter": "images from the clients' decoders, before the filter",
    "dropped by filter": "images from the clients' decoders that the filter took away",
    "sketches": "images that a program drew",
    "density": "synthetic images: whole, the patches that count, the other patches, in three rows",
}
BY_CLASS = [name for name in SHEETS if name not in ("sketches", "density")]
TABLES = {
    "images made": "how many images each client's decoder made of each class",
    "weights": "how much each client counts for each class",
    "shares": "how much each client counts for each class",
    "guidance": "how well each client guides to each class (FedHydra's U)",
    "across clients": "the guidance to each class, shared out over the clients",
    "across classes": "the guidance of each client, shared out over the classes",
}


@dataclass(frozen=True)
class Picture:
    """One picture of a run folder, drawn on demand.

    Attributes:
        file: its name in the folder.
        shows: what one sees, for the model card.
        rows: the classes of its rows, from the top; empty if rows are no classes or the picture
            names them itself.
        draw: makes the content of the file: PNG bytes or SVG text.
    """

    file: str
    shows: str
    rows: tuple[str, ...]
    draw: Callable[[], bytes | str]


def list_pictures(result: Result, record: Mapping[str, Any]) -> tuple[Picture, ...]:
    """List the pictures of a result, the one to look at first in front.

    Args:
        result: what the method delivered: its images become sheets, its tables of clients and
            classes heat maps.
        record: of the run; gives the names of clients and classes.

    Returns:
        The pictures, not drawn yet.
    """
    clients = [client["client"] for client in record["clients"]]
    classes = record["task"]["classes"]
    pictures = []
    for name in _sort_names(result.images, SHEETS):
        images = result.images[name]
        by_class = images.ndim == 5 and name in BY_CLASS
        picture = Picture(
            file=f"{name.replace(' ', '-')}.png",
            shows=SHEETS.get(name, f"images: {name}"),
            rows=tuple(classes[: len(images)]) if by_class else (),
            draw=partial(draw_sheet, images),
        )
        pictures.append(picture)
    for name in _sort_names(result.arrays, TABLES):
        table = result.arrays[name]
        if tuple(table.shape) != (len(clients), len(classes)):
            continue
        picture = Picture(
            file=f"{name.replace(' ', '-')}.svg",
            shows=f"{TABLES.get(name, name)}; a column for each client, a row for each class",
            rows=(),
            draw=partial(draw_heat_map, table, clients, classes, name),
        )
        pictures.append(picture)
    return tuple(pictures)


def _sort_names(present: Mapping[str, Tensor], known: Mapping[str, str]) -> list[str]:
    """The names that are present: first the known ones in their order, then all others."""
    others = [name for name in present if name not in known]
    return [name for name in known if name in present] + others


def draw_sheet(images: Tensor) -> bytes:
    """Draw images in a grid on white.

    Args:
        images: canonical images. (N, C, H, W) are placed in a near-square grid; (rows, columns, C,
            H, W) in these rows and columns. Small ones are enlarged by a whole factor.

    Returns:
        A PNG file.
    """
    from PIL import Image

    columns = images.shape[1] if images.ndim == 5 else math.ceil(math.sqrt(len(images)))
    images = images.flatten(0, 1) if images.ndim == 5 else images
    colour = to_shape(images.detach().cpu().float(), (3, *images.shape[2:])).clamp(0, 1)
    times = max(1, SMALLEST // images.shape[-1])
    colour = colour.repeat_interleave(times, 2).repeat_interleave(times, 3)
    count, _, height, width = colour.shape
    rows = math.ceil(count / columns)
    sheet = torch.ones(3, rows * (height + GAP) + GAP, columns * (width + GAP) + GAP)
    for number, image in enumerate(colour):
        top = GAP + (number // columns) * (height + GAP)
        left = GAP + (number % columns) * (width + GAP)
        sheet[:, top : top + height, left : left + width] = image
    pixels = (sheet * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
