"""Conditional variational autoencoders (Sohn et al., NeurIPS 2015) in the sizes of FedMHO.

A ``CVAE`` is trained by a client: ``forward(images, labels, noise)`` gives the logits of the
pixels and the mean and log-variance of the latent code. Only its ``Decoder`` is sent:
``forward(noise, labels)`` gives images in [0, 1]. Labels are one-hot, (B, C).

cvae-small   by data set (Table 1's "small"):   mnist   pixels and label - 256 - 2, mirrored
                                                emnist  conv 8-16, 256 and label - 20, mirrored
                                                svhn    conv 8-16-32, 256 and label - 20, mirrored
cvae-large   conv 64-128, max-pool, 256, max-pool, 256 and label - 20;
             back through 256-128-64 and two bilinear upsamplings

Layers and latent sizes follow from the published parameter counts and from Table 2. The paper
gives neither activations (here ReLU) nor the treatment of other image sizes: maps are rounded
down on the way in, up on the way out, and the picture is resized to its shape.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.nets.limits import require_options, require_side
from attar.nets.registry import Shape, register

Form = Literal["auto", "mnist", "emnist", "svhn"]

STAGES: dict[str, tuple[int, ...]] = {"mnist": (), "emnist": (8, 16), "svhn": (8, 16, 32)}
LATENT = {"mnist": 2, "emnist": 20, "svhn": 20}
LARGE_LATENT = 20


class Encoder(nn.Module):
    """Images and labels -> mean and log-variance of the code.

    Args:
        trunk: images -> features (B, width).
        width: of the features.
        hidden: width of the hidden layer.
        num_classes: length of the labels.
        latent: length of the code.
        early: whether the label enters with the features, or after the hidden layer.
    """

    def __init__(
        self,
        trunk: nn.Module,
        width: int,
        hidden: int,
        num_classes: int,
        latent: int,
        *,
        early: bool,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.early = early
        self.hidden = nn.Linear(width + (num_classes if early else 0), hidden)
        self.mean = nn.Linear(hidden + (0 if early else num_classes), latent)
        self.log_variance = nn.Linear(hidden + (0 if early else num_classes), latent)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, each (B, latent), of images and one-hot labels (B, C)."""
        features = self.trunk(images)
        features = self.hidden(torch.cat([features, labels], 1) if self.early else features).relu()
        if not self.early:
            features = torch.cat([features, labels], 1)
        return self.mean(features), self.log_variance(features)


class Decoder(nn.Module):
    """Noise and labels -> images in [0, 1].

    Args:
        shape: of the images, (C, H, W).
        num_classes: length of the labels.
        latent: length of the noise.
        hidden: width of the hidden layer.
        start: shape of the first map.
        stages: layers from that map to the image.
    """

    def __init__(
        self,
        shape: Shape,
        num_classes: int,
        latent: int,
        hidden: int,
        start: Shape,
        stages: Sequence[nn.Module],
    ) -> None:
        super().__init__()
        self.latent = latent
        self.num_classes = num_classes
        self.start = start
        self.size = shape[1:]
        self.hidden = nn.Linear(latent + num_classes, hidden)
        self.widen = nn.Linear(hidden, start[0] * start[1] * start[2])
        self.body = nn.Sequential(*stages)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Images (B, C, H, W) of noise (B, latent) and one-hot labels (B, C)."""
        return self.logits(noise, labels).sigmoid()

    def logits(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Logits of every pixel as a Bernoulli variable, for which (3)'s cross entropy holds."""
        maps: Tensor = self.widen(self.hidden(torch.cat([noise, labels], 1)).relu())
        maps = self.body(maps.view(-1, *self.start))
        if maps.shape[2:] != self.size:
            maps = F.interpolate(maps, self.size, mode="bilinear", align_corners=False)
        return maps


class CVAE(nn.Module):
    """Encoder and decoder; only the decoder leaves the client."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    @property
    def latent(self) -> int:
        """The length of the code."""
        return self.decoder.latent

    def forward(
        self, images: Tensor, labels: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruct images, with z = mean + exp(log-variance / 2) * noise.

        Args:
            images: (B, C, H, W) in [0, 1].
            labels: one-hot, (B, C).
            noise: standard normal, (B, latent).

        Returns:
            Logits of the pixels, mean and log-variance of the code.
        """
        mean, log_variance = self.encoder(images, labels)
        code = mean + (log_variance / 2).exp() * noise
        return self.decoder.logits(code, labels), mean, log_variance


def resolve_form(form: Form, input_shape: Shape, num_classes: int) -> str:
    """Resolve the form ``auto``, as for the net ``cnn-mho``.

    Args:
        form: ``auto`` takes MNIST's for grey images and at most 10 classes, EMNIST's for other grey
            ones, SVHN's for colour; others stay.
        input_shape: (C, H, W).
        num_classes: of the labels.
    """
    if form == "auto":
        return "svhn" if input_shape[0] > 1 else "mnist" if num_classes <= 10 else "emnist"
    return form


