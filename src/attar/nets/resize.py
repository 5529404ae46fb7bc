"""Images in the shape that a net takes."""

from torch import Tensor
from torch.nn import functional as F

from attar.nets.registry import Shape


def to_shape(images: Tensor, shape: Shape) -> Tensor:
    """Convert images to another number of channels and another size; differentiable.

    Args:
        images: canonical images, (B, C, H, W) in [0, 1].
        shape: channels, height and width of the result. Colour becomes grey by its mean, grey is
            repeated. Sizes change bilinearly, with antialiasing where they shrink.

    Returns:
        (B, *shape); ``images`` itself where nothing is to do.
    """
    channels, height, width = shape
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if images.shape[2:] == (height, width):
        return images
    shrinks = images.shape[2] > height or images.shape[3] > width
    return F.interpolate(
        images, (height, width), mode="bilinear", align_corners=False, antialias=shrinks
    )
