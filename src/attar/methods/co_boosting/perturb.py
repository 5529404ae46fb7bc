"""One step away from where an image stands, in the direction that turns the ensemble's output
most.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def diversified(
    images: Tensor,
    teacher: Callable[[Tensor], Tensor],
    direction: Tensor,
    epsilon: float,
    norm: str,
) -> Tensor:
    """x + eps * g / ||g||_2 with g = gradient at x of u^T A(x), Co-Boosting Eq. (10);
    ``norm="sign"``: x + eps * sign(g).

    ``direction`` is u (B, C). Each image has its own norm. The images are not clamped, as in the
    paper.
    """
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        likeness = (direction * teacher(inputs)).sum()
        (gradient,) = torch.autograd.grad(likeness, inputs)
    if norm == "sign":
        return images + epsilon * gradient.sign()
    length: Tensor = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)
    return images + epsilon * gradient / length[:, None, None, None]
