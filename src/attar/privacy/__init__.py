"""What an upload gives away."""

from attar.privacy.decoder_check import (
    PrivacyCheck,
    check_decoder,
    fid,
    in_proportion,
    inception_features,
    synthetic_images,
)
from attar.privacy.describe import (
    SHOWN,
    describe_check,
    describe_upload,
    graph_lines,
    reveals,
    summary_row,
)
from attar.privacy.membership import check_membership

__all__ = [
    "SHOWN",
    "PrivacyCheck",
    "check_decoder",
    "check_membership",
    "describe_check",
    "describe_upload",
    "fid",
    "graph_lines",
    "in_proportion",
    "inception_features",
    "reveals",
    "summary_row",
    "synthetic_images",
]
