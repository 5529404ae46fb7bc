"""Architectures for small images, one family per file. Importing this package registers all of
them.
"""

from attar.nets import (
    cvae,
    efficientnet,
    googlenet,
    mobilenet,
    plain,
    resnet,
    shufflenet,
    statistics,
    vgg,
    vit,
    wrn,
)
from attar.nets.graph import format as graph

__all__ = [
    "cvae",
    "efficientnet",
    "googlenet",
    "graph",
    "mobilenet",
    "plain",
    "resnet",
    "shufflenet",
    "statistics",
    "vgg",
    "vit",
    "wrn",
]
