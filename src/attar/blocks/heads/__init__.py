"""Heads of a frozen backbone, computed from sums of its features.

Main names::

    Totals                      sums of several clients, added as integers
    moments_of                  integers -> counts, means and covariances in double precision
    gaussian_head, regression   the heads, in closed form
    choose_gaussian, ...        shrinkage, temperature and an estimate of the accuracy, from two
                                halves of the images, without any image
"""

from attar.blocks.heads.checks import (
    fingerprint_of,
    group_problems,
    part_problems,
    totals_problems,
)
from attar.blocks.heads.choice import (
    SHRINKAGES,
    Choice,
    Estimate,
    Halves,
    choose_gaussian,
    choose_ridge,
    estimate_head,
    fit_gaussian,
    fit_ridge,
)
from attar.blocks.heads.heads import (
    Head,
    Kind,
    LinearHead,
    Prior,
    QuadraticHead,
    Regression,
    factorise,
    gaussian_head,
    hide_absent,
    log_prior_of,
    regression,
)
from attar.blocks.heads.moments import Moments, moments_of, shrink, unpack
from attar.blocks.heads.scoring import (
    Drawn,
    diagonal_likelihood,
    draw_scores,
    fit_temperature,
    squared_error,
)
from attar.blocks.heads.totals import SUMS, Totals, add_clients, options_of

__all__ = [
    "SHRINKAGES",
    "SUMS",
    "Choice",
    "Drawn",
    "Estimate",
    "Halves",
    "Head",
    "Kind",
    "LinearHead",
    "Moments",
    "Prior",
    "QuadraticHead",
    "Regression",
    "Totals",
    "add_clients",
    "choose_gaussian",
    "choose_ridge",
    "diagonal_likelihood",
    "draw_scores",
    "estimate_head",
    "factorise",
    "fingerprint_of",
    "fit_gaussian",
    "fit_ridge",
    "fit_temperature",
    "gaussian_head",
    "group_problems",
    "hide_absent",
    "log_prior_of",
    "moments_of",
    "options_of",
    "part_problems",
    "regression",
    "shrink",
    "squared_error",
    "totals_problems",
    "unpack",
]
