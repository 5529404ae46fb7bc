"""Images made at the server, and the pool that holds them.

Main names::

    generate_batch, SyntheticBatch      a batch that a generator learns to make, step by step
    PixelBatch                          the same of pixels without a generator
    GeneratorTraining, PoolSettings     groups of settings for a method's class
    new_generator, draw_noise, draw_labels
    Decoders, allocate_images           images of the decoders that clients sent
    procedural_images                   images that a program draws
    Pool                                images with labels and further values, saved in shards
    draw_augmentation, apply_augmentation
"""

from attar.blocks.images.augment import Augment, apply_augmentation, draw_augmentation
from attar.blocks.images.decoders import (
    Allocation,
    Decoders,
    allocate_images,
    apportion,
    draw_codes,
    new_decoder,
)
from attar.blocks.images.generator import (
    GeneratorTraining,
    ImageGenerator,
    Keep,
    PlainGeneratorTraining,
    SyntheticBatch,
    draw_labels,
    draw_noise,
    generate_batch,
    new_generator,
)
from attar.blocks.images.inversion import PixelBatch
from attar.blocks.images.pool import Pool, PoolSettings, Shard
from attar.blocks.images.procedural import procedural_images

__all__ = [
    "Allocation",
    "Augment",
    "Decoders",
    "GeneratorTraining",
    "ImageGenerator",
    "Keep",
    "PixelBatch",
    "PlainGeneratorTraining",
    "Pool",
    "PoolSettings",
    "Shard",
    "SyntheticBatch",
    "allocate_images",
    "apply_augmentation",
    "apportion",
    "draw_augmentation",
    "draw_codes",
    "draw_labels",
    "draw_noise",
    "generate_batch",
    "new_decoder",
    "new_generator",
    "procedural_images",
]
