"""Models in use outside attar: exported files, a page of answers, a web service."""

from attar.deploy.answers import UNSURE, Answer, draw_thumbnail_of, rank
from attar.deploy.files import LARGEST_DIFFERENCE, Exported, export_onnx, export_torch
from attar.deploy.gallery import MOST_SHOWN, gallery_page, unsure_first
from attar.deploy.limits import Limits
from attar.deploy.module import Deployed
from attar.deploy.publish import Publication, Published, prepare, publish
from attar.deploy.serve import allowed_hosts, make_service, serve

__all__ = [
    "LARGEST_DIFFERENCE",
    "MOST_SHOWN",
    "UNSURE",
    "Answer",
    "Deployed",
    "Exported",
    "Limits",
    "Publication",
    "Published",
    "allowed_hosts",
    "draw_thumbnail_of",
    "export_onnx",
    "export_torch",
    "gallery_page",
    "make_service",
    "prepare",
    "publish",
    "rank",
    "serve",
    "unsure_first",
]
