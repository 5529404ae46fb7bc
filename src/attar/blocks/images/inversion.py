"""Making a batch of synthetic images from pixels directly, as DeepInversion does."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attar.blocks.execution import Runner, eager
from attar.blocks.images.generator import Keep, SyntheticBatch


class PixelBatch(SyntheticBatch):
    """A batch whose pixels themselves are trained by Adam; they stay in [0, 1].

    Args:
        start: the first pixels, (B, C, H, W); values outside of [0, 1] are clamped.
        loss_of: from the images, and the further inputs of ``step``, to a scalar.
        lr: step size of Adam.
        keep: which images are kept: those of the last step, or of the lowest loss.
        run: how steps run on the device.
        captured: what the loss reads beside its arguments.
    """

    def __init__(
        self,
        start: Tensor,
        loss_of: Callable[..., Tensor],
        *,
        lr: float,
        keep: Keep = "last",
        run: Runner = eager,
        captured: Sequence[object] = (),
    ) -> None:
        super().__init__(
            torch.clone,
            start,
            loss_of,
            train_source=True,
            lr=lr,
            keep=keep,
            run=run,
            captured=captured,
        )

    def step(self, *inputs: Tensor) -> Tensor:
        """Clamp the pixels to [0, 1] and take one Adam step; the loss before the update."""
        self.source.clamp_(0, 1)
        return super().step(*inputs)
