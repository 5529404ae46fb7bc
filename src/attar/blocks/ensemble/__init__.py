"""The clients' nets as one teacher."""

from attar.blocks.ensemble.averages import (
    average,
    class_shares,
    data_shares,
    label_shares,
    label_table,
    normalised,
    steps_added_up,
)
from attar.blocks.ensemble.familiarity import Familiarity, Spread, gate_from
from attar.blocks.ensemble.rules import (
    NEVER,
    REDUCTIONS,
    RULES,
    Ensemble,
    RuleName,
    accord,
    as_classifiers,
    build_mixture,
    combine,
    rule_needs_counts,
)
from attar.blocks.ensemble.shares import even_shares, guessed_counts, shares_of, told_counts
from attar.blocks.ensemble.teachers import Teachers

__all__ = [
    "NEVER",
    "REDUCTIONS",
    "RULES",
    "Ensemble",
    "Familiarity",
    "RuleName",
    "Spread",
    "Teachers",
    "accord",
    "as_classifiers",
    "average",
    "build_mixture",
    "class_shares",
    "combine",
    "data_shares",
    "even_shares",
    "gate_from",
    "guessed_counts",
    "label_shares",
    "label_table",
    "normalised",
    "rule_needs_counts",
    "shares_of",
    "steps_added_up",
    "told_counts",
]
