"""The image generator of DAFL and DENSE, which Co-Boosting and FedHydra use too, and what is fed
into it.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.nets.registry import Shape
from attar.seeds import derive


class GeneratorWork(Protocol):
    """What a method says of a generator: how large it is and how it is trained for one batch of
    images.
    """

    @property
    def generator_steps(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def generator_lr(self) -> float: ...
    @property
    def noise(self) -> int: ...
    @property
    def generator_width(self) -> int: ...


class ImageGenerator(nn.Module):
    """Noise (B, noise) -> canonical images (B, C, H, W) in [0, 1].

    A linear layer to a quarter of the size, two times (upsample, 3x3 convolution, BatchNorm,
    leaky ReLU), a 3x3 convolution and a sigmoid. BatchNorm always uses the batch's own
    statistics: the generator never works on single images. Sizes that are no multiple of four
    come from the next larger one by a bilinear resize.
    """

    def __init__(self, shape: Shape, noise: int, width: int) -> None:
        super().__init__()
        channels, self.height, self.width = shape
        self.start = (2 * width, -(-self.height // 4), -(-self.width // 4))
        self.linear = nn.Linear(noise, self.start[0] * self.start[1] * self.start[2])
        self.body = nn.Sequential(
            nn.BatchNorm2d(2 * width, track_running_stats=False),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width, track_running_stats=False),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, channels, 3, padding=1),
        )

    def forward(self, noise: Tensor) -> Tensor:
        images: Tensor = (
            self.body(self.linear(noise).view(-1, *self.start)).to(noise.dtype).sigmoid()
        )
        if images.shape[2:] != (self.height, self.width):
            images = F.interpolate(
                images, (self.height, self.width), mode="bilinear", align_corners=False
            )
        return images


def new_generator(
    shape: Shape, noise: int, width: int, seed: int, *purpose: str | int
) -> ImageGenerator:
    """A fresh generator on the CPU: normal(0, 0.02) weights, zero biases, BatchNorm around one,
    as DCGAN and DENSE start.

    Channels lie last in memory: a third faster, on CPUs and GPUs.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "generator", *purpose))
        generator = ImageGenerator(shape, noise, width)
        for module in generator.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)
    return generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def draw_noise(batch_size: int, noise: int, draws: torch.Generator, device: str) -> Tensor:
    """z ~ N(0, I)."""
    return torch.randn(batch_size, noise, generator=draws).to(device)


def draw_labels(
    batch_size: int,
    num_classes: int,
    draws: torch.Generator,
    device: str,
    shares: Tensor | None = None,
) -> Tensor:
    """y uniform over the classes, or in proportion to ``shares`` (C,)."""
    odds = torch.ones(num_classes) if shares is None else shares.cpu().float()
    return torch.multinomial(odds, batch_size, replacement=True, generator=draws).to(device)
