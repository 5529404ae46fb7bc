"""Sketches: images that a program draws, leaves that lie over each other on an empty or a
textured ground. They are nobody's data.

Images that are made to please nets look like noise, and nets answer noise as they please. A
sketch has what photographs have and noise has not: edges, surfaces, things in front of others, a
spectrum that falls with frequency, and often two halves that are alike (dead leaves: Lee,
Mumford and Huang 2001; nets that saw nothing else learn to see: Baradad et al. 2021). What
clients answer to it is closer to what they answer to images.
"""

import torch
from torch import Tensor

from attar.nets.registry import Shape

LEAVES = 6  # at most
SHOWN = 0.6  # of them
EMPTY = 0.7  # of the grounds are black
ALIKE = 0.5  # have a right half that mirrors the left one
_ROUGH = 0.5  # standard deviation of a texture at its strongest
_LOWEST = 0.01  # frequency, in cycles a pixel: a constant has none


def sketches(
    number: int, shape: Shape, draws: torch.Generator, device: str | torch.device = "cpu"
) -> Tensor:
    """So many images (N, C, H, W) in [0, 1]. Chance is drawn on the CPU: the same sketches on
    every device, but for rounding.
    """
    channels, height, width = shape

    def chance(*size: int) -> Tensor:
        return torch.rand(number, *size, generator=draws).to(device)

    down = torch.linspace(-1, 1, height, device=device)[:, None]
    across = torch.linspace(-1, 1, width, device=device)
    textures = [
        _texture(number, shape, draws, device) for _ in range(2)
    ]  # of the ground, of the leaves

    def surface(texture: Tensor) -> Tensor:
        return chance(channels, 1, 1) + _ROUGH * chance(1, 1, 1) * texture

    image = torch.where(chance(1, 1, 1) < EMPTY, 0.0, surface(textures[0]))
    for _ in range(LEAVES):
        turn, x, y = (
            torch.pi * chance(1, 1),
            across - (2 * chance(1, 1) - 1),
            down - (2 * chance(1, 1) - 1),
        )
        along = (x * turn.cos() + y * turn.sin()) / _radius(chance(1, 1))
        aside = (y * turn.cos() - x * turn.sin()) / _radius(chance(1, 1))
        roundness = torch.where(chance(1, 1) < 0.5, 2.0, 8.0)  # an ellipse, or nearly a rectangle
        inside = along.abs() ** roundness + aside.abs() ** roundness < 1
        there = inside[:, None] & (chance(1, 1, 1) < SHOWN)
        image = torch.where(there, surface(textures[1]), image)
    mirrored = torch.cat([image[..., : (width + 1) // 2], image[..., : width // 2].flip(-1)], -1)
    return torch.where(chance(1, 1, 1) < ALIKE, mirrored, image).clamp(0, 1)


def _radius(chance: Tensor) -> Tensor:
    """From a twentieth of half the image to nearly all of it, small ones more often."""
    return 0.05 + 0.9 * chance.square()


def _texture(
    number: int, shape: Shape, draws: torch.Generator, device: str | torch.device
) -> Tensor:
    """Noise whose amplitude falls as a power of the frequency, from 0.5 (rough) to 2 (clouds);
    mean square 1 in every image.
    """
    white = torch.randn(number, *shape, generator=draws).to(device)
    power = 0.5 + 1.5 * torch.rand(number, shape[0], 1, 1, generator=draws).to(device)
    down, across = (
        torch.fft.fftfreq(shape[1], device=device),
        torch.fft.rfftfreq(shape[2], device=device),
    )
    frequency = (down[:, None].square() + across.square()).sqrt() + _LOWEST
    made = torch.fft.irfft2(torch.fft.rfft2(white) * frequency**-power, s=shape[1:])
    even: Tensor = (
        made / made.flatten(1).square().mean(1).sqrt().clamp(min=1e-6)[:, None, None, None]
    )
    return even
