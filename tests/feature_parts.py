"""Sums of synthetic features as parts of uploads, computed in the plainest way."""

import torch

from attar.core import ModelSpec, Part, Preprocess

CLASSES = ("a", "b", "c")
BITS = 24


def draw_features(number, width=6, classes=3, seed=0, apart=1.5):
    """Features of classes with covariances of their own, labels and halves."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (number,), generator=draws)
    means = apart * torch.randn(classes, width, generator=draws, dtype=torch.float64)
    mix = torch.randn(classes, width, width, generator=draws, dtype=torch.float64)
    noise = torch.randn(number, 1, width, generator=draws, dtype=torch.float64)
    phi = means[labels] + (noise @ mix[labels]).squeeze(1) * width**-0.5
    halves = torch.randint(0, 2, (number,), generator=draws)
    return phi, labels, halves


def plain_sums(phi, labels, halves, classes=3):
    """Counts, sums and squares by class, in double precision, one image at a time."""
    width = phi.shape[1]
    counts = torch.zeros(2, classes, dtype=torch.float64)
    sums = torch.zeros(2, classes, width, dtype=torch.float64)
    squares = torch.zeros(2, classes, width, width, dtype=torch.float64)
    for x, label, half in zip(phi, labels.tolist(), halves.tolist(), strict=True):
        counts[half, label] += 1
        sums[half, label] += x
        squares[half, label] += torch.outer(x, x)
    return counts, sums, squares


def sums_part(
    phi, labels, halves, *, classes=CLASSES, per_class=False, bits=BITS, state=None, **options
):
    """A ``sums`` part; ``state`` replaces some of its tensors."""
    counts, sums, squares = plain_sums(phi, labels, halves, len(classes))
    if not per_class:
        squares = squares.sum(1, keepdim=True)
    rows, columns = torch.tril_indices(phi.shape[1], phi.shape[1])
    given = {
        "counts": counts.long(),
        "sums": (sums * 2**bits).round().long(),
        "squares": (squares[..., rows, columns] * 2**bits).round().long(),
    }
    spec = ModelSpec.of(
        "feature-sums",
        {
            "backbone": "toy",
            "fingerprint": "f" * 64,
            "features": phi.shape[1],
            "bits": bits,
            "per_class": per_class,
            **options,
        },
    )
    return Part(spec, {**given, **(state or {})}, tuple(classes), Preprocess.centred((1, 8, 8)))
