"""Sharpness-aware minimisation (Foret et al. 2021, Eq. 2 and 3; Co-Boosting, appendix B.5).

The step at w uses the gradient taken at w + rho g / ||g||, where the loss around w is worst to
first order. The norm is each client's own. BatchNorm's running statistics follow the first pass
alone: those of the second belong to weights nobody keeps. Neither weight decay nor clipping
enters the climb.
"""

import torch
from torch import Tensor

from attar.training.optimisers import Tensors, norms, per_client


@torch.no_grad()
def climb(params: Tensors, grads: Tensors, radius: float) -> dict[str, Tensor]:
    """New tensors w + rho g / ||g||; ``params`` stay as they are."""
    scale = radius / (norms(grads) + 1e-12)
    return {
        name: param + grads[name] * per_client(scale, param) if name in grads else param
        for name, param in params.items()
    }
