"""Mixtures of Gaussians that a client fitted to its features of a frozen backbone.

A ``FeatureMixtures`` has no trained weights. Its buffers describe, for each class, how phi(x)
(``feature_sums.py``) is distributed over the client's images of that class:

    p(phi | y) = sum over k of weights_yk N(means_yk, S_yk)

    spherical   S = s I, s is sent
    diagonal    S = diag(s), s is sent
    full        S = L L^T, the lower triangle of L is sent, row by row

Unlike sums they cannot be added, and what a server makes of them depends on the split.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from attar.errors import SpecError
from attar.nets.feature_sums import MAX_DIMENSIONS
from attar.nets.limits import require_options
from attar.nets.registry import Shape, register
from attar.settings import Scalar

MAX_COMPONENTS = 64
Covariance = Literal["spherical", "diagonal", "full"]


class FeatureMixtures(nn.Module):
    """A mixture of Gaussians for each class.

    Args:
        num_classes: C.
        dimensions: D, of phi.
        components: K, at most, of a class.
        covariance: What is sent of a covariance.

    Attributes:
        counts: (C,) int64, images of each class.
        weights: (C, K), which add up to 1 where a class has images; 0 for unused components.
        means: (C, K, D).
        spreads: (C, K, 1, D or D (D + 1) / 2): variances, or the triangle of L.
    """

    counts: Tensor
    weights: Tensor
    means: Tensor
    spreads: Tensor

    def __init__(
        self, num_classes: int, dimensions: int, components: int, covariance: Covariance
    ) -> None:
        super().__init__()
        size = spread_size(dimensions, covariance)
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(num_classes, components))
        self.register_buffer("means", torch.zeros(num_classes, components, dimensions))
        self.register_buffer("spreads", torch.zeros(num_classes, components, size))

    def forward(self, features: Tensor) -> Tensor:
        """Not a classifier: there is nothing to compute."""
        raise SpecError(
            "Mixtures of features classify nothing.",
            fix="train a head on samples of them: attar fuse --method fedpft --set "
            "gaussians=mixtures",
        )


def spread_size(dimensions: int, covariance: Covariance) -> int:
    """How many numbers are sent of a covariance.

    Args:
        dimensions: D.
        covariance: what is sent.
    """
    sizes = {
        "spherical": 1,
        "diagonal": dimensions,
        "full": dimensions * (dimensions + 1) // 2,
    }
    return sizes[covariance]


def _title(options: Mapping[str, Scalar]) -> str:
    width = options.get("dimensions") or options.get("features")
    number = options.get("components")
    return f"mixtures of {number} Gaussians of {width} features of {options.get('backbone')}"


@register(
    "feature-mixtures",
    "A mixture of Gaussians for each class of a frozen backbone's features.",
    kind="mixtures",
    title=_title,
)
def feature_mixtures(
    input_shape: Shape,
    num_classes: int,
    *,
    backbone: str,
    fingerprint: str,
    features: int,
    components: int,
    dimensions: int = 0,
    clip: float = 0.0,
    covariance: Covariance = "diagonal",
) -> nn.Module:
    """A module for the mixtures of a client.

    Args:
        input_shape: of the images; not used.
        num_classes: of the task.
        backbone: its name, such as ``efficientnet-lite0``.
        fingerprint: of the sums beside it.
        features: width of the backbone's features.
        components: Gaussians of a class, at most.
        dimensions: to which features are projected; 0 for no projection.
        clip: length to which phi was clipped; 0 for none.
        covariance: what is sent of each.
    """
    width = dimensions or features
    problems = [f"features = {features}: at least 1"] if features < 1 else []
    if width > MAX_DIMENSIONS:
        problems.append(f"{width} dimensions: at most {MAX_DIMENSIONS}")
    if not 1 <= components <= MAX_COMPONENTS:
        problems.append(f"components = {components}: 1 to {MAX_COMPONENTS}")
    require_options("feature-mixtures", problems)
    return FeatureMixtures(num_classes, width, components, covariance)
