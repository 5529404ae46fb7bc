"""A net in words: its architecture with options, and the input that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attar.errors import SpecError
from attar.nets.initialisation import SkipInitialisation
from attar.nets.registry import NETS, Kind, Shape, build, check_options, find, token_net
from attar.nets.resize import to_shape
from attar.settings import Scalar, pairs


@dataclass(frozen=True)
class ModelSpec:
    """An architecture by name, with its options: hashable, comparable, and plain enough for JSON.

    Attributes:
        arch: one of ``NETS``.
        options: those that differ from the default, sorted; make a spec by ``parse`` or ``of``.
    """

    arch: str
    options: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """Read ``"cnn5"`` or ``"vit-tiny:patch=4,depth=6"``; raises AttarError as ``of`` does."""
        arch, _, rest = text.partition(":")
        return cls.of(arch, pairs([item for item in rest.split(",") if item]))

    @classmethod
    def of(cls, arch: str, options: Mapping[str, Scalar]) -> ModelSpec:
        """Check options and bring them into one form, so that equal nets have equal specs.

        Raises:
            SpecError: if there is no such net, or an option is out of bounds.
            SettingsError: if it has no such option, or the value is of another type.
        """
        checked = check_options(arch, options)
        defaults = find(arch).options
        changed = [item for item in checked.items() if item[1] != defaults[item[0]].default]
        return cls(arch, tuple(sorted(changed)))

    def __str__(self) -> str:
        entry = NETS.get(self.arch)
        if entry is not None and entry.title is not None:
            return entry.title(dict(self.options))
        options = ",".join(f"{key}={value}" for key, value in self.options)
        return f"{self.arch}:{options}" if options else self.arch

    @property
    def fresh(self) -> bool:
        """Whether it can be trained from scratch; a packed net exists only with its weights."""
        return not find(self.arch).required

    @property
    def kind(self) -> Kind:
        """Whether it is a classifier, an autoencoder, a decoder, or statistics."""
        return find(self.arch).kind

    def patches(self, input_shape: Shape) -> tuple[int, int] | None:
        """Rows and columns of patches in an image; None of a net without tokens."""
        if not find(self.arch).tokens:
            return None
        return token_net(self.arch, self.skeleton(input_shape, 1)).grid

    def build(self, input_shape: Shape, num_classes: int, seed: int) -> nn.Module:
        """A newly initialised net on the CPU; equal seeds give equal bits.

        The global random state is left as it was.
        """
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would seed the user's CUDA generators, too.
            torch.default_generator.manual_seed(seed)
            return build(self.arch, dict(self.options), input_shape, num_classes)

    def blank(self, input_shape: Shape, num_classes: int) -> nn.Module:
        """The net on the CPU for weights that will be loaded; its own are not initialised."""
        with torch.random.fork_rng(devices=[]), SkipInitialisation():
            return build(self.arch, dict(self.options), input_shape, num_classes)

    def skeleton(self, input_shape: Shape, num_classes: int) -> nn.Module:
        """The net on the ``meta`` device: names and shapes of its weights without their memory."""
        with torch.device("meta"), SkipInitialisation():
            return build(self.arch, dict(self.options), input_shape, num_classes)


@dataclass(frozen=True)
class Preprocess:
    """Canonical image -> input of one net: grey or colour, resized, normalised; differentiable.

    Of a decoder: its output -> canonical image.

    Attributes:
        input_shape: what the net takes, (C, H, W).
        mean: one for each channel, subtracted.
        std: one for each channel, positive, divided by.
    """

    input_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        channels = self.input_shape[0]
        if len(self.mean) != channels or len(self.std) != channels:
            numbers = f"got {self.mean} and {self.std}"
            raise SpecError(f"Preprocessing needs {channels} means and stds, {numbers}.")
        if any(not 0 < std < float("inf") for std in self.std):
            raise SpecError(f"Preprocessing needs positive standard deviations, got {self.std}.")

    @classmethod
    def centred(cls, input_shape: Shape) -> Preprocess:
        """[0, 1] -> [-1, 1], as in most papers' code."""
        half = (0.5,) * input_shape[0]
        return cls(input_shape, half, half)

    @classmethod
    def plain(cls, input_shape: Shape) -> Preprocess:
        """[0, 1] unchanged: what a CVAE takes and its decoder makes."""
        return cls(input_shape, (0.0,) * input_shape[0], (1.0,) * input_shape[0])

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] -> (B, *input_shape)."""
        images = to_shape(images, self.input_shape)
        if len(set(self.mean)) == len(set(self.std)) == 1:  # no need to split the channels
            return (images - self.mean[0]) / self.std[0]
        each = zip(images.split(1, dim=1), self.mean, self.std, strict=True)
        return torch.cat([(channel - mean) / std for channel, mean, std in each], 1)
