"""The images of a membership test: members, and others that differ from them in nothing else.

If the others were of other classes, or classes in other shares, an attack would find members by
their class. So others are thinned until each class has about its share of the members.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.errors import DataError
from attar.seeds import rng
from attar.training import ClientData

MOST_MEMBERS, MOST_OTHERS = 10_000, 20_000
TOLERANCE = 1.5  # a class may have so many times its share


@dataclass(frozen=True)
class Candidates:
    """Images whose membership an attacker guesses.

    Attributes:
        images: members first, then others, with the classes of the client.
        members: how many of them are members.
        duplicates: others that were left out, since the same picture is a member.
    """

    images: ClientData
    members: int
    duplicates: int = 0

    @property
    def others(self) -> int:
        """How many are not members."""
        return len(self.images.labels) - self.members


def pick_candidates(
    members: ClientData,
    others: ClientData,
    *,
    most: tuple[int, int] = (MOST_MEMBERS, MOST_OTHERS),
    seed: int = 0,
) -> Candidates:
    """Choose members and others of the same classes in about the same shares.

    Args:
        members: what the upload was trained on.
        others: images that it was not trained on.
        most: of members and of others.
        seed: of the choice.

    Returns:
        The images. There may be no others at all.

    Raises:
        DataError: if the others have another shape.
    """
    if len(others.labels) and others.image_shape != members.image_shape:
        raise DataError(
            f"The non-members are images of {others.image_shape}, the members of "
            f"{members.image_shape}: an attack would tell them apart by that.",
            fix="name a source of the same images, or its size: SOURCE?size=28",
        )
    known = {name: place for place, name in enumerate(members.classes)}
    places = torch.tensor([known.get(name, -1) for name in others.classes])
    labels = places[others.labels] if len(others.labels) else others.labels
    seen = set(_digests(members.pixels))
    is_copy = torch.tensor([digest in seen for digest in _digests(others.pixels)], dtype=torch.bool)
    usable = (labels >= 0) & ~is_copy
    shuffled = torch.randperm(len(labels), generator=rng(seed, "non-members"))
    rows = shuffled[usable[shuffled]]
    rows = rows[_match(members.labels, labels[rows], len(members.classes))][: most[1]]
    present = labels[rows].bincount(minlength=len(members.classes)) > 0
    inside = torch.randperm(len(members.labels), generator=rng(seed, "members"))
    if len(rows):  # a class that no other image has cannot be tested
        inside = inside[present[members.labels[inside]]]
    inside = inside[: most[0]]
    images = ClientData(
        name=members.name,
        pixels=torch.cat([members.pixels[inside], others.pixels[rows]]),
        labels=torch.cat([members.labels[inside], labels[rows]]),
        classes=members.classes,
    )
    return Candidates(images, len(inside), int((is_copy & (labels >= 0)).sum()))


def _match(members: Tensor, others: Tensor, classes: int) -> Tensor:
    """Positions of others that are kept, in order, so that classes have about equal shares."""
    shares = members.bincount(minlength=classes).double() / max(1, len(members))
    counts = others.bincount(minlength=classes).double()
    shared = (shares > 0) & (counts > 0)
    if not shared.any():
        return torch.zeros(0, dtype=torch.int64)
    scale = (counts[shared] / shares[shared]).min()
    limits = torch.where(shared, (TOLERANCE * scale * shares).ceil(), 0.0)
    one_hot = torch.nn.functional.one_hot(others, classes)
    rank = (one_hot.cumsum(0) * one_hot).sum(1)
    return (rank <= limits[others]).nonzero().flatten()


def _digests(pixels: Tensor) -> list[bytes]:
    return [hashlib.sha256(image.numpy().tobytes()).digest() for image in pixels.contiguous()]
