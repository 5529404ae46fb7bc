"""Random crops and horizontal flips of a whole batch at once, on the device of the images."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Augment = Literal["none", "flip", "crop", "crop-flip"]
PAD = 4  # pixels on each side, as in He et al. 2016, section 4.2


def draw_augmentation(kind: Augment, number: int, generator: torch.Generator) -> Tensor:
    """Draw how each image of a batch is cropped and flipped.

    On the CPU and separately from the images, so that a client sees the same crops whether it
    trains alone or in a stack.

    Args:
        kind: whether to crop and to flip.
        number: of images.
        generator: the source of chance.

    Returns:
        (number, 3): row and column of the crop in the padded image, and whether to flip.
    """
    corner = torch.randint(0, 2 * PAD + 1, (number, 2), generator=generator)
    mirror = torch.randint(0, 2, (number, 1), generator=generator)
    if "crop" not in kind:
        corner.fill_(PAD)
    return torch.cat([corner, mirror if "flip" in kind else torch.zeros_like(mirror)], 1)


def apply_augmentation(images: Tensor, choice: Tensor) -> Tensor:
    """Pad images with zeros, crop them at the drawn corners, and flip them.

    Args:
        images: (N, C, H, W) of any type.
        choice: what ``draw_augmentation`` returned, on the same device.

    Returns:
        (N, C, H, W) of the same type.
    """
    number, _, height, width = images.shape
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    across = torch.arange(width, device=images.device).expand(number, width)
    across = torch.where(choice[:, 2:].bool(), across.flip(1), across)
    rows = choice[:, 0, None] + torch.arange(height, device=images.device)
    columns = choice[:, 1, None] + across
    image = torch.arange(number, device=images.device)[:, None, None]
    # Indices around a slice put the indexed axes first: (N, H, W, C).
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
