"""Sums over a client's features of a frozen backbone: integers that a server may add.

A ``FeatureSums`` has no trained weights. Its buffers are what a client counted over its images,
in two halves that are split by a hash of the image, so that a server can score on one half what
it computed from the other. Images of class y with features phi(x) give

    counts    n_y                        how many images
    sums      sum of phi                 for each class
    squares   sum of phi phi^T           over all classes, or for each class

    phi(x)    the backbone's features minus a constant centre, projected to ``dimensions`` by
              signs that everybody knows, and clipped to length ``clip``

Every number is a multiple of 2^-bits, stored as an integer. A client rounds once; a server adds
integers, whose sum depends neither on the order nor on the grouping of the clients.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attar.errors import SpecError
from attar.nets.limits import require_options
from attar.nets.registry import Shape, register
from attar.nets.statistics import clip_length, shared_signs
from attar.settings import Scalar

HALVES = 2
MAX_DIMENSIONS = 4096
MAX_BITS = 40


class FeatureSums(nn.Module):
    """Counts, sums and squares of features, as integers.

    Args:
        num_classes: C.
        dimensions: D, of phi.
        per_class: Whether there is a matrix of squares for each class.
        bits: Numbers are multiples of 2^-bits; counts are whole.

    Attributes:
        counts: (2, C) int64.
        sums: (2, C, D) int64.
        squares: (2, 1 or C, D (D + 1) / 2) int64, the lower triangle row by row.
        bits: As given.
    """

    counts: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(self, num_classes: int, dimensions: int, *, per_class: bool, bits: int) -> None:
        super().__init__()
        self.bits = bits
        matrices = num_classes if per_class else 1
        triangle = dimensions * (dimensions + 1) // 2
        shapes = {
            "counts": (HALVES, num_classes),
            "sums": (HALVES, num_classes, dimensions),
            "squares": (HALVES, matrices, triangle),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """Not a classifier: there is nothing to compute."""
        raise SpecError(
            "Sums of features classify nothing.",
            fix="fit a head to them: attar fuse --method gaussian-head",
        )


def project_features(
    features: Tensor, *, centre: Tensor | None, dimensions: int, clip: float
) -> Tensor:
    """phi: (B, F) -> (B, D), in double precision.

    Args:
        features: of the backbone.
        centre: (F,), a constant that is the same for everybody; None for 0.
        dimensions: D; 0 for no projection, D = F.
        clip: length to which phi is clipped; 0 for none.
    """
    signs = shared_signs(features.shape[-1], dimensions) if dimensions else None
    return project_by(features, centre, signs, clip)


def project_by(
    features: Tensor, centre: Tensor | None, signs: Tensor | None, clip: float
) -> Tensor:
    """phi by a projection that was made before; see ``project_features``.

    Args:
        features: (B, F), of the backbone.
        centre: (F,); None for 0.
        signs: (F, D), from ``shared_signs``; None for no projection.
        clip: length to which phi is clipped; 0 for none.
    """
    phi = features.double()
    if centre is not None:
        phi = phi - centre.to(phi)
    if signs is not None:
        phi = phi @ signs.to(phi)
    return clip_length(phi, clip) if clip else phi


def _title(options: Mapping[str, Scalar]) -> str:
    width = options.get("dimensions") or options.get("features")
    epsilon = options.get("epsilon")
    noise = f", epsilon {epsilon}" if epsilon else ""
    return f"sums of {width} features of {options.get('backbone')}{noise}"


@register(
    "feature-sums",
    "Counts, sums and squares of a frozen backbone's features.",
    kind="sums",
    title=_title,
)
def feature_sums(
    input_shape: Shape,
    num_classes: int,
    *,
    backbone: str,
    fingerprint: str,
    features: int,
    dimensions: int = 0,
    clip: float = 0.0,
    bits: int = 24,
    per_class: bool = False,
    epsilon: float = 0.0,
    delta: float = 0.0,
) -> nn.Module:
    """A module for the sums of a client.

    Args:
        input_shape: of the images; not used.
        num_classes: of the task.
        backbone: its name, such as ``efficientnet-lite0``.
        fingerprint: sha256 over everything that phi is made of; sums of different fingerprints
            are never added.
        features: width of the backbone's features.
        dimensions: to which they are projected; 0 for no projection.
        clip: length to which phi was clipped; 0 for none.
        bits: numbers are multiples of 2^-bits.
        per_class: whether there is a matrix of squares for each class.
        epsilon: of the differential privacy that the noise gives; 0 for no noise.
        delta: of the same.
    """
    width = dimensions or features
    problems = [f"features = {features}: at least 1"] if features < 1 else []
    if width > MAX_DIMENSIONS:
        problems.append(f"{width} dimensions: at most {MAX_DIMENSIONS}")
    if bits > MAX_BITS:
        problems.append(f"bits = {bits}: at most {MAX_BITS}")
    require_options("feature-sums", problems)
    return FeatureSums(num_classes, width, per_class=per_class, bits=bits)