def _small_decoder(
    input_shape: Shape, num_classes: int, form: Form, latent: int, hidden: int
) -> Decoder:
    resolved = resolve_form(form, input_shape, num_classes)
    _check("cvae-small", input_shape, hidden, 2 ** len(STAGES[resolved]))
    channels, height, width = input_shape
    widths = (*reversed(STAGES[resolved]), channels)
    halvings = 2 ** (len(widths) - 1)
    stages: list[nn.Module] = []
    for before, after in pairwise(widths):
        stages += [nn.ReLU(), nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)]
    start = (widths[0], -(-height // halvings), -(-width // halvings))
    return Decoder(input_shape, num_classes, latent or LATENT[resolved], hidden, start, stages)


def _large_decoder(input_shape: Shape, num_classes: int, latent: int, hidden: int) -> Decoder:
    _check("cvae-large", input_shape, hidden, 4)
    channels, height, width = input_shape
    stages = (
        nn.ReLU(),
        nn.ConvTranspose2d(256, 128, 3, padding=1),
        nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(128, 64, 3, padding=1),
        nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(64, channels, 3, padding=1),
    )
    start = (256, -(-height // 4), -(-width // 4))
    return Decoder(input_shape, num_classes, latent or LARGE_LATENT, hidden, start, stages)


def _check(arch: str, input_shape: Shape, hidden: int, smallest: int) -> None:
    require_side(arch, input_shape, smallest)
    require_options(arch, [f"hidden = {hidden}: at least 1"] if hidden < 1 else [])


@register(
    "cvae-small",
    "CVAE-small of FedMHO, by data set: for clients with little memory.",
    usual_shape=(1, 28, 28),
    published_parameters=409_364,
    kind="cvae",
)
def cvae_small(
    input_shape: Shape, num_classes: int, *, form: Form = "auto", latent: int = 0, hidden: int = 256
) -> nn.Module:
    """CVAE-small of FedMHO.

    Args:
        input_shape: (C, H, W).
        num_classes: length of the labels.
        form: which of its nets; see ``resolve_form``.
        latent: length of the code; 0 is as published, 2 for the form mnist (Table 2's 408 K
            operations) and 20 for the others.
        hidden: width of the hidden layers.
    """
    decoder = _small_decoder(input_shape, num_classes, form, latent, hidden)
    widths = (input_shape[0], *STAGES[resolve_form(form, input_shape, num_classes)])
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
    halvings = 2 ** (len(widths) - 1)
    flat = widths[-1] * (input_shape[1] // halvings) * (input_shape[2] // halvings)
    trunk = nn.Sequential(*layers, nn.Flatten())
    encoder = Encoder(trunk, flat, hidden, num_classes, decoder.latent, early=not layers)
    return CVAE(encoder, decoder)


@register(
    "cvae-large",
    "CVAE-large of FedMHO: convolutions 64-128-256.",
    usual_shape=(1, 28, 28),
    published_parameters=7_193_017,
    kind="cvae",
)
def cvae_large(
    input_shape: Shape, num_classes: int, *, latent: int = 0, hidden: int = 256
) -> nn.Module:
    """CVAE-large of FedMHO.

    Args:
        input_shape: (C, H, W).
        num_classes: length of the labels.
        latent: length of the code; 0 is as published, 20.
        hidden: width of the hidden layers.
    """
    decoder = _large_decoder(input_shape, num_classes, latent, hidden)
    channels, height, width = input_shape
    trunk = nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    flat = 256 * (height // 4) * (width // 4)
    encoder = Encoder(trunk, flat, hidden, num_classes, decoder.latent, early=False)
    return CVAE(encoder, decoder)


@register(
    "cvae-small-decoder",
    "What a client with cvae-small sends.",
    usual_shape=(1, 28, 28),
    kind="decoder",
)
def cvae_small_decoder(
    input_shape: Shape, num_classes: int, *, form: Form = "auto", latent: int = 0, hidden: int = 256
) -> nn.Module:
    """The decoder of ``cvae_small``, with the same options."""
    return _small_decoder(input_shape, num_classes, form, latent, hidden)


@register(
    "cvae-large-decoder",
    "What a client with cvae-large sends.",
    usual_shape=(1, 28, 28),
    kind="decoder",
)
def cvae_large_decoder(
    input_shape: Shape, num_classes: int, *, latent: int = 0, hidden: int = 256
) -> nn.Module:
    """The decoder of ``cvae_large``, with the same options."""
    return _large_decoder(input_shape, num_classes, latent, hidden)
