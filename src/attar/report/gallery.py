"""Synthetic images side by side, as one PNG."""

import io
import math

import torch
from torch import Tensor

from attar.core import to_shape

SMALLEST = 64  # pixels a side that an image is shown with at least
GAP = 2


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
