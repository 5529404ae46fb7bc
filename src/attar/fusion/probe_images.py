"""Images that clients are asked about, made without any data.

The server's public images where it has enough of them; else images inverted from the clients
themselves, together with those that the method made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import NEVER, Teachers
from attar.blocks.images import PixelBatch
from attar.blocks.student import total_variation
from attar.core import Images, Result, Server, Upload
from attar.nets import to_shape
from attar.seeds import rng

IMAGES = 240  # inverted, in all
PER_CLASS = 6
STEPS = 60
RATE = 0.05
VARIATION = 1e-3
SHIFT = 2  # pixels by which images are moved about while they are inverted


@dataclass(frozen=True)
class Probes:
    """Images that clients are asked about.

    Attributes:
        images: (N, C, H, W) in [0, 1].
        source: (N,) the client that each was inverted from; -1: none.
        target: (N,) the class that it was inverted towards; -1: none.
        words: Where they come from.
    """

    images: Tensor
    source: Tensor
    target: Tensor
    words: str


def collect_images(
    uploads: Sequence[Upload],
    known: Tensor,
    teachers: Teachers,
    server: Server,
    result: Result,
    steps: int = STEPS,
) -> Probes:
    """Collect images to ask the clients about.

    Args:
        uploads: The clients, each with a classifier.
        known: (K, C) classes of each client's net.
        teachers: Their nets.
        server: Its public images are used where there are enough.
        result: Of the fusion; its images are used beside inverted ones.
        steps: Of an inversion.
    """
    shape = server.task.input_shape
    if server.public is not None and len(server.public.pixels) >= IMAGES:
        images = to_shape(_sample_images(server.public, server.seed), shape)
        words = f"public images of the server: {server.public.source}"
        nobody = torch.full((len(images),), -1)
        return Probes(images, nobody, nobody, words)
    inverted = invert_clients(uploads, known, teachers, server, steps)
    of_method = [
        images.float().cpu()
        for images in result.images.values()
        if images.dim() == 4 and len(images)
    ]
    if not of_method:
        return inverted
    made = torch.cat([to_shape(images, shape) for images in of_method]).clamp(0, 1)
    nobody = torch.full((len(made),), -1)
    return Probes(
        images=torch.cat([inverted.images, made]),
        source=torch.cat([inverted.source, nobody]),
        target=torch.cat([inverted.target, nobody]),
        words=f"{len(made)} images of the method, {len(inverted.images)} inverted from the clients",
    )


def _sample_images(images: Images, seed: int) -> Tensor:
    chosen = torch.randperm(len(images.pixels), generator=rng(seed, "robustness"))[:IMAGES]
    return images.pixels[chosen].float() / 255


def invert_clients(
    uploads: Sequence[Upload],
    known: Tensor,
    teachers: Teachers,
    server: Server,
    steps: int = STEPS,
    most: int = IMAGES,
) -> Probes:
    """Make a few images of each class that a client holds, by a short inversion of its net alone.

    Of very many clients or classes, some are drawn: there are never more than ``most`` images,
    or one for each client.
    """
    draws = rng(server.seed, "robustness")
    shape = server.task.input_shape
    device = server.device
    claimed = [
        _claimed_classes(upload, known[row], server.task.classes)
        for row, upload in enumerate(uploads)
    ]
    pairs = sum(len(labels) for labels in claimed)
    each = max(1, min(PER_CLASS, most // pairs))
    share = max(1, most // len(uploads))
    images = []
    source = []
    target = []
    for row, labels in enumerate(claimed):
        targets = labels.repeat(each)
        targets = targets[torch.randperm(len(targets), generator=draws)[:share]].to(device)
        coarse = torch.rand(len(targets), shape[0], 7, 7, generator=draws)
        start = to_shape(coarse, shape).to(device)
        shifts = torch.randint(-SHIFT, SHIFT + 1, (steps, 2), generator=draws).tolist()
        inverted = invert_client(
            teachers, row, known[row].to(device), start=start, targets=targets, shifts=shifts
        )
        images.append(inverted.clamp(0, 1).nan_to_num(0.5).cpu())
        source.append(torch.full((len(targets),), row))
        target.append(targets.cpu())
    words = "images inverted from the clients"
    return Probes(torch.cat(images), torch.cat(source), torch.cat(target), words)


def invert_client(
    teachers: Teachers,
    row: int,
    known: Tensor,
    *,
    start: Tensor,
    targets: Tensor,
    shifts: list[list[int]],
) -> Tensor:
    """Optimise images until the client's net gives them these classes, one step for each shift."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        down, right = shifts.pop()
        shifted = images.roll((down, right), (2, 3))
        logits = teachers.run_one(row, shifted).masked_fill(~known, NEVER)
        return F.cross_entropy(logits, labels) + VARIATION * total_variation(images)

    batch = PixelBatch(start, loss, lr=RATE)
    for _ in range(len(shifts)):
        batch.step(targets)
    return batch.images


def _claimed_classes(upload: Upload, known: Tensor, classes: Sequence[str]) -> Tensor:
    """Columns of the classes that a client says it has examples of; all it knows where counts
    are withheld.
    """
    part = upload.parts["classifier"]
    if upload.label_counts is None:
        return known.nonzero().squeeze(1)
    names = [name for name, count in zip(part.classes, upload.label_counts, strict=True) if count]
    return torch.tensor([classes.index(name) for name in names])
