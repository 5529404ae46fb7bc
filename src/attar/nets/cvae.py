"""Conditional variational autoencoders (Sohn et al., NeurIPS 2015) as FedMHO sizes them, and
their decoders alone.

A ``CVAE`` is trained at home: ``forward(images, labels, noise)`` gives the logits of the pixels
and the mean and log-variance of the latent code. A ``Decoder`` is what travels: ``forward(noise,
labels)`` gives images in [0, 1]. Labels are one-hot, (B, C).

cvae-small   by data set (Table 1's "small"):   mnist   pixels and label - 256 - 2, mirrored
                                                emnist  conv 8-16, 256 and label - 20, mirrored
                                                svhn    conv 8-16-32, 256 and label - 20, mirrored
cvae-large   conv 64-128, max-pool, 256, max-pool, 256 and label - 20; back through 256-128-64 and two bilinear upsamplings

Layers and latent sizes follow from the published parameter counts and from Table 2; that paper
gives neither activations (here ReLU) nor what happens to other image sizes: maps are rounded
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
    """Images and labels -> mean and log-variance of the code. ``early``: the label enters with
    the pixels, else before the end.
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
        features = self.trunk(images)
        features = self.hidden(torch.cat([features, labels], 1) if self.early else features).relu()
        if not self.early:
            features = torch.cat([features, labels], 1)
        return self.mean(features), self.log_variance(features)


class Decoder(nn.Module):
    """Noise (B, latent) and one-hot labels (B, C) -> images in [0, 1]."""

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
        self.latent, self.num_classes, self.start, self.size = latent, num_classes, start, shape[1:]
        self.hidden = nn.Linear(latent + num_classes, hidden)
        self.widen = nn.Linear(hidden, start[0] * start[1] * start[2])
        self.body = nn.Sequential(*stages)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return self.logits(noise, labels).sigmoid()

    def logits(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Of every pixel: a Bernoulli's, in units where the cross entropy of (3) is exact."""
        maps: Tensor = self.widen(self.hidden(torch.cat([noise, labels], 1)).relu())
        maps = self.body(maps.view(-1, *self.start))
        if maps.shape[2:] != self.size:
            maps = F.interpolate(maps, self.size, mode="bilinear", align_corners=False)
        return maps


class CVAE(nn.Module):
    """Encoder and decoder; only the decoder ever leaves the client."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    @property
    def latent(self) -> int:
        return self.decoder.latent

    def forward(
        self, images: Tensor, labels: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the pixels, mean and log-variance; z = mean + exp(log-variance / 2) noise."""
        mean, log_variance = self.encoder(images, labels)
        code = mean + (log_variance / 2).exp() * noise
        return self.decoder.logits(code, labels), mean, log_variance


def form_of(form: Form, input_shape: Shape, num_classes: int) -> str:
    """``auto``: grey images and at most 10 classes are MNIST, other grey ones EMNIST, colour
    SVHN, as for ``cnn-mho``.
    """
    if form == "auto":
        return "svhn" if input_shape[0] > 1 else "mnist" if num_classes <= 10 else "emnist"
    return form


def _small_decoder(
    input_shape: Shape, num_classes: int, form: Form, latent: int, hidden: int
) -> Decoder:
    form_ = form_of(form, input_shape, num_classes)
    _check("cvae-small", input_shape, hidden, 2 ** len(STAGES[form_]))
    channels, height, width = input_shape
    widths = (*reversed(STAGES[form_]), channels)
    halvings = 2 ** (len(widths) - 1)
    stages: list[nn.Module] = []
    for before, after in pairwise(widths):
        stages += [nn.ReLU(), nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)]
    start = (widths[0], -(-height // halvings), -(-width // halvings))
    return Decoder(input_shape, num_classes, latent or LATENT[form_], hidden, start, stages)


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
    return Decoder(
        input_shape,
        num_classes,
        latent or LARGE_LATENT,
        hidden,
        (256, -(-height // 4), -(-width // 4)),
        stages,
    )


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
    """``latent`` 0: as published, 2 for the form mnist (Table 2's 408 K operations) and 20 for
    the others.
    """
    decoder = _small_decoder(input_shape, num_classes, form, latent, hidden)
    widths = (input_shape[0], *STAGES[form_of(form, input_shape, num_classes)])
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
    halvings = 2 ** (len(widths) - 1)
    flat = widths[-1] * (input_shape[1] // halvings) * (input_shape[2] // halvings)
    trunk = nn.Sequential(*layers, nn.Flatten())
    return CVAE(
        Encoder(trunk, flat, hidden, num_classes, decoder.latent, early=not layers), decoder
    )


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
    """``latent`` 0: as published, 20."""
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
    return CVAE(Encoder(trunk, flat, hidden, num_classes, decoder.latent, early=False), decoder)


@register(
    "cvae-small-decoder",
    "What a client with cvae-small sends.",
    usual_shape=(1, 28, 28),
    kind="decoder",
)
def cvae_small_decoder(
    input_shape: Shape, num_classes: int, *, form: Form = "auto", latent: int = 0, hidden: int = 256
) -> nn.Module:
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
    return _large_decoder(input_shape, num_classes, latent, hidden)
