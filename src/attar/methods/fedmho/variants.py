"""What distinguishes FedMHO, FedMHO-MD and FedMHO-SD, and the tables behind ``preset``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from attar.blocks.student import trade_off_loss, uncertainty_weighted_loss

Remember = Literal["nothing", "md", "sd", "both"]
Preset = Literal["mnist", "fashion", "svhn", "emnist"]
Variant = Literal["paper", "code"]
Weights = Literal["fixed", "learned"]

# The teachers of each algorithm: "md" is the mean of the classifiers, Eq. (6); "sd" is the initial
# model w_0, Eq. (7). FedMHO has none. 5.3.1 adds both.
TEACHERS: dict[Remember, tuple[str, ...]] = {
    "nothing": (),
    "md": ("md",),
    "sd": ("sd",),
    "both": ("md", "sd"),
}

TABLE_3: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 10, "lr": 1e-5},
    "fashion": {},
    "svhn": {"lr": 5e-5},
    "emnist": {"epochs": 30, "lr": 5e-5, "samples": 12_000},
}

# What the authors' code does on every dataset, and on MNIST beside.
CODE: dict[str, Any] = {
    "allocation": "all-classes",
    "count_exponent": 2.0,
    "kl_reduction": "mean",
    "keep": "random",
}
CODE_ON: dict[str, dict[str, Any]] = {"mnist": {"epochs": 20}}


def settings_of_preset(method: Any) -> Mapping[str, Any]:
    """The settings that ``preset`` and ``variant`` of a FedMho decide."""
    table = TABLE_3[method.preset]
    if method.variant == "code":
        return {**table, **CODE, **CODE_ON.get(method.preset, {})}
    return table


Weighting = Callable[[Sequence[Tensor], float, Tensor], Tensor]


def weigh_by_trade_off(terms: Sequence[Tensor], trade_off: float, uncertainty: Tensor) -> Tensor:
    """Eq. (8): lambda CE + (1 - lambda) KL; CE alone where there is no teacher, Eq. (5).

    Args:
        terms: CE, then the KL of each teacher.
        trade_off: lambda.
        uncertainty: not used.
    """
    return trade_off_loss(terms, trade_off)


def weigh_by_uncertainty(terms: Sequence[Tensor], trade_off: float, uncertainty: Tensor) -> Tensor:
    """Learned weights (Table 5): sum_i exp(-s_i) L_i + s_i, by Kendall et al. 2018.

    Args:
        terms: CE, then the KL of each teacher.
        trade_off: not used.
        uncertainty: s, one entry for each term.
    """
    return uncertainty_weighted_loss(terms, uncertainty)


WEIGHTINGS: dict[Weights, Weighting] = {
    "fixed": weigh_by_trade_off,
    "learned": weigh_by_uncertainty,
}
