"""How canonical images reach an ONNX net: channels first, channels last, or as rows of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attar.errors import PackError
from attar.nets import Shape
from attar.packing.onnx.file import OnnxGraph, OnnxNode

Layout = Literal["nchw", "nhwc"]
_COLOURS = (1, 3, 4)  # usual numbers of channels
_TO_FIRST = [0, 3, 1, 2]


@dataclass(frozen=True)
class ImageInput:
    """The images that a net takes.

    Attributes:
        shape: of one image, (C, H, W).
        layout: of its axes inside the file.
        flat: whether the file takes rows of numbers.
    """

    shape: Shape
    layout: Layout
    flat: bool = False

    def arrange(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) as the file takes them."""
        if self.layout == "nhwc":
            images = images.permute(0, 2, 3, 1)
        return images.flatten(1) if self.flat else images

    def is_undone_by(self, node: OnnxNode, name: str) -> bool:
        """Whether a node brings the channels of the input ``name`` back to the front."""
        return self.layout == "nhwc" and not self.flat and _moves_channels(node, name)


def find_input(
    graph: OnnxGraph, nodes: Sequence[OnnxNode], shape: Shape | None, layout: Layout | None
) -> ImageInput:
    """Find out how images reach the net.

    Args:
        graph: of the file.
        nodes: those that matter; a first one that moves the channels says that they come last.
        shape: that the user gave, (C, H, W).
        layout: that the user gave.

    Raises:
        PackError: if the file takes something else, or its shape is not known.
    """
    sizes = graph.input_sizes[1:]
    given = list(graph.input_sizes)
    if len(sizes) == 1:
        return _flat(sizes[0], shape, layout)
    if len(sizes) != 3:
        raise PackError(
            f"The input {graph.input} has {len(given)} axes; a batch of images has 4 "
            "(or 2, as rows of numbers).",
            fix="export the net with the shape of its images",
        )
    layouts = [layout] if layout else _possible(sizes, shape, nodes, graph.input)
    if not layouts:
        raise PackError(
            f"The file takes images of {_words(sizes)} (batch aside), not of "
            f"{_words(shape or ())}.",
            fix="--sample-shape names channels, height and width of the file's images",
        )
    chosen = layouts[0]
    own = sizes if chosen == "nchw" else (sizes[2], *sizes[:2])
    if shape is None:
        if None in own:
            raise PackError(
                f"The file does not say how large its images are ({_words(sizes)}).",
                fix="--sample-shape C,H,W",
            )
        channels, height, width = own
        return ImageInput((channels or 0, height or 0, width or 0), chosen)
    if any(side not in (None, wanted) for side, wanted in zip(own, shape, strict=True)):
        raise PackError(
            f"The file takes images of {_words(sizes)} ({chosen}), not of {_words(shape)}.",
            fix="--sample-shape names channels, height and width; --layout says where the "
            "channels are",
        )
    return ImageInput(shape, chosen)


def _possible(
    sizes: Sequence[int | None], shape: Shape | None, nodes: Sequence[OnnxNode], name: str
) -> list[Layout]:
    """The layouts that fit, the likeliest first."""
    if shape is not None:
        orders: dict[Layout, Sequence[int]] = {"nchw": shape, "nhwc": (*shape[1:], shape[0])}
        fitting: list[Layout] = [
            layout
            for layout, order in orders.items()
            if all(side in (None, wanted) for side, wanted in zip(sizes, order, strict=True))
        ]
    else:
        fitting = ["nchw", "nhwc"]
    last = sizes[2] in _COLOURS and sizes[0] not in _COLOURS
    moved = any(_moves_channels(node, name) for node in nodes)
    if (last or moved) and "nhwc" in fitting:
        fitting.sort(key=lambda layout: layout != "nhwc")
    return fitting


def _moves_channels(node: OnnxNode, name: str) -> bool:
    """Whether a node brings the channels of the value ``name`` from the last axis to the first."""
    order = list(node.attributes.get("perm") or ())
    return node.op == "Transpose" and node.inputs == (name,) and order == _TO_FIRST


def _flat(size: int | None, shape: Shape | None, layout: Layout | None) -> ImageInput:
    if shape is None:
        raise PackError(
            f"The file takes rows of {size or 'any number of'} numbers: which images they are is "
            "not said.",
            fix="--sample-shape C,H,W (and --layout nhwc if the channels of a pixel stand "
            "together)",
        )
    if size is not None and math.prod(shape) != size:
        raise PackError(
            f"The file takes rows of {size:,} numbers; images of {_words(shape)} have "
            f"{math.prod(shape):,}.",
            fix="give the --sample-shape of its images",
        )
    return ImageInput(shape, layout or "nchw", flat=True)


def _words(sizes: Sequence[int | None]) -> str:
    return " x ".join("?" if side is None else str(side) for side in sizes)
