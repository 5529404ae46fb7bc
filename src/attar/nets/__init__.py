"""Architectures for small images, one family per file. Importing this package registers all of them."""

from attar.nets import (  # imported for their registrations
    cvae,
    efficientnet,
    googlenet,
    graph,
    mobilenet,
    plain,
    resnet,
    shufflenet,
    statistics,
    vgg,
    vit,
    wrn,
)

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
