"""A try to reconstruct training images from a classifier alone, by inversion.

Noise is changed in small steps until the net is sure of a class, as for the robustness report.
The pictures are then compared with members and with as many other images: where the net has kept
members, some pictures are much nearer to one of them than to anything else. It is one simple
attack with little time; a stronger one may succeed where it fails.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import PixelBatch
from attar.blocks.student import total_variation
from attar.core import Part
from attar.models import Classifier
from attar.nets import to_shape
from attar.privacy.attacks import Answer
from attar.privacy.candidates import Candidates
from attar.privacy.decoder_check import REPEATED
from attar.privacy.fid import find_nearest
from attar.seeds import rng

PICTURES = 60  # in all
STEPS = 200
RATE = 0.05
VARIATION = 1e-3
SHIFT = 2  # pixels by which pictures are moved about
SIDE = 32  # pixels at which pictures are compared
SHOWN = 6
DOUBTFUL = 0.8  # of the distance to another image; a picture that is no copy lies at 0.9 to 1.1


@dataclass(frozen=True)
class Reconstruction:
    """What inversion brought to light.

    Attributes:
        pictures: how many were made.
        images: of members, and as many of others, that they were compared with.
        nearer: pictures that lie nearer to a member than to any other image.
        least: the smallest distance to a member, divided by that to the nearest other image.
        shown: (n, 2, C, H, W) in [0, 1]: pictures with the smallest such ratios, and the nearest
            member of each.
        labels: the class of each of these pictures.
    """

    pictures: int
    images: int
    nearer: int
    least: float
    shown: Tensor
    labels: tuple[str, ...]

    @property
    def answer(self) -> Answer:
        """Whether the file may be sent, as far as this try shows.

        The share of ``nearer`` does not decide: pictures of one class resemble each other.
        """
        if self.least < REPEATED:
            return "no"
        return "cannot tell" if self.least < DOUBTFUL else "yes"


def try_reconstruction(
    part: Part,
    candidates: Candidates,
    *,
    steps: int = STEPS,
    seed: int = 0,
    device: str = "cpu",
) -> Reconstruction | None:
    """Invert a classifier and compare the pictures with members and others.

    Args:
        part: the net.
        candidates: members and others.
        steps: of the inversion.
        seed: of the noise that it starts from.
        device: where to compute.

    Returns:
        What came of it; None where there are too few images of either kind.
    """
    size = min(candidates.members, candidates.others)
    if size < 2:
        return None
    held = candidates.images.labels[: candidates.members].unique().tolist()
    targets = torch.tensor([held[place % len(held)] for place in range(max(PICTURES, len(held)))])
    places = torch.tensor([part.classes.index(name) for name in candidates.images.classes])
    shape = candidates.images.image_shape
    pictures = invert(part, places[targets], shape, steps=steps, seed=seed, device=device)
    small = (shape[0], min(SIDE, shape[1]), min(SIDE, shape[2]))
    pixels = candidates.images.pixels
    inside = pixels[:size].float() / 255
    outside = pixels[candidates.members :][:size].float() / 255
    to_member, nearest = find_nearest(to_shape(pictures, small), to_shape(inside, small))
    to_other, _ = find_nearest(to_shape(pictures, small), to_shape(outside, small))
    ratio = to_member / to_other.clamp(min=1e-9)
    firsts: dict[int, int] = {}
    for place in ratio.argsort().tolist():  # each training image is shown once
        firsts.setdefault(int(nearest[place]), place)
    order = torch.tensor(list(firsts.values())[:SHOWN])
    return Reconstruction(
        pictures=len(pictures),
        images=size,
        nearer=int((ratio < 1).sum()),
        least=float(ratio.min()),
        shown=torch.stack([pictures[order], inside[nearest[order]]], 1),
        labels=tuple(candidates.images.classes[int(targets[place])] for place in order),
    )


def invert(
    part: Part,
    targets: Tensor,
    shape: tuple[int, int, int],
    *,
    steps: int = STEPS,
    seed: int = 0,
    device: str = "cpu",
) -> Tensor:
    """Make pictures that a classifier is sure of.

    Args:
        part: the net.
        targets: a class for each picture, (B,).
        shape: of a picture.
        steps: of Adam.
        seed: of the noise that they start from.
        device: where to compute.

    Returns:
        (B, C, H, W) in [0, 1], on the CPU.
    """
    net = Classifier(part).to(device)
    draws = rng(seed, "inversion")
    coarse = torch.rand(len(targets), shape[0], 7, 7, generator=draws)
    start = to_shape(coarse, shape).to(device)
    shifts = torch.randint(-SHIFT, SHIFT + 1, (steps, 2), generator=draws).tolist()

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        down, right = shifts.pop()
        logits = net(images.roll((down, right), (2, 3)))
        return F.cross_entropy(logits, labels) + VARIATION * total_variation(images)

    batch = PixelBatch(start, loss, lr=RATE)
    for _ in range(steps):
        batch.step(targets.to(device))
    return batch.images.detach().clamp(0, 1).nan_to_num(0.5).cpu()
