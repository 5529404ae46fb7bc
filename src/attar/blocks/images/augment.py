"""Random crops and horizontal flips of a whole batch at once, on the device of the images."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Augment = Literal["none", "flip", "crop", "crop-flip", "reflect-crop-flip"]
PAD = 4  # pixels on each side, as in He et al. 2016, section 4.2


def draw_augmentation(kind: Augment, number: int, generator: torch.Generator) -> Tensor:
    """Draw how each image of a batch is cropped and flipped.

    On the CPU and separately from the images, so that a client sees the same crops whether it
    trains alone or in a stack.

    Args:
        kind: whether to crop and to flip. "reflect-crop-flip" crops from images that were mirrored
            at their borders by ``PAD`` pixels and then padded by as many zeros, as the code of
            FedKEM's authors does: a crop is moved by up to 8 pixels.
        number: of images.
        generator: the source of chance.

    Returns:
        (number, 3): row and column of the crop in the padded image, and whether to flip. Of
        "reflect-crop-flip" (number, 4): the last is 1.
    """
    mirrored = kind == "reflect-crop-flip"
    corners = (4 if mirrored else 2) * PAD + 1
    corner = torch.randint(0, corners, (number, 2), generator=generator)
    mirror = torch.randint(0, 2, (number, 1), generator=generator)
    if "crop" not in kind:
        corner.fill_(PAD)
    flip = mirror if "flip" in kind else torch.zeros_like(mirror)
    columns = [corner, flip, torch.ones_like(mirror)] if mirrored else [corner, flip]
    return torch.cat(columns, 1)


def apply_augmentation(images: Tensor, choice: Tensor) -> Tensor:
    """Pad images, crop them at the drawn corners, and flip them.

    Args:
        images: (N, C, H, W) of any type.
        choice: what ``draw_augmentation`` returned, on the same device; its width says how the
            images are padded.

    Returns:
        (N, C, H, W) of the same type.
    """
    number, _, height, width = images.shape
    if choice.shape[1] == 4:
        images = _mirror_borders(images)
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    across = torch.arange(width, device=images.device).expand(number, width)
    across = torch.where(choice[:, 2:3].bool(), across.flip(1), across)
    rows = choice[:, 0, None] + torch.arange(height, device=images.device)
    columns = choice[:, 1, None] + across
    image = torch.arange(number, device=images.device)[:, None, None]
    # Indices around a slice put the indexed axes first: (N, H, W, C).
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _mirror_borders(images: Tensor) -> Tensor:
    """Pad by ``PAD`` mirrored pixels on each side; torch's own way takes no bytes."""
    rows, columns = (
        _mirror(torch.arange(-PAD, size + PAD, device=images.device), size)
        for size in images.shape[2:]
    )
    return images[:, :, rows[:, None], columns[None, :]]


def _mirror(places: Tensor, size: int) -> Tensor:
    """Places outside 0 .. size - 1, mirrored at the first and the last one."""
    return size - 1 - (size - 1 - places.abs()).abs()
