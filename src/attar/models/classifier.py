"""A fused model as a PyTorch module."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from attar.blocks.ensemble import Ensemble
from attar.core import Deployable, Part
from attar.internal.memory import affordable_images
from attar.nets.cost import image_cost

COPIES = 3  # of logits: of the model, as probabilities, on the CPU


class Classifier(nn.Module):
    """A deployable model as a module: canonical images -> logits over ``classes``.

    It is frozen and in eval mode. Images of any size are converted to what its nets take.

    Args:
        model: a net, or a mixture of nets.

    Attributes:
        classes: names in the order of the logits.
        description: the model that it was built from.
        preprocess: of a net; None for a mixture, whose members have their own.
        inner: the net or the ensemble.
    """

    def __init__(self, model: Deployable) -> None:
        super().__init__()
        self.classes = model.classes
        self.description = model
        self.preprocess = model.preprocess if isinstance(model, Part) else None
        self.inner = model.build() if isinstance(model, Part) else Ensemble(model)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, C, H, W) in [0, 1]."""
        inputs = images if self.preprocess is None else self.preprocess(images)
        logits: Tensor = self.inner(inputs)
        return logits

    def input_shape(self) -> tuple[int, int, int]:
        """The smallest image shape that loses nothing: a net's own, a mixture's largest."""
        model = self.description
        if isinstance(model, Part):
            return model.preprocess.input_shape
        return largest_shape(model.members)


def forward_bytes(parts: Sequence[Part]) -> int:
    """What one image takes on its way through some nets, which run one after another."""
    costs = [
        image_cost(part.spec, part.preprocess.input_shape, len(part.classes)) for part in parts
    ]
    logits = 4 * sum(len(part.classes) for part in parts) * COPIES
    return max(cost.forward for cost in costs) + logits


def predict(
    model: nn.Module, pixels: Tensor, *, device: str = "cpu", batch_size: int = 500
) -> Tensor:
    """Classify images in batches.

    Args:
        model: canonical images -> logits, already on ``device``.
        pixels: uint8, (N, C, H, W).
        device: where to compute.
        batch_size: images at a time; fewer where they would not fit into memory.

    Returns:
        Probabilities, float32, (N, C), on the CPU.
    """
    batches = predict_batches(model, pixels, device=device, batch_size=batch_size)
    return torch.cat([probabilities for _, probabilities in batches])


def predict_batches(
    model: nn.Module, pixels: Tensor, *, device: str = "cpu", batch_size: int = 500
) -> Iterator[tuple[int, Tensor]]:
    """Classify images in batches: yield the place of the first image of a batch, and ``predict``'s
    probabilities of its images; takes what ``predict`` takes.
    """
    if isinstance(model, Classifier):
        description = model.description
        parts = (description,) if isinstance(description, Part) else description.members
        batch_size = affordable_images(batch_size, forward_bytes(parts), device)
    for first in range(0, len(pixels), batch_size):
        images = pixels[first : first + batch_size].to(device).float() / 255
        with torch.inference_mode():
            probabilities = model(images).float().softmax(-1).cpu()
        yield first, probabilities


def largest_shape(parts: tuple[Part, ...]) -> tuple[int, int, int]:
    """The smallest canonical image that loses nothing for any of the parts."""
    shapes = [part.preprocess.input_shape for part in parts]
    channels, heights, widths = zip(*shapes, strict=True)
    return max(channels), max(heights), max(widths)
