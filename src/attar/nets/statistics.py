"""What a client tells about its penultimate features, as a net: features -> how far they lie
from those it trained on.

A ``FeatureStatistics`` has no learned weights. Its buffers are what a client measured at home
(``local/statistics.py``): the mean of every class that it holds, one matrix that whitens the
spread around these means, and how far its own images lie from them.

    phi(x)   the features, projected to ``dimensions`` by signs that everybody knows, clipped to length ``clip`` where noise was added
    d(x)     min over held c of ||W^T (phi(x) - mean_c)||, the Mahalanobis distance: W W^T is the inverse of the shrunk covariance
    z(x)     (d(x) - mean of own distances) / their standard deviation: 0 for an image like its own, large for a stranger

W is lower triangular with a positive diagonal, so it is the covariance in another spelling, of
the same size; unlike a covariance, every W that a file may hold gives distances.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from attar.nets.limits import require_options
from attar.nets.registry import Shape, register
from attar.settings import Scalar

MAX_DIMENSIONS = 512
_TINY = 1e-12
_LEAST_SPREAD = 1e-6
_FAR = 1e12  # the squared distance of a class that is not held


class FeatureStatistics(nn.Module):
    """Features (B, F) -> distances and z-scores, each (B,)."""

    means: Tensor  # (C, D), 0 where a class is not held
    held: Tensor  # (C,) bool
    whitening: Tensor  # (D (D + 1) / 2,), the lower triangle of W row by row
    own_mean: Tensor  # of the client's own distances
    own_spread: Tensor
    projection: Tensor  # (F, D)
    places: Tensor  # (D, D) where an entry of W stands in ``whitening``
    lower: Tensor  # (D, D) 1 on and below the diagonal

    def __init__(self, num_classes: int, features: int, dimensions: int, clip: float) -> None:
        super().__init__()
        self.features, self.clip, self.projected = features, clip, dimensions > 0
        width = dimensions or features
        rows, columns = torch.tril_indices(width, width, device="cpu")
        places = torch.zeros(width, width, dtype=torch.int64, device="cpu")
        places[rows, columns] = torch.arange(len(rows), device="cpu")
        self.register_buffer("means", torch.zeros(num_classes, width))
        self.register_buffer("held", torch.ones(num_classes, dtype=torch.bool))
        self.register_buffer("whitening", torch.zeros(len(rows)))
        self.register_buffer("own_mean", torch.zeros(()))
        self.register_buffer("own_spread", torch.ones(()))
        signs = shared_signs(features, dimensions) if dimensions else torch.zeros(0, device="cpu")
        self.register_buffer("projection", signs, persistent=False)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer(
            "lower", torch.ones(width, width, device="cpu").tril(), persistent=False
        )

    def project(self, features: Tensor) -> Tensor:
        """phi: (B, F) -> (B, D), in single precision."""
        short = features.float() @ self.projection if self.projected else features.float()
        return clipped(short, self.clip) if self.clip else short

    def class_distances(self, phi: Tensor) -> Tensor:
        """||W^T (phi - mean_c)|| for every class that is held, (B, D) -> (B, C); very far from the others."""
        whiten = self.whitening[self.places] * self.lower
        held = self.held[:, None].to(self.means)
        middle = (self.means * held).sum(0) / held.sum().clamp(
            min=1
        )  # far from 0, TF32 loses the differences
        here, centres = (phi - middle) @ whiten, (self.means - middle) @ whiten
        apart = (
            here.square().sum(-1, keepdim=True) + centres.square().sum(-1) - 2 * here @ centres.mT
        )
        return torch.where(self.held, apart.clamp(min=_TINY), _FAR).sqrt()

    def distances(self, phi: Tensor) -> Tensor:
        """d(x), (B, D) -> (B,)."""
        return self.class_distances(phi).amin(-1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(features.device.type, enabled=False):  # squares of small differences
            distance = self.distances(self.project(features))
            return distance, (distance - self.own_mean) / self.own_spread.clamp(min=_LEAST_SPREAD)


def clipped(vectors: Tensor, length: float) -> Tensor:
    """Each vector, shortened to ``length`` where it is longer."""
    shorter: Tensor = vectors * (
        length / vectors.norm(dim=-1, keepdim=True).clamp(min=_TINY)
    ).clamp(max=1)
    return shorter


def shared_signs(features: int, dimensions: int) -> Tensor:
    """(F, D) of +-1 / sqrt(D), the same everywhere: lengths are kept on average (Achlioptas,
    2003). Nothing of it is sent.
    """
    bits = hashlib.shake_256(f"attar feature statistics {features} x {dimensions}".encode())
    drawn = np.unpackbits(
        np.frombuffer(bits.digest(-(-features * dimensions // 8)), dtype=np.uint8)
    )
    signs = 2.0 * drawn[: features * dimensions].reshape(features, dimensions) - 1.0
    return torch.from_numpy((signs / dimensions**0.5).astype(np.float32))


def _title(options: Mapping[str, Scalar]) -> str:
    width, epsilon = options.get("dimensions") or options.get("features"), options.get("epsilon")
    noise = f", epsilon {epsilon}" if epsilon else ""
    return f"{width} features{noise}"


@register(
    "feature-statistics",
    "Means, spread and distances of a client's features.",
    kind="statistics",
    title=_title,
)
def feature_statistics(
    input_shape: Shape,
    num_classes: int,
    *,
    features: int,
    dimensions: int = 0,
    clip: float = 0.0,
    epsilon: float = 0.0,
    delta: float = 0.0,
) -> nn.Module:
    """``dimensions`` 0: the features as they are. ``epsilon``, ``delta``: what the noise in it
    promises; 0: there is none.
    """
    width = dimensions or features
    problems = [f"features = {features}: at least 1"] if features < 1 else []
    if width > MAX_DIMENSIONS:
        problems.append(
            f"{width} dimensions: at most {MAX_DIMENSIONS}, wider features are projected"
        )
    require_options("feature-statistics", problems)
    return FeatureStatistics(num_classes, features, dimensions, clip)
