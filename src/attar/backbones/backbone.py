"""A frozen net that turns images into features, and what is agreed about it."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import SpecError
from attar.internal.tensors import hash_tensors
from attar.nets import OUTPUTS, FeatureViews, describe_net
from attar.packing import pack_part

VERSION = 1  # of how phi is made of an image; raised whenever the same backbone gives another phi


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen net without a head.

    Attributes:
        name: as it was asked for, without a path of this machine.
        net: in eval mode, on the CPU; ``net.features(x)`` gives (B, features).
        preprocess: canonical image -> its input.
        features: width of its features.
        architecture: of ``net`` as text, the same on every machine.
        spec: of ``net``; None for a net of another package, which ``classifier`` packs.
        centre: (features,), a constant subtracted from the features; None for 0.
        mirror: whether features are averaged with those of the mirror image.
        root: whether the root of the features is taken.
    """

    name: str
    net: nn.Module
    preprocess: Preprocess
    features: int
    architecture: str
    spec: ModelSpec | None = None
    centre: Tensor | None = None
    mirror: bool = False
    root: bool = False

    @cached_property
    def extractor(self) -> nn.Module:
        """The net whose ``features`` are summed: ``net``, with mirror images and roots."""
        if not (self.mirror or self.root):
            return self.net
        return FeatureViews(self.net, mirror=self.mirror, root=self.root).eval()

    @cached_property
    def body(self) -> tuple[ModelSpec, dict[str, Tensor]]:
        """Architecture and weights as a net of attar without its head.

        Raises:
            PackError: if a net of another package cannot be packed.
        """
        if self.spec is not None:
            return self.spec, self.net.state_dict()
        packed = pack_part(_WithHead(self.net, self.features), None, self.preprocess)
        state = {name: v for name, v in packed.state.items() if not name.startswith("head.")}
        return packed.spec, state

    @cached_property
    def weights_hash(self) -> str:
        """The sha256 over its weights."""
        state = self.net.state_dict()
        return hash_tensors(state[name] for name in sorted(state))

    def fingerprint(self, dimensions: int, clip: float, bits: int) -> str:
        """The sha256 over everything that the sums of a client are made with.

        Sums of different fingerprints are never added. Clients agree on all of it before they
        look at an image: net, weights, input size, normalisation, centre, projection, clip, grid.

        Args:
            dimensions: to which features are projected; 0 for no projection.
            clip: length to which phi is clipped; 0 for none.
            bits: numbers are multiples of 2^-bits.
        """
        agreed = {
            "version": VERSION,
            "net": self.architecture,
            "weights": self.weights_hash,
            "input": list(self.preprocess.input_shape),
            "mean": list(self.preprocess.mean),
            "std": list(self.preprocess.std),
            "features": self.features,
            "centre": None if self.centre is None else hash_tensors([self.centre]),
            "dimensions": dimensions,
            "clip": float(clip),
            "bits": bits,
        }
        agreed |= self._views  # only what is on: sums without it keep their fingerprint
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()

    @property
    def _views(self) -> dict[str, bool]:
        return {name: True for name in ("mirror", "root") if getattr(self, name)}

    def classifier(
        self,
        weight: Tensor,
        bias: Tensor,
        classes: tuple[str, ...],
        dimensions: int,
        clip: float,
    ) -> Part:
        """Put a linear head on the backbone.

        Args:
            weight: (C, D) of the head, for phi.
            bias: (C,).
            classes: names in the order of the logits.
            dimensions: to which features are projected; 0 for no projection, D = features.
            clip: length to which phi is clipped; 0 for none.

        Returns:
            A net like any other, whose ``features`` are phi.

        Raises:
            SpecError: if the head does not fit.
            PackError: if a net of another package cannot be packed.
        """
        wanted = (len(classes), dimensions or self.features)
        if tuple(weight.shape) != wanted or tuple(bias.shape) != wanted[:1]:
            shapes = f"{list(weight.shape)} and {list(bias.shape)}"
            raise SpecError(
                f"A head of shape {shapes} does not fit {wanted[0]} classes and {wanted[1]} "
                f"features of {self.name}."
            )
        body, weights = self.body
        spec = ModelSpec.of(
            "frozen-backbone",
            {
                "backbone": self.name,
                "net": describe_net(body),
                "features": self.features,
                "dimensions": dimensions,
                "clip": clip,
                **self._views,
            },
        )
        centre = torch.zeros(self.features) if self.centre is None else self.centre
        state = {f"body.{name}": value for name, value in weights.items()}
        state |= {
            "centre": centre.float(),
            "head.weight": weight.float(),
            "head.bias": bias.float(),
        }
        return Part(spec, state, classes, self.preprocess)


class _WithHead(nn.Module):
    """A net as a classifier, which is what can be packed; the head is left out again."""

    def __init__(self, net: nn.Module, features: int) -> None:
        super().__init__()
        self.net = net
        self.head = nn.Linear(features, OUTPUTS)
        draws = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.head.weight.normal_(generator=draws).div_(features**0.5)
            self.head.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.net.features(images))  # type: ignore[operator]
        return logits
