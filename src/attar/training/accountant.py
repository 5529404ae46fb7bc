"""How much privacy DP-SGD costs, by the privacy loss distribution (PLD) of ``dp-accounting``.

A step takes each image with probability q and adds Gaussian noise of standard deviation sigma
times the clip. The library composes the privacy loss of all steps numerically and rounds up, so
that its epsilon is an upper bound (Meiser and Mohammadi, 2018; Koskela et al., 2020).
"""

from functools import cache
from typing import Any

from attar.errors import SettingsError

INTERVAL = 1e-3  # to which losses are rounded up while noise is searched for
FINE_INTERVAL = 1e-4
LEAST_NOISE, MOST_NOISE = 0.2, 1e4
PRECISION = 1.001  # the noise is at most so many times what would be enough


@cache
def spent_epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    interval: float = FINE_INTERVAL,
) -> float:
    """Return the epsilon that a training costs at this delta.

    Args:
        noise_multiplier: sigma, in units of the clip.
        sampling_rate: q, the probability of each image in each step.
        steps: Of training.
        delta: Of differential privacy.
        interval: To which privacy losses are rounded up.

    Raises:
        SettingsError: ``dp-accounting`` is not installed.
    """
    library, pld = _import_library()
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    step = library.PoissonSampledDpEvent(sampling_rate, library.GaussianDpEvent(noise_multiplier))
    accountant.compose(step, steps)
    return float(accountant.get_epsilon(delta))


@cache
def solve_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return the smallest noise multiplier whose training costs at most this epsilon.

    It is rounded up, by at most 0.1 %, and never below ``LEAST_NOISE``.

    Args:
        epsilon: Of differential privacy.
        delta: Of the same.
        sampling_rate: q, the probability of each image in each step.
        steps: Of training.

    Raises:
        SettingsError: ``dp-accounting`` is not installed, or no noise is enough.
    """

    def is_enough(noise: float) -> bool:
        return spent_epsilon(noise, sampling_rate, steps, delta, INTERVAL) <= epsilon

    high = 1.0
    while not is_enough(high):
        high *= 2
        if high > MOST_NOISE:
            raise SettingsError(
                f"No noise gives epsilon = {epsilon:g}, delta = {delta:g} in {steps:,} steps.",
                fix="ask for a larger epsilon, or train fewer epochs",
            )
    low = high / 2
    while low > LEAST_NOISE and is_enough(low):
        low, high = low / 2, low
    low = max(low, LEAST_NOISE)
    while high > PRECISION * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _import_library() -> tuple[Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError as error:
        raise SettingsError(
            f"Differential privacy needs the package dp-accounting ({error}).",
            fix="pip install 'attar[dp]', or '.[dp]' in a clone",
        ) from None
    return dp_accounting, pld
