"""A step of DP-SGD (Abadi et al., 2016): sample, clip each image's gradient, add noise.

    L    each image with probability q, independently (Poisson sampling)
    g    sum over L of g_i min(1, C / ||g_i||)
    g~   (g + sigma C N(0, I)) / (q n)

One image more or less moves g by at most C, whatever the images are. The divisor is the expected
number of images, not the number drawn, which would give it away.
"""

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from attar.training.optimisers import Tensors, gradient_norms, match_shape

GRADIENT_BYTES = 32 * 2**20  # of the gradients of single images at a time: they stay in the cache
GRADIENT_BYTES_ON_GPU = 2 * 2**30
MOST_AT_A_TIME = 128

ImageLoss = Callable[..., Tensor]  # parameters and what belongs to one image -> its loss


class Draws(Protocol):
    """Where the randomness of private training comes from."""

    def uniforms(self, number: int) -> Tensor:
        """Return numbers that are uniform in (0, 1], float64 (number,)."""
        ...

    def normals(self, number: int) -> Tensor:
        """Return standard normal numbers, float64 (number,)."""
        ...

    def seed(self) -> int:
        """Return a seed for what need not be secret on its own, such as dropout."""
        ...


class SystemDraws:
    """Numbers made of bytes of the operating system's generator.

    Nothing is kept between two calls, so there is no state that a checkpoint could give away.
    """

    def uniforms(self, number: int) -> Tensor:
        """Return numbers that are uniform in (0, 1], float64 (number,)."""
        words = np.frombuffer(os.urandom(8 * number), dtype=np.uint64)
        return torch.from_numpy(((words >> np.uint64(11)) + np.uint64(1)) * 2.0**-53)

    def normals(self, number: int) -> Tensor:
        """Return standard normal numbers by the method of Box and Muller, float64 (number,)."""
        pairs = (number + 1) // 2
        radius = (-2 * self.uniforms(pairs).log()).sqrt()
        angle = 2 * torch.pi * self.uniforms(pairs)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:number]

    def seed(self) -> int:
        """Return a seed of 63 bits."""
        return int.from_bytes(os.urandom(8), "big") >> 1


def sample_rows(images: int, rate: float, draws: Draws) -> Tensor:
    """Draw which images take part in a step: each with the same probability, independently.

    Args:
        images: How many there are.
        rate: The probability of each, q.
        draws: The source of chance.

    Returns:
        Their rows, int64, possibly none.
    """
    return (draws.uniforms(images) <= rate).nonzero().flatten()


def clipped_sum(
    loss: ImageLoss, params: Tensors, inputs: tuple[Tensor, ...], clip: float
) -> tuple[dict[str, Tensor], Tensor]:
    """Add up the gradients of single images, each shortened to a length of at most ``clip``.

    An image whose gradient is not finite counts as one without gradient: else it alone could
    decide whether training diverges.

    Args:
        loss: Of the parameters and one image's inputs.
        params: Of one client, by name.
        inputs: For each argument of the loss after the parameters, a batch (B, ...).
        clip: C.

    Returns:
        The sum by name, and the losses (B,).
    """
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    losses = []
    places = (None, *[0] * len(inputs))
    each = vmap(grad_and_value(loss), in_dims=places, randomness="different")
    size = images_at_a_time(params)
    for chunk in zip(*(value.split(size) for value in inputs), strict=True):
        if not len(chunk[0]):
            continue
        grads, values = each(dict(params), *chunk)
        # a parameter may be a single number
        norms = gradient_norms({name: grad.reshape(len(grad), -1) for name, grad in grads.items()})
        usable = norms.isfinite()
        factor = torch.where(usable, (clip / norms.clamp(min=1e-12)).clamp(max=1.0), 0.0)
        for name, grad in grads.items():
            kept = torch.where(match_shape(usable, grad).bool(), grad, 0.0)
            total[name] += torch.tensordot(factor.to(kept.dtype), kept, dims=1)
        losses.append(values.detach())
    return total, torch.cat(losses) if losses else torch.zeros(0)


def images_at_a_time(params: Tensors) -> int:
    """Return for how many images gradients are computed in one call."""
    first = next(iter(params.values()))
    size = sum(value.numel() * value.element_size() for value in params.values())
    memory = GRADIENT_BYTES if first.device.type == "cpu" else GRADIENT_BYTES_ON_GPU
    return max(1, min(MOST_AT_A_TIME, memory // size))


def add_noise(
    total: Tensors, clip: float, noise_multiplier: float, expected: float, draws: Draws
) -> dict[str, Tensor]:
    """Return the noisy mean gradient.

    Args:
        total: The sum of clipped gradients, by name.
        clip: C.
        noise_multiplier: sigma.
        expected: The expected number of images, q n.
        draws: The source of chance.
    """
    noisy = {}
    for name, value in total.items():
        noise = draws.normals(value.numel()).view(value.shape).to(value)
        noisy[name] = (value + clip * noise_multiplier * noise) / expected
    return noisy
