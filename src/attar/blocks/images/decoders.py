"""Images from the decoders that clients sent: how many of which class from which client.

Codes are drawn for each client and class separately, so a client's images do not depend on which
other clients sent a decoder.
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
from attar.seeds import derive, rng

Allocation = Literal["labels", "classes", "all-classes"]

BATCH = 500  # images that a decoder makes at once


class Decoders(nn.Module):
    """The frozen decoders of some uploads: from codes and a class of the task to images.

    Attributes:
        parts: the decoders as they were sent, one per client.
        names: the clients.
        server: gives the seed, the classes and the shape of the images.
        nets: the decoders as nets, on the server's device.
    """

    def __init__(self, uploads: Sequence[Upload], server: Server) -> None:
        super().__init__()
        self.parts = [upload.parts["decoder"] for upload in uploads]
        self.names = [upload.client for upload in uploads]
        self.server = server
        self.nets = nn.ModuleList(part.build() for part in self.parts)
        self.to(server.device)

    def latent(self, row: int) -> int:
        """The length of the codes of one client's decoder."""
        net = self.nets[row]
        assert isinstance(net, Decoder)
        return net.latent

    def largest_latent(self) -> int:
        """The length of the longest codes."""
        return max(self.latent(row) for row in range(len(self.nets)))

    def draw_codes(
        self,
        row: int,
        column: int,
        number: int,
        truncation: float | None = None,
        latent: int | None = None,
    ) -> Tensor:
        """Codes of one client for one class; the same for the same seed, client and class.

        Args:
            row: the client.
            column: the class of the task.
            number: how many codes.
            truncation: bound of their entries on both sides; None: not truncated.
            latent: their length; None: that of the client's decoder.

        Returns:
            (number, latent) on the CPU.
        """
        draws = rng(self.server.seed, "codes", self.names[row], self.server.task.classes[column])
        return draw_codes(number, latent or self.latent(row), truncation, draws)

    @torch.no_grad()
    def decode(self, row: int, column: int, codes: Tensor) -> Tensor:
        """The images that one client's decoder makes of codes.

        Args:
            row: the client.
            column: the class of the task, which the client must know.
            codes: (n, latent); a decoder with shorter codes uses the first entries.

        Returns:
            (n, C, H, W) in [0, 1], in the shape of the task.
        """
        part = self.parts[row]
        net = self.nets[row]
        place = part.classes.index(self.server.task.classes[column])
        images = []
        for batch in codes.to(self.server.device).split(BATCH):
            labels = torch.full((len(batch),), place, device=batch.device)
            condition = F.one_hot(labels, len(part.classes)).to(batch)
            decoded = part.preprocess(net(batch[:, : self.latent(row)], condition))
            images.append(to_shape(decoded.clamp(0, 1), self.server.task.input_shape))
        return torch.cat(images)

    def generate(
        self,
        column: int,
        numbers: Tensor,
        truncation: float | None = None,
        latent: int | None = None,
    ) -> Tensor:
        """Images of one class, those of one client after those of another.

        Args:
            column: the class of the task.
            numbers: (K,) images from each client's decoder.
            truncation: see ``draw_codes``.
            latent: see ``draw_codes``.

        Returns:
            (sum of ``numbers``, C, H, W) in [0, 1].
        """
        codes = [
            self.draw_codes(row, column, number, truncation, latent)
            for row, number in enumerate(numbers.tolist())
        ]
        images = [self.decode(row, column, batch) for row, batch in enumerate(codes) if len(batch)]
        if not images:
            return torch.zeros(0, *self.server.task.input_shape, device=self.server.device)
        return torch.cat(images)


def new_decoder(decoders: Decoders) -> Decoder:
    """A fresh decoder of the most frequent architecture among these.

    It is over the task's classes and in its image shape. Its codes are as long as those of the
    first client with that architecture, also where more classes would make them longer.
    """
    server = decoders.server
    specs = [part.spec for part in decoders.parts]
    commonest = max(specs, key=specs.count)
    latent = decoders.latent(specs.index(commonest))
    spec = ModelSpec.of(commonest.arch, {**dict(commonest.options), "latent": latent})
    net = spec.build(
        server.task.input_shape, len(server.task.classes), derive(server.seed, "decoder")
    )
    assert isinstance(net, Decoder)
    return net.to(server.device)


def draw_codes(
    number: int, latent: int, truncation: float | None, draws: torch.Generator
) -> Tensor:
    """Standard normal codes, truncated to [-truncation, truncation] unless that is None.

    Returns:
        (number, latent) on the CPU.
    """
    if truncation is None:
        return torch.randn(number, latent, generator=draws)
    codes = torch.empty(number, latent)
    return nn.init.trunc_normal_(codes, a=-truncation, b=truncation, generator=draws)


def allocate_images(
    uploads: Sequence[Upload], server: Server, samples: int, exponent: float, rule: Allocation
) -> Tensor:
    """How many images of each class each decoder makes.

    Args:
        uploads: with decoders and label counts n_kc.
        server: names the classes of the task.
        samples: images in all.
        exponent: of the label counts.
        rule: "labels": in proportion to n_kc^exponent over all clients and classes; at exponent 1
            each client follows its own label distribution. "classes": equally many of each class
            that some client holds; within a class in proportion to n_kc^exponent. "all-classes":
            the same, and a class that no client holds comes in equal shares from all clients that
            know it.

    Returns:
        int64 (K, C).

    Raises:
        SettingsError: if a power of a count overflows.
    """
    counts = label_table(uploads, server.task.classes, "decoder").double()
    weights = torch.where(counts > 0, counts**exponent, 0.0)
    if not weights.isfinite().all():
        raise SettingsError(
            f"count_exponent = {exponent:g}: too large for label counts of up to "
            f"{int(counts.max()):,}.",
            fix="use at most 10, which leaves a class almost entirely to the client that holds "
            "most of it",
        )
    if rule == "labels":
        return apportion(weights.flatten(), samples).view(counts.shape)
    if rule == "all-classes":
        known = [
            [name in upload.parts["decoder"].classes for name in server.task.classes]
            for upload in uploads
        ]
        weights = torch.where(torch.tensor(known) & (counts.sum(0) == 0), 1.0, weights)
    class_counts = apportion((weights.sum(0) > 0).double(), samples)
    columns = [apportion(weights[:, c], int(number)) for c, number in enumerate(class_counts)]
    return torch.stack(columns, 1)


def apportion(weights: Tensor, total: int) -> Tensor:
    """Whole numbers in proportion to weights, by the method of largest remainders.

    Args:
        weights: (n,), not negative.
        total: sum of the numbers.

    Returns:
        int64 (n,); zeros where all weights are 0.
    """
    if not total or not weights.sum() > 0:
        return torch.zeros(len(weights), dtype=torch.int64)
    exact = total * weights / weights.sum()
    numbers = exact.floor().long()
    missing = total - int(numbers.sum())
    for place in (exact - numbers).argsort(descending=True, stable=True)[:missing]:
        numbers[place] += 1
    return numbers
