"""The Gaussian mechanism: how much noise gives (epsilon, delta)-differential privacy.

Noise of standard deviation sensitivity / mu on numbers that one image changes by at most
``sensitivity`` in length is mu-GDP (Dong, Roth and Su, 2022), and that is (epsilon, delta)-DP for
delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) (Balle and Wang, 2018).
"""

import math
import os

import torch
from torch import Tensor

MAX_EPSILON = 100.0  # a larger one guarantees nothing


def system_draws() -> torch.Generator:
    """Return a generator seeded from the system's randomness, never from a run's seed."""
    return torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "big") >> 1)


def add_noise(exact: Tensor, scale: float, draws: torch.Generator) -> Tensor:
    """Return numbers with independent Gaussian noise.

    Args:
        exact: The numbers.
        scale: The standard deviation.
        draws: Where the noise comes from.
    """
    return exact + scale * torch.randn(exact.shape, generator=draws, dtype=exact.dtype)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian mechanism is (epsilon, delta)-DP, by bisection.

    The mechanism adds noise of standard deviation sensitivity / mu.
    """
    low = 0.0
    high = 100.0
    for _ in range(200):
        middle = (low + high) / 2
        if gaussian_delta(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta of the Gaussian mechanism by Theorem 8 of Balle and Wang (2018).

    Args:
        mu: Sensitivity divided by sigma.
        epsilon: Of differential privacy.
    """
    if mu == 0:
        return 0.0
    below = _normal_cdf(mu / 2 - epsilon / mu)
    above = _normal_cdf(-mu / 2 - epsilon / mu)
    return below - math.exp(epsilon) * above


def _normal_cdf(value: float) -> float:
    """Return Phi, the standard normal's distribution function."""
    return 0.5 * math.erfc(-value / math.sqrt(2))
