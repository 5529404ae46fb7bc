"""The vision transformers of the papers by name: ``vit-*`` and ``deit-*``, of three widths."""

from torch import nn

from attar.nets.registry import Builder, Shape, register
from attar.nets.vit import Distillation, build_vit


def _plain(arch: str, width: int) -> Builder:
    def build(
        input_shape: Shape,
        num_classes: int,
        *,
        patch: int = 4,
        depth: int = 12,
        dropout: float = 0.0,
    ) -> nn.Module:
        return build_vit(arch, input_shape, num_classes, width, patch, depth, dropout)

    return build


def _data_efficient(arch: str, width: int) -> Builder:
    def build(
        input_shape: Shape,
        num_classes: int,
        *,
        patch: int = 4,
        depth: int = 12,
        dropout: float = 0.0,
        distilled: bool = False,
    ) -> nn.Module:
        """A DeiT.

        Args:
            input_shape: (C, H, W).
            num_classes: outputs.
            patch: side of a patch in pixels; it divides the image's sides.
            depth: blocks.
            dropout: rate.
            distilled: whether it has a distillation token with a head.
        """
        distillation: Distillation = "head" if distilled else "none"
        return build_vit(arch, input_shape, num_classes, width, patch, depth, dropout, distillation)

    return build


for _size, _width in (("Tiny", 192), ("Small", 384), ("Base", 768)):
    _name = f"vit-{_size.lower()}"
    _summary = f"ViT-{_size}: width {_width}, {_width // 64} heads."
    register(_name, _summary, tokens=True)(_plain(_name, _width))
    _name = f"deit-{_size.lower()}"
    _summary = f"DeiT-{_size}: ViT-{_size}, with a distillation token if asked for."
    register(_name, _summary, tokens=True)(_data_efficient(_name, _width))
