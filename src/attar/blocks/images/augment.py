"""Random crops and horizontal flips of a whole batch at once, on the device where the images
are.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Augment = Literal["none", "flip", "crop", "crop-flip"]
PAD = 4  # pixels on each side, as in He et al. 2016, section 4.2


def draw(kind: Augment, number: int, generator: torch.Generator) -> Tensor:
    """(number, 3): row and column of the crop in the padded image, and whether to flip.

    Drawn on the CPU, apart from being applied, so that a client meets the same crops alone or in
    a stack.
    """
    corner = torch.randint(0, 2 * PAD + 1, (number, 2), generator=generator)
    mirror = torch.randint(0, 2, (number, 1), generator=generator)
    if "crop" not in kind:
        corner.fill_(PAD)
    return torch.cat([corner, mirror if "flip" in kind else torch.zeros_like(mirror)], 1)


def apply(images: Tensor, choice: Tensor) -> Tensor:
    """(N, C, H, W) of any dtype, padded with zeros and cut at the drawn corners."""
    number, _, height, width = images.shape
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    across = torch.arange(width, device=images.device).expand(number, width)
    across = torch.where(choice[:, 2:].bool(), across.flip(1), across)
    rows = choice[:, 0, None] + torch.arange(height, device=images.device)
    columns = choice[:, 1, None] + across
    image = torch.arange(number, device=images.device)[:, None, None]
    # Indices around a slice put the indexed axes first: (N, H, W, C).
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
