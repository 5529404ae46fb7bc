"""Whether statistics of features can be those of any images."""

from collections.abc import Mapping

import torch

from attar.core import Part
from attar.nets import FeatureStatistics
from attar.settings import Scalar

_SLACK = 1 + 1e-3  # of single precision


def possible_statistics(part: Part | None) -> list[str]:
    """Check the values of feature statistics, each for itself.

    Args:
        part: the statistics of an upload; None for one without any.

    Returns:
        One sentence for each value that no measurement gives; empty if there is none.
    """
    if part is None:
        return []
    options = dict(part.spec.options)
    state = part.state
    noisy = bool(options.get("epsilon"))
    problems = privacy_problems(options)
    held = state["held"]
    if not bool(held.any()):
        problems.append("statistics that hold no class")
    places = torch.arange(_width(part))
    if not bool((state["whitening"][places * (places + 3) // 2] > 0).all()):
        problems.append("a whitening whose diagonal is not positive")
    if float(state["own_spread"]) <= 0:
        problems.append("a spread of its own distances that is not positive")
    if not noisy and float(state["own_mean"]) < 0:
        problems.append("a negative mean of its own distances")
    clip = float(options.get("clip") or 0.0)
    longest = float(state["means"][held].norm(dim=-1).max()) if bool(held.any()) else 0.0
    if clip and not noisy and longest > clip * _SLACK:
        problems.append(f"a mean of length {longest:.3g}, features were clipped at {clip:.3g}")
    return problems


def privacy_problems(options: Mapping[str, Scalar]) -> list[str]:
    """Check a statement of differential privacy: whether it means anything, not whether it is true.

    Args:
        options: of statistics or sums, with epsilon, delta and clip where they are stated.
    """
    epsilon, delta, clip = (float(options.get(name) or 0) for name in ("epsilon", "delta", "clip"))
    if not epsilon:
        return ["a delta without an epsilon: it means nothing"] if delta else []
    problems = []
    if not clip or not delta:
        problems.append("an epsilon without clip and delta: it would mean nothing")
    if delta >= 1:
        problems.append(f"delta = {delta:g}: it must be below 1, else everything is private")
    return problems


def _width(part: Part) -> int:
    net = part.spec.skeleton(part.preprocess.input_shape, len(part.classes))
    assert isinstance(net, FeatureStatistics), "role_problems refuses others"
    return net.means.shape[1]
