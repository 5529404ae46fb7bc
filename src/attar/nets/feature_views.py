"""What else is made of a frozen net's features before they are summed: mirror images and roots.

    mirror    the mean of the features of an image and of its mirror image, left to right
    root      the square root of every number, with its sign: (sign f) sqrt|f|

Both are agreed before anybody looks at an image, and used at the client and in the model alike.
"""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from attar.nets.registry import Net

_SMOOTH = 1e-6  # keeps the gradient of the root finite at 0


class FeatureViews(nn.Module):
    """A net without a head whose features are those of mirror images, too, or their roots.

    Args:
        net: with ``features``.
        mirror: whether features are averaged with those of the mirror image.
        root: whether the root is taken.
    """

    def __init__(self, net: nn.Module, *, mirror: bool, root: bool) -> None:
        super().__init__()
        self.net = net
        self.mirror = mirror
        self.root = root

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, F)."""
        return view_features(cast(Net, self.net).features, x, mirror=self.mirror, root=self.root)


def view_features(
    extract: Callable[[Tensor], Tensor], x: Tensor, *, mirror: bool, root: bool
) -> Tensor:
    """Features of images, of their mirror images if wanted, as roots if wanted.

    Args:
        extract: (B, C, H, W) -> (B, F).
        x: the input of the net.
        mirror: whether features are averaged with those of the mirror image.
        root: whether the root is taken.
    """
    features = extract(x)
    if mirror:
        features = (features.float() + extract(x.flip(-1)).float()) / 2
    if root:
        features = features.float()
        features = features / (features.abs() + _SMOOTH).sqrt()
    return features
