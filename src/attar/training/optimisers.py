"""Optimisers on stacked tensors: the first axis of everything is the client, and no client sees
another's numbers.

They change ``params`` and ``moments`` in place, because both are slices of the stack that holds
all clients. A parameter that got no gradient is left alone, weight decay included, as in
``torch.optim``.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

Optimiser = Literal["sgd", "adam"]
Tensors = Mapping[str, Tensor]
Moments = Mapping[str, Tensors]

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def start_moments(
    optimiser: Optimiser, params: Tensors, momentum: float
) -> dict[str, dict[str, Tensor]]:
    """Zeros for what the optimiser remembers (from a zero buffer, torch's special first momentum
    step is ordinary).
    """
    names = ("first", "second") if optimiser == "adam" else ("momentum",) if momentum else ()
    return {name: {key: torch.zeros_like(value) for key, value in params.items()} for name in names}


@torch.no_grad()
def sgd(
    params: Tensors,
    grads: Tensors,
    moments: Moments,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """``torch.optim.SGD`` without dampening or Nesterov: v <- m v + g + wd w;  w <- w - lr v.

    All parameters in one call each: on a GPU hundreds of small kernels would take longer than
    the gradients.
    """
    if not grads:
        return
    moved, steps = [params[name] for name in grads], list(grads.values())
    if weight_decay:
        steps = list(torch._foreach_add(steps, moved, alpha=weight_decay))
    if momentum:
        velocities = [moments["momentum"][name] for name in grads]
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, steps)
        steps = velocities
    torch._foreach_add_(moved, steps, alpha=-lr)


@torch.no_grad()
def adam(
    params: Tensors,
    grads: Tensors,
    moments: Moments,
    steps: Tensor,
    *,
    lr: float,
    weight_decay: float,
) -> None:
    """``torch.optim.Adam``, weight decay coupled; ``steps`` (K,) counts each client's own steps,
    this one included.
    """
    beta1, beta2 = BETAS
    rate = lr / (1 - beta1 ** steps.double())
    root = (1 - beta2 ** steps.double()).sqrt()
    for name, grad in grads.items():
        param, first, second = params[name], moments["first"][name], moments["second"][name]
        if weight_decay:
            grad = grad.add(param, alpha=weight_decay)
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        width = second.sqrt().div_(per_client(root, second)).add_(EPSILON)
        param.sub_(first.div(width).mul_(per_client(rate, first)))


@torch.no_grad()
def clipped(grads: Tensors, limit: float) -> dict[str, Tensor]:
    """Gradients whose norm, over all parameters of a client, is at most ``limit``, as
    ``clip_grad_norm_`` does it.
    """
    factor = (limit / (norms(grads) + 1e-6)).clamp(max=1.0)
    return {name: grad * per_client(factor, grad) for name, grad in grads.items()}


def norms(grads: Tensors) -> Tensor:
    """(K,): the Euclidean norm of each client's whole gradient."""
    each = [torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads.values()]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return norm


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """(K,) shaped to multiply a stacked tensor, in its dtype."""
    return values.to(like.dtype).view(-1, *[1] * (like.ndim - 1))
