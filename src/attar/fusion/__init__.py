"""Uploads and a method in, one model out."""

from attar.fusion.estimate import estimate
from attar.fusion.run import Evaluate, Fused, check_needs, describe_images, fuse, server_for

__all__ = [
    "Evaluate",
    "Fused",
    "check_needs",
    "describe_images",
    "estimate",
    "fuse",
    "server_for",
]
