"""FedMHO's Algorithm 2: of each class, the images farthest from the mean image are dropped."""

from typing import Literal

import torch
from torch import Tensor

from attar.blocks.execution import has_float64
from attar.seeds import rng

ImageFilter = Literal["nearest", "random"]

_FIXED_POINT = 2**24  # pixels as whole numbers: their sums are exact, whatever the order


def select_images(images: Tensor, label: int, ratio: float, rule: ImageFilter, seed: int) -> Tensor:
    """Which images of a class stay.

    Args:
        images: (n, C, H, W) of one class.
        label: the class, for the random draw.
        ratio: R_th, the share that stays.
        rule: "nearest" is Algorithm 2; "random" keeps as many at random (Table 6).
        seed: of the random draw.

    Returns:
        Their indices.
    """
    if rule == "nearest":
        return select_nearest(images, ratio)
    order = torch.randperm(len(images), generator=rng(seed, "keep", label))
    return order[: len(images) - count_dropped(len(images), ratio)].to(images.device)


def select_nearest(images: Tensor, ratio: float) -> Tensor:
    """Algorithm 2, lines 4 to 10, for one class: the (1 - R_th) |D| farthest images go.

    K-means with one cluster on pixels is their mean. Which images stay does not depend on their
    order: the mean is exact in fixed point, and of equal distances the pixels decide.

    Returns:
        The indices of the images that stay, in ascending order.
    """
    flat = images.flatten(1)
    if not has_float64(flat.device):  # then the mean is taken on the CPU
        flat = flat.cpu()
    flat = flat.double()
    whole = (flat * _FIXED_POINT).round().long()
    centre = whole.sum(0).double() / (_FIXED_POINT * max(1, len(flat)))
    distance = (flat - centre).square().sum(1)
    _, rank = flat.unique(dim=0, return_inverse=True)  # in lexicographic order
    order: Tensor = rank.argsort(stable=True)
    order = order[distance[order].argsort(stable=True)]
    return order[: len(flat) - count_dropped(len(flat), ratio)].sort().values.to(images.device)


def count_dropped(number: int, ratio: float) -> int:
    """floor((1 - R_th) n), where 0.2 of 10 is 2 in spite of rounding."""
    return int((1 - ratio) * number + 1e-6)
