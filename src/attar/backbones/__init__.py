"""Frozen pre-trained nets, which turn images into features.

``load_backbone`` finds one by name; ``Backbone`` says what is agreed about it, and puts a linear
head on it.
"""

from attar.backbones.backbone import Backbone
from attar.backbones.fast import fast_copy
from attar.backbones.load import backbone_of, load_backbone
from attar.backbones.variants import Variant, read_variant

__all__ = [
    "Backbone",
    "Variant",
    "backbone_of",
    "fast_copy",
    "load_backbone",
    "read_variant",
]
