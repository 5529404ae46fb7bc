"""How private a training is to be."""

from dataclasses import dataclass

from attar.errors import SettingsError
from attar.training.gaussian import MAX_EPSILON

LARGEST_CLIP = 1e6


@dataclass(frozen=True)
class PrivacySettings:
    """How private a training is.

    Attributes:
        epsilon: Of differential privacy.
        delta: Of the same.
        clip: Longest gradient of one image.
        noise_multiplier: Instead of the one that the accountant solves for epsilon.

    Raises:
        SettingsError: A value is out of range; the error names all of them.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        checks = {
            f"epsilon = {self.epsilon}: above 0, at most {MAX_EPSILON:g}": (
                0 < self.epsilon <= MAX_EPSILON
            ),
            f"delta = {self.delta}: above 0, below 1": 0 < self.delta < 1,
            f"clip = {self.clip}: above 0": 0 < self.clip <= LARGEST_CLIP,
        }
        if problems := [rule for rule, holds in checks.items() if not holds]:
            raise SettingsError("Training cannot be private like this:", problems=problems)
