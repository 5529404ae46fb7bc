"""A statement of differential privacy, as an upload carries it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrivacyClaim:
    """What a sender says of the noise that its nets were trained with (DP-SGD).

    Nothing in an upload proves it: only who trained knows how. The number of images is public in
    it: it covers whether one image is among them or a blank one in its place.

    Attributes:
        epsilon: of differential privacy.
        delta: of the same.
        clip: longest gradient of one image.
        noise_multiplier: standard deviation of the noise on a summed gradient, in units of clip.
        sampling_rate: probability with which each image takes part in a step.
        steps: of training.
        accountant: how epsilon follows from the others, "pld".
        unit: whose presence is hidden, "image".
    """

    epsilon: float
    delta: float
    clip: float
    noise_multiplier: float
    sampling_rate: float
    steps: int
    accountant: str = "pld"
    unit: str = "image"
