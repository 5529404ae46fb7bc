"""VGG (Simonyan & Zisserman, ICLR 2015) for small images."""

from torch import Tensor, nn

from attar.nets.layers import Pooled, initialise_he
from attar.nets.limits import dropout_problems, require_halvings, require_options, require_side
from attar.nets.registry import Shape, register

VGG11_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG9(nn.Module):
    """Four convolutions, a map of 7 x 7 whatever the image, and two wide hidden layers.

    Args:
        channels: of the images.
        num_classes: outputs.
        dropout: rate after each hidden layer.
    """

    def __init__(self, channels: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *_conv_relu(channels, 64),
            nn.MaxPool2d(2),
            *_conv_relu(64, 128),
            nn.MaxPool2d(2),
            *_conv_relu(128, 256),
            *_conv_relu(256, 256),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(
            nn.Linear(256 * 7 * 7, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(4096, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """The output of the second hidden layer: (B, C, H, W) -> (B, 4096)."""
        flat: Tensor = self.hidden(self.trunk(x))
        return flat

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


class HiddenPooled(Pooled):
    """``Pooled`` with two hidden layers between the mean of the maps and the head.

    Args:
        trunk: images -> maps (B, width, H, W).
        width: channels of the maps.
        num_classes: outputs of the head.
        hidden: width of both layers, whose output are the features.
        dropout: rate before each of them.
    """

    def __init__(
        self, trunk: nn.Module, width: int, num_classes: int, hidden: int, dropout: float
    ) -> None:
        super().__init__(trunk, hidden, num_classes)
        self.hidden = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )

    def features(self, x: Tensor) -> Tensor:
        """The output of the second hidden layer: (B, C, H, W) -> (B, hidden)."""
        flat: Tensor = self.hidden(super().features(x))
        return flat


def _conv_relu(channels: int, width: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()


@register("vgg9", "VGG-9 of FedMHO: 64-128-256-256, 4096, 4096.", published_parameters=69_167_498)
def vgg9(input_shape: Shape, num_classes: int, *, dropout: float = 0.5) -> nn.Module:
    """VGG-9 of FedMHO: 69.17 M parameters (EMNIST, 47 classes: 69.32 M), most in the hidden layers.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        dropout: rate after each hidden layer.
    """
    require_side("vgg9", input_shape, 8)
    require_options("vgg9", dropout_problems(dropout))
    return VGG9(input_shape[0], num_classes, dropout)


@register(
    "vgg11",
    "VGG-11 for 32 x 32 images: eight convolutions, one linear layer.",
    published_parameters=9_231_114,
)
def vgg11(
    input_shape: Shape,
    num_classes: int,
    *,
    batchnorm: bool = True,
    hidden: int = 0,
    dropout: float = 0.5,
) -> nn.Module:
    """VGG-11 in the usual form for CIFAR: 512-C in place of the three linear layers.

    Pools round up, so that 28 pixels end in one as 32 do; larger images end in a larger map, which
    is averaged. ``vgg11:batchnorm=false,hidden=512`` is that of FedKEM's code, 9.75 M parameters.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        batchnorm: add BatchNorm after each convolution.
        hidden: width of two hidden layers before the last; 0: there are none.
        dropout: rate before each hidden layer.
    """
    require_halvings("vgg11", input_shape, len(VGG11_STAGES))
    problems = [f"hidden = {hidden}: at least 0"] if hidden < 0 else []
    require_options("vgg11", problems + dropout_problems(dropout))
    channels = input_shape[0]
    layers: list[nn.Module] = []
    for stage in VGG11_STAGES:
        for width in stage:
            convolution, relu = _conv_relu(channels, width)
            norm = [nn.BatchNorm2d(width)] if batchnorm else []
            layers += [convolution, *norm, relu]
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    trunk = nn.Sequential(*layers)
    net = (
        HiddenPooled(trunk, channels, num_classes, hidden, dropout)
        if hidden
        else Pooled(trunk, channels, num_classes)
    )
    # Without BatchNorm, signals vanish over eight convolutions with torch's own initialisation.
    initialise_he(net)
    return net
