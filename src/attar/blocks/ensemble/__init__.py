"""The clients' nets as one teacher.

Main names::

    Teachers                    K frozen nets: images -> logits (K, B, C), and what hooks measure
    combine, RULES              logits of the clients -> logits (B, C), by a rule and with weights
    build_mixture, Ensemble     uploads -> a deployable Mixture by a named rule; a Mixture as a net
    GatedTeachers, choose_gate  accord's teacher, whose gate weights the clients for each image
    average, data_shares, ...   averages of weights, and shares of clients by numbers of images
"""

from attar.blocks.ensemble.averages import (
    average,
    average_normalised,
    class_shares,
    data_shares,
    effective_steps,
    label_shares,
    label_table,
    sent_counts,
)
from attar.blocks.ensemble.gates import (
    BATCHNORM_SHARPNESS,
    STATISTICS_SHARPNESS,
    TEMPERATURE,
    GatedTeachers,
    choose_gate,
    even_shares,
    evidence_shares,
    gated_probabilities,
    has_effect,
)
from attar.blocks.ensemble.hooks import Hook, attach_hooks, batchnorms_of_maps
from attar.blocks.ensemble.mixtures import (
    REDUCTIONS,
    Ensemble,
    RuleName,
    build_mixture,
    gate_of,
    rule_needs_counts,
    use_knowledge_nets,
)
from attar.blocks.ensemble.rules import GATED_RULES, NEVER, RULES, combine
from attar.blocks.ensemble.teachers import Teachers

__all__ = [
    "BATCHNORM_SHARPNESS",
    "GATED_RULES",
    "NEVER",
    "REDUCTIONS",
    "RULES",
    "STATISTICS_SHARPNESS",
    "TEMPERATURE",
    "Ensemble",
    "GatedTeachers",
    "Hook",
    "RuleName",
    "Teachers",
    "attach_hooks",
    "average",
    "average_normalised",
    "batchnorms_of_maps",
    "build_mixture",
    "choose_gate",
    "class_shares",
    "combine",
    "data_shares",
    "effective_steps",
    "even_shares",
    "evidence_shares",
    "gate_of",
    "gated_probabilities",
    "has_effect",
    "label_shares",
    "label_table",
    "rule_needs_counts",
    "sent_counts",
    "use_knowledge_nets",
]
