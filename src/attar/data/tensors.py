"""Data sets as tensors."""

import numpy as np
import torch

from attar.data.dataset import Split


def to_pixels(split: Split) -> torch.Tensor:
    """The images of a split as a tensor: uint8 (N, H, W, C) -> (N, C, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(split.images.transpose(0, 3, 1, 2)))
