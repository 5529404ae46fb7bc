"""Images made at the server, and the pool that holds them."""

from attar.blocks.images.augment import Augment, apply, draw
from attar.blocks.images.decoders import (
    Allocation,
    Decoders,
    allocate_images,
    apportion,
    draw_codes,
    new_decoder,
)
from attar.blocks.images.generator import GeneratorWork, draw_labels, draw_noise, new_generator
from attar.blocks.images.inversion import Loss, Synthesis, invert_pixels, train_generator
from attar.blocks.images.pool import Pool, Shard
from attar.blocks.images.procedural import sketches

__all__ = [
    "Allocation",
    "Augment",
    "Decoders",
    "GeneratorWork",
    "Loss",
    "Pool",
    "Shard",
    "Synthesis",
    "allocate_images",
    "apply",
    "apportion",
    "draw",
    "draw_codes",
    "draw_labels",
    "draw_noise",
    "invert_pixels",
    "new_decoder",
    "new_generator",
    "sketches",
    "train_generator",
]
