"""A last layer whose logits are quadratic in the features: Gaussian classes, each with its own
covariance.

    l_c = b_c - |L_c^T (phi - m_c)|^2 / 2        L_c L_c^T is the inverse of the covariance
"""

import torch
from torch import Tensor, nn


class QuadraticHead(nn.Module):
    """phi (B, D) -> logits (B, C).

    Args:
        width: D.
        num_classes: C.

    Attributes:
        means: (C, D).
        factors: (C, D (D + 1) / 2), the lower triangles of L_c row by row.
        bias: (C,).
    """

    places: Tensor

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.zeros(num_classes, width))
        self.factors = nn.Parameter(torch.zeros(num_classes, width * (width + 1) // 2))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        rows, columns = torch.tril_indices(width, width, device="cpu")
        places = (rows * width + columns).to(torch.int64)
        self.register_buffer("places", places, persistent=False)

    def forward(self, phi: Tensor) -> Tensor:
        """Logits of features."""
        classes, width = self.means.shape
        flat = self.factors.new_zeros(classes, width * width)
        factors = flat.index_copy(1, self.places, self.factors).unflatten(1, (width, width))
        gaps = (phi[None] - self.means[:, None]) @ factors  # (C, B, D)
        logits: Tensor = self.bias - gaps.square().sum(-1).T / 2
        return logits
