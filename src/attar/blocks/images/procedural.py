"""Procedural images: leaves that a program draws over each other. No data is used for them.

Images that are optimised to please nets look like noise, and the answers of nets to noise are
arbitrary. A procedural image has what photographs have and noise has not: edges, surfaces, objects
in front of others, a spectrum that falls with frequency, and often two symmetric halves (dead
leaves: Lee, Mumford and Huang 2001; nets that saw nothing else learn to see: Baradad et al. 2021).
The clients' answers to it are closer to their answers to photographs.

On the command line and in the settings of ``accord`` these images are called sketches.
"""

import torch
from torch import Tensor

from attar.nets.registry import Shape

LEAVES = 6  # drawn over each other, at most
SHOWN_LEAVES = 0.6  # share of the leaves that are drawn
EMPTY_GROUNDS = 0.7  # share of the images whose ground is black
SYMMETRIC = 0.5  # share of the images whose right half mirrors the left one
_CONTRAST = 0.5  # standard deviation of a texture at its strongest
_LOWEST_FREQUENCY = 0.01  # in cycles a pixel, in place of 0


def procedural_images(
    number: int, shape: Shape, draws: torch.Generator, device: str | torch.device = "cpu"
) -> Tensor:
    """Draw random leaves on empty or textured grounds.

    Args:
        number: of images.
        shape: of an image.
        draws: the source of chance, on the CPU: every device draws the same images up to rounding.
        device: where the images are made.

    Returns:
        (number, C, H, W) in [0, 1].
    """
    channels, height, width = shape

    def uniform(*size: int) -> Tensor:
        return torch.rand(number, *size, generator=draws).to(device)

    ys = torch.linspace(-1, 1, height, device=device)[:, None]
    xs = torch.linspace(-1, 1, width, device=device)
    ground_texture = draw_texture(number, shape, draws, device)
    leaf_texture = draw_texture(number, shape, draws, device)

    def surface(texture: Tensor) -> Tensor:
        return uniform(channels, 1, 1) + _CONTRAST * uniform(1, 1, 1) * texture

    def leaf() -> Tensor:
        """Which pixels lie in a leaf, (number, H, W)."""
        angle = torch.pi * uniform(1, 1)
        x = xs - (2 * uniform(1, 1) - 1)
        y = ys - (2 * uniform(1, 1) - 1)
        along = (x * angle.cos() + y * angle.sin()) / _radius(uniform(1, 1))
        across = (y * angle.cos() - x * angle.sin()) / _radius(uniform(1, 1))
        exponent = torch.where(uniform(1, 1) < 0.5, 2.0, 8.0)  # an ellipse, or nearly a rectangle
        return along.abs() ** exponent + across.abs() ** exponent < 1

    images = torch.where(uniform(1, 1, 1) < EMPTY_GROUNDS, 0.0, surface(ground_texture))
    for _ in range(LEAVES):
        inside = leaf()[:, None] & (uniform(1, 1, 1) < SHOWN_LEAVES)
        images = torch.where(inside, surface(leaf_texture), images)
    left = images[..., : (width + 1) // 2]
    mirrored = torch.cat([left, images[..., : width // 2].flip(-1)], -1)
    return torch.where(uniform(1, 1, 1) < SYMMETRIC, mirrored, images).clamp(0, 1)


def _radius(uniform: Tensor) -> Tensor:
    """From a twentieth of half the image to nearly all of it, small ones more often."""
    return 0.05 + 0.9 * uniform.square()


def draw_texture(
    number: int, shape: Shape, draws: torch.Generator, device: str | torch.device
) -> Tensor:
    """Noise whose amplitude falls as a power of the frequency, from 0.5 (rough) to 2 (clouds).

    Its mean square is 1 in every image.
    """
    white = torch.randn(number, *shape, generator=draws).to(device)
    power = 0.5 + 1.5 * torch.rand(number, shape[0], 1, 1, generator=draws).to(device)
    rows = torch.fft.fftfreq(shape[1], device=device)
    columns = torch.fft.rfftfreq(shape[2], device=device)
    frequency = (rows[:, None].square() + columns.square()).sqrt() + _LOWEST_FREQUENCY
    noise = torch.fft.irfft2(torch.fft.rfft2(white) * frequency**-power, s=shape[1:])
    size = noise.flatten(1).square().mean(1).sqrt().clamp(min=1e-6)
    texture: Tensor = noise / size[:, None, None, None]
    return texture
