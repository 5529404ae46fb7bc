"""What the authors' code does otherwise, and the images that its server draws in each round."""

from collections.abc import Mapping
from typing import Any, Literal

import torch

from attar.core import Images
from attar.seeds import rng

Variant = Literal["paper", "code"]

# Of the authors' code. Its clients' rate, momentum, schedule and crops are options of local
# training; that its server has all training images with their labels is said by who gives them.
CODE: dict[str, Any] = {
    "peer": "accumulated",
    "distance": "mse",
    "ensemble": "mean-probabilities",
    "server_distance": "mse",
    "labels": 0.5,
    "drawn": 5000,
    "augment": "reflect-crop-flip",
    "steps": 790,  # 10 passes of 79 batches
    "schedule": "cosine",
    "momentum": 0.0,
}


def settings_of_variant(method: Any) -> Mapping[str, Any]:
    """The settings that ``variant`` of a FedKem decides."""
    return CODE if method.variant == "code" else {}


def draw_images(images: Images, number: int, seed: int) -> Images:
    """The images of a round: ``number`` of them, drawn with replacement; 0: all.

    Args:
        images: All that the server has.
        number: How many.
        seed: Of the round.
    """
    if not number:
        return images
    rows = torch.randint(0, len(images.pixels), (number,), generator=rng(seed, "fedkem", "images"))
    labels = None if images.labels is None else images.labels[rows]
    return Images(images.pixels[rows], labels, images.source)
