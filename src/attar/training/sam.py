"""Sharpness-aware minimisation (Foret et al. 2021, Eq. 2 and 3; Co-Boosting, appendix B.5).

The step at w uses the gradient at w + rho g / ||g||, where the loss around w is worst to first
order. The norm is each client's own. BatchNorm's running statistics follow the first pass alone,
since the weights of the second are thrown away. Neither weight decay nor clipping changes the g of
that shift.
"""

import torch
from torch import Tensor

from attar.training.optimisers import Tensors, gradient_norms, match_shape


@torch.no_grad()
def perturb_weights(params: Tensors, grads: Tensors, radius: float) -> dict[str, Tensor]:
    """Return w + rho g / ||g|| in new tensors; ``params`` stay as they are.

    Args:
        params: Stacked parameters w (K, ...), by name.
        grads: Gradients g at w; a parameter without one is returned as it is.
        radius: rho.
    """
    scale = radius / (gradient_norms(grads) + 1e-12)
    return {
        name: param + grads[name] * match_shape(scale, param) if name in grads else param
        for name, param in params.items()
    }
