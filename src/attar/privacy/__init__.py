"""What an upload gives away: a description, a check of decoders, a membership attack."""

from attar.privacy.decoder_check import PrivacyCheck, allot_images, check_decoder, draw_images
from attar.privacy.describe import (
    MAX_SHOWN,
    describe_check,
    describe_graphs,
    describe_upload,
    list_revelations,
    summarise_upload,
)
from attar.privacy.fid import fid, load_inception
from attar.privacy.membership import check_membership

__all__ = [
    "MAX_SHOWN",
    "PrivacyCheck",
    "allot_images",
    "check_decoder",
    "check_membership",
    "describe_check",
    "describe_graphs",
    "describe_upload",
    "draw_images",
    "fid",
    "list_revelations",
    "load_inception",
    "summarise_upload",
]
