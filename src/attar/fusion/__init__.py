"""Uploads and a method in, one model out."""

from attar.fusion.describe import describe_images, describe_run
from attar.fusion.estimate import estimate
from attar.fusion.execute import MethodRun, check_needs, start_method, start_prepared
from attar.fusion.outliers import ClientReport, OutlierReport, find_outliers
from attar.fusion.run import Fused, fuse
from attar.fusion.server import ServerOptions, server_for

__all__ = [
    "ClientReport",
    "Fused",
    "MethodRun",
    "OutlierReport",
    "ServerOptions",
    "check_needs",
    "describe_images",
    "describe_run",
    "estimate",
    "find_outliers",
    "fuse",
    "server_for",
    "start_method",
    "start_prepared",
]
