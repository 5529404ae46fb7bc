"""What an upload gives away: a description, a check of decoders, a membership attack."""

from attar.privacy.decoder_check import (
    Pair,
    PrivacyCheck,
    allot_images,
    check_decoder,
    draw_images,
)
from attar.privacy.describe import (
    MAX_SHOWN,
    describe_check,
    describe_graphs,
    describe_upload,
    list_few_per_gaussian,
    list_revelations,
    list_small_classes,
    summarise_upload,
)
from attar.privacy.fid import fid, load_inception
from attar.privacy.membership import check_membership
from attar.privacy.pair_sheet import draw_pairs

__all__ = [
    "MAX_SHOWN",
    "Pair",
    "PrivacyCheck",
    "allot_images",
    "check_decoder",
    "check_membership",
    "describe_check",
    "describe_graphs",
    "describe_upload",
    "draw_images",
    "draw_pairs",
    "fid",
    "list_few_per_gaussian",
    "list_revelations",
    "list_small_classes",
    "load_inception",
    "summarise_upload",
]
