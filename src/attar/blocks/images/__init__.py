"""Images made at the server, and the pool that holds them."""

from attar.blocks.images.augment import Augment, apply, draw
from attar.blocks.images.decoders import (
    Allocation,
    Decoders,
    allot,
    draw_codes,
    dropped,
    fresh_decoder,
    share_out,
    which_stay,
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
    "allot",
    "apply",
    "draw",
    "draw_codes",
    "draw_labels",
    "draw_noise",
    "dropped",
    "fresh_decoder",
    "invert_pixels",
    "new_generator",
    "share_out",
    "sketches",
    "train_generator",
    "which_stay",
]
