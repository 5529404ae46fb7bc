"""Optimisers for stacked tensors, whose first axis is the client; clients stay independent.

They change ``params`` and ``moments`` in place, since both are slices of the stack of all clients.
A parameter without a gradient stays as it is, weight decay included, as in ``torch.optim``.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from attar.blocks.execution import widest_float

Optimiser = Literal["sgd", "adam"]
Tensors = Mapping[str, Tensor]
Moments = Mapping[str, Tensors]

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def start_moments(
    optimiser: Optimiser, params: Tensors, momentum: float
) -> dict[str, dict[str, Tensor]]:
    """Return the optimiser's memory of each parameter before the first step: zeros.

    From a zero buffer, torch's special first step of momentum is an ordinary one.

    Args:
        optimiser: "sgd" or "adam".
        params: Stacked parameters (K, ...), by name.
        momentum: Of sgd; with 0 there is nothing to remember.

    Returns:
        For sgd "momentum", for adam "first" and "second", each with a tensor for every parameter.
    """
    if optimiser == "adam":
        names: tuple[str, ...] = ("first", "second")
    else:
        names = ("momentum",) if momentum else ()
    return {name: {key: torch.zeros_like(value) for key, value in params.items()} for name in names}


@torch.no_grad()
def sgd_step(
    params: Tensors,
    grads: Tensors,
    moments: Moments,
    *,
    lr: float | Tensor,
    momentum: float,
    weight_decay: float,
) -> None:
    """Take a step of ``torch.optim.SGD`` without dampening or Nesterov, in place.

        v <- momentum v + g + weight_decay w;    w <- w - lr v

    Each operation is one call for all parameters: on a GPU hundreds of small kernels would take
    longer than the gradients.
    """
    if not grads:
        return
    weights = [params[name] for name in grads]
    steps = list(grads.values())
    if weight_decay:
        steps = list(torch._foreach_add(steps, weights, alpha=weight_decay))
    if momentum:
        velocities = [moments["momentum"][name] for name in grads]
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, steps)
        steps = velocities
    if isinstance(lr, Tensor):  # a recording would keep a number
        torch._foreach_sub_(weights, list(torch._foreach_mul(steps, lr)))
    else:
        torch._foreach_add_(weights, steps, alpha=-lr)


@torch.no_grad()
def adam_step(
    params: Tensors,
    grads: Tensors,
    moments: Moments,
    steps: Tensor,
    *,
    lr: float | Tensor,
    weight_decay: float,
) -> None:
    """Take a step of ``torch.optim.Adam``, weight decay coupled, in place.

    Args:
        params: Stacked parameters (K, ...), by name.
        grads: Their gradients; a parameter without one stays as it is.
        moments: "first" and "second" moment of each parameter.
        steps: (K,), the number of steps of each client, this one included.
        lr: Learning rate.
        weight_decay: Coefficient of the l2 penalty that is added to the gradient.
    """
    beta1, beta2 = BETAS
    steps = steps.to(widest_float(steps.device))
    rate = lr / (1 - beta1**steps)
    root = (1 - beta2**steps).sqrt()
    for name, grad in grads.items():
        param = params[name]
        first = moments["first"][name]
        second = moments["second"][name]
        if weight_decay:
            grad = grad.add(param, alpha=weight_decay)
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = second.sqrt().div_(match_shape(root, second)).add_(EPSILON)
        param.sub_(first.div(denominator).mul_(match_shape(rate, first)))


@torch.no_grad()
def clip_gradients(grads: Tensors, limit: float) -> dict[str, Tensor]:
    """Scale each client's gradient to a norm of at most ``limit``, as ``clip_grad_norm_`` does.

    The norm is that of all parameters of a client together.
    """
    factor = (limit / (gradient_norms(grads) + 1e-6)).clamp(max=1.0)
    return {name: grad * match_shape(factor, grad) for name, grad in grads.items()}


def gradient_norms(grads: Tensors) -> Tensor:
    """Return the Euclidean norm of each client's whole gradient, (K,)."""
    each = [torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads.values()]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return norm


def match_shape(values: Tensor, like: Tensor) -> Tensor:
    """Return one number for each client, (K,), as (K, 1, ...) in the dtype of ``like`` (K, ...)."""
    return values.to(like.dtype).view(-1, *[1] * (like.ndim - 1))
