"""The pictures of a run folder: which there are, what each shows, and synthetic images side by
side as one PNG.
"""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attar.core import Result
from attar.models.heatmap import heat_map
from attar.nets import to_shape

SMALLEST = 64  # pixels a side that an image is shown with at least
GAP = 2

# What a method's sheets and tables are called and what they show, the one to look at first on top.
SHEETS = {
    "synthetic after filter": "images from the clients' decoders that the filter let through: the student learned from these",
    "of the server's decoder": "images that the server's own decoder made: the student learned from these",
    "synthetic": "synthetic images that were made to learn from",
    "synthetic before filter": "images from the clients' decoders, before the filter",
    "dropped by filter": "images from the clients' decoders that the filter took away",
    "sketches": "images that a program drew",
    "density": "synthetic images: whole, the patches that count, the other patches, in three rows",
}
BY_CLASS = [
    name for name in SHEETS if name not in ("sketches", "density")
]  # these have a row for each class if they have rows
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
    """One picture of a run folder."""

    file: str
    shows: str
    rows: tuple[
        str, ...
    ]  # the classes of its rows, from the top; empty: its rows are none, or it names them itself
    draw: Callable[[], bytes | str]


def pictures_of(result: Result, record: Mapping[str, Any]) -> tuple[Picture, ...]:
    """Images as sheets and tables of clients and classes as heat maps, the one to look at first
    in front.
    """
    clients, classes = [client["client"] for client in record["clients"]], record["task"]["classes"]
    found = []
    for name in _in_order(result.images, SHEETS):
        images = result.images[name]
        rows = tuple(classes[: len(images)]) if images.ndim == 5 and name in BY_CLASS else ()
        found.append(
            Picture(
                f"{_file(name)}.png",
                SHEETS.get(name, f"images: {name}"),
                rows,
                partial(gallery, images),
            )
        )
    for name in _in_order(result.arrays, TABLES):
        table = result.arrays[name]
        if tuple(table.shape) == (len(clients), len(classes)):
            shows = f"{TABLES.get(name, name)}; a column for each client, a row for each class"
            found.append(
                Picture(
                    f"{_file(name)}.svg",
                    shows,
                    (),
                    partial(heat_map, table, clients, classes, name),
                )
            )
    return tuple(found)


def _in_order(there: Mapping[str, Tensor], known: Mapping[str, str]) -> list[str]:
    """The names of a result as ``known`` has them, then those of other people's methods."""
    return [name for name in known if name in there] + [name for name in there if name not in known]


def _file(name: str) -> str:
    return name.replace(" ", "-")


def gallery(images: Tensor) -> bytes:
    """Canonical images (N, C, H, W) in a near-square grid, whole multiples of their size, on white.

    Images (rows, columns, C, H, W) stand in these rows and columns.
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
