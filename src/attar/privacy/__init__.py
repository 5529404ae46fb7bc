"""What an upload gives away: a description, attacks, a check of decoders, and a dossier of all."""

from attar.privacy.attacks import Rate
from attar.privacy.claims import list_claims
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
from attar.privacy.dossier import Audit, Dossier, make_dossier
from attar.privacy.dossier_page import dossier_page
from attar.privacy.fid import check_program, fid, load_inception
from attar.privacy.membership import check_membership
from attar.privacy.pair_sheet import draw_pairs
from attar.privacy.shadows import PASSES, SHADOWS

__all__ = [
    "MAX_SHOWN",
    "PASSES",
    "SHADOWS",
    "Audit",
    "Dossier",
    "Pair",
    "PrivacyCheck",
    "Rate",
    "allot_images",
    "check_decoder",
    "check_membership",
    "check_program",
    "describe_check",
    "describe_graphs",
    "describe_upload",
    "dossier_page",
    "draw_images",
    "draw_pairs",
    "fid",
    "list_claims",
    "list_few_per_gaussian",
    "list_revelations",
    "list_small_classes",
    "load_inception",
    "make_dossier",
    "summarise_upload",
]
