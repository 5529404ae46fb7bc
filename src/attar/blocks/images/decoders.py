"""Images from the decoders that clients sent: how many of which class from whom, and which of
them are worth keeping.

Codes are drawn for each client and class apart, so that a client's images do not depend on who
else sends a decoder.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.blocks.ensemble import label_table
from attar.core import ModelSpec, Server, Upload
from attar.errors import SettingsError
from attar.nets import to_shape
from attar.nets.cvae import Decoder
from attar.seeds import derive, generator

Allocation = Literal["labels", "classes", "all-classes"]
Keep = Literal["nearest", "random"]

BATCH = 500
_FIXED = 2**24  # pixels in [0, 1] as whole numbers: sums of these are exact, whatever their order


class Decoders(nn.Module):
    """The frozen decoders of some uploads: codes and a class of the task -> canonical images."""

    def __init__(self, uploads: Sequence[Upload], server: Server) -> None:
        super().__init__()
        self.parts = [upload.parts["decoder"] for upload in uploads]
        self.names = [upload.client for upload in uploads]
        self.server = server
        self.nets = nn.ModuleList(part.build() for part in self.parts)
        self.to(server.device)

    def latent(self, row: int) -> int:
        net = self.nets[row]
        assert isinstance(net, Decoder)
        return net.latent

    def largest_latent(self) -> int:
        return max(self.latent(row) for row in range(len(self.nets)))

    def codes(
        self,
        row: int,
        column: int,
        number: int,
        width: float | None = None,
        latent: int | None = None,
    ) -> Tensor:
        """z ~ N(0, I), cut off at ``width`` on both sides where given: the same for a seed,
        client and class.
        """
        draws = generator(
            self.server.seed, "codes", self.names[row], self.server.task.classes[column]
        )
        return draw_codes(number, latent or self.latent(row), width, draws)

    @torch.no_grad()
    def images(self, row: int, column: int, codes: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] of one class, which the client must know. A decoder uses the
        first entries of a longer code.
        """
        part, net = self.parts[row], self.nets[row]
        place = part.classes.index(self.server.task.classes[column])
        made = []
        for some in codes.to(self.server.device).split(BATCH):
            label = F.one_hot(
                torch.full((len(some),), place, device=some.device), len(part.classes)
            ).to(some)
            picture = part.preprocess(net(some[:, : self.latent(row)], label))
            made.append(to_shape(picture.clamp(0, 1), self.server.task.input_shape))
        return torch.cat(made)

    def of_class(
        self, column: int, numbers: Tensor, width: float | None = None, latent: int | None = None
    ) -> Tensor:
        """The images of one class, ``numbers`` (K,) from each decoder, one client's after the other's."""
        codes = [
            self.codes(row, column, number, width, latent)
            for row, number in enumerate(numbers.tolist())
        ]
        made = [self.images(row, column, some) for row, some in enumerate(codes) if len(some)]
        return (
            torch.cat(made)
            if made
            else torch.zeros(0, *self.server.task.input_shape, device=self.server.device)
        )


def fresh_decoder(decoders: Decoders) -> Decoder:
    """A new one of the commonest architecture among these, over the task's classes and in its
    image shape.

    Its codes are as long as there, also where more classes would make a fresh net's longer.
    """
    specs, server = [part.spec for part in decoders.parts], decoders.server
    spec = max(specs, key=specs.count)
    spec = ModelSpec.of(
        spec.arch, {**dict(spec.options), "latent": decoders.latent(specs.index(spec))}
    )
    net = spec.build(
        server.task.input_shape, len(server.task.classes), derive(server.seed, "decoder")
    )
    assert isinstance(net, Decoder)
    return net.to(server.device)


def draw_codes(number: int, latent: int, width: float | None, draws: torch.Generator) -> Tensor:
    """(number, latent) on the CPU: standard normal, or truncated to [-width, width]."""
    if width is None:
        return torch.randn(number, latent, generator=draws)
    codes = torch.empty(number, latent)
    return nn.init.trunc_normal_(codes, a=-width, b=width, generator=draws)


def allot(
    uploads: Sequence[Upload], server: Server, samples: int, exponent: float, how: Allocation
) -> Tensor:
    """How many images of each class each decoder makes, int64 (K, C), ``samples`` in all.

    "labels": in proportion to n_kc^exponent over all clients and classes, each client's own
    label distribution at exponent 1. "classes": as many of each class that anybody holds; within
    a class in proportion to n_kc^exponent. "all-classes": the same, and a class that nobody
    holds comes from all who can be asked for it, alike.
    """
    counts = label_table(uploads, server.task.classes, "decoder").double()
    weights = torch.where(counts > 0, counts**exponent, 0.0)
    if not weights.isfinite().all():
        raise SettingsError(
            f"count_exponent = {exponent:g}: too large for label counts of up to {int(counts.max()):,}.",
            fix="10 all but leaves a class to the client that holds most of it",
        )
    if how == "labels":
        return share_out(weights.flatten(), samples).view(counts.shape)
    if how == "all-classes":
        asked = [
            [name in upload.parts["decoder"].classes for name in server.task.classes]
            for upload in uploads
        ]
        weights = torch.where(torch.tensor(asked) & (counts.sum(0) == 0), 1.0, weights)
    of_each_class = share_out((weights.sum(0) > 0).double(), samples)
    return torch.stack([share_out(weights[:, c], int(n)) for c, n in enumerate(of_each_class)], 1)


def share_out(weights: Tensor, total: int) -> Tensor:
    """Whole numbers in proportion to the weights, ``total`` in all; the largest remainders are
    rounded up.
    """
    if not total or not weights.sum() > 0:
        return torch.zeros(len(weights), dtype=torch.int64)
    exact = total * weights / weights.sum()
    numbers = exact.floor().long()
    for place in (exact - numbers).argsort(descending=True, stable=True)[
        : total - int(numbers.sum())
    ]:
        numbers[place] += 1
    return numbers


def nearest_to_centre(images: Tensor, ratio: float) -> Tensor:
    """FedMHO Algorithm 2, lines 4-10: indices of the images that stay, in order; (1 - R_th) |D|
    of them, the farthest, go.

    K-means with one cluster on pixels is their mean. Which images stay does not depend on their
    order: the mean is exact in fixed point, and equal distances are told apart by the pixels
    themselves.
    """
    flat = images.flatten(1).double()
    whole = (flat * _FIXED).round().long()
    centre = whole.sum(0).double() / (_FIXED * max(1, len(flat)))
    distance = (flat - centre).square().sum(1)
    _, rank = flat.unique(dim=0, return_inverse=True)  # as words in a dictionary
    order: Tensor = rank.argsort(stable=True)
    order = order[distance[order].argsort(stable=True)]
    return order[: len(flat) - dropped(len(flat), ratio)].sort().values


def which_stay(images: Tensor, label: int, *, ratio: float, keep: Keep, seed: int) -> Tensor:
    """Indices of the images of a class that stay: the nearest (Algorithm 2), or as many at
    random (Table 6).
    """
    if keep == "nearest":
        return nearest_to_centre(images, ratio)
    order = torch.randperm(len(images), generator=generator(seed, "keep", label))
    return order[: len(images) - dropped(len(images), ratio)].to(images.device)


def dropped(number: int, ratio: float) -> int:
    """floor((1 - R_th) n), where 0.2 of 10 is 2 in spite of rounding."""
    return int((1 - ratio) * number + 1e-6)
