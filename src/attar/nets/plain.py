"""Plain nets: an MLP, and the small CNNs of the one-shot papers.

lenet5     LeCun et al., Proc. IEEE 1998, with ReLU and max-pools as in Co-Boosting
cnn1       "CNN1" of DENSE (CNNCifar2): 32-64-64, 64
cnn2       the PyTorch tutorial's net: 6-16, 120, 84
cnn5       "5-layer CNN" of Co-Boosting, "CNN2" of DENSE: 128-128-128
cnn-mho    the small CNNs of FedMHO
cnn-dense  the clients' net of DENSE on MNIST (CNNMnist): 16-32 with BatchNorm
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Literal

from torch import Tensor, nn

from attar.nets.limits import require_options, require_side
from attar.nets.registry import Shape, register

MAX_LAYERS = 64


class Plain(nn.Module):
    """A trunk that ends in flat features, and a linear head.

    Args:
        trunk: images -> features (B, width).
        width: of the features.
        num_classes: outputs of the head.
        softmax: return probabilities in place of logits.
    """

    def __init__(
        self, trunk: nn.Module, width: int, num_classes: int, *, softmax: bool = False
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, num_classes)
        self.last = nn.Softmax(-1) if softmax else nn.Identity()

    def features(self, x: Tensor) -> Tensor:
        """The output of the trunk: (B, C, H, W) -> (B, width)."""
        flat: Tensor = self.trunk(x)
        return flat

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.head(self.features(x)))
        return logits


@dataclass(frozen=True)
class Stage:
    """Convolution, BatchNorm, max-pool, ReLU.

    Attributes:
        width: channels of the output.
        kernel: side of the convolution's window.
        padding: of the convolution.
        pool: whether a max-pool halves the map.
        batchnorm: whether there is a BatchNorm.
    """

    width: int
    kernel: int
    padding: int = 0
    pool: bool = True
    batchnorm: bool = False

    def after(self, side: int) -> int:
        """The side of the output of a map with this side; below 1 if the map is too small."""
        side = side + 2 * self.padding - self.kernel + 1
        return side // 2 if self.pool else side


def _side_after(stages: Sequence[Stage], side: int) -> int:
    for stage in stages:
        side = stage.after(side)
    return side


def _linear_stack(widths: Sequence[int]) -> list[nn.Module]:
    return [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]


def _conv_net(
    arch: str,
    input_shape: Shape,
    num_classes: int,
    stages: Sequence[Stage],
    hidden: Sequence[int] = (),
    *,
    softmax: bool = False,
) -> nn.Module:
    channels, height, width = input_shape
    smallest = next(side for side in count(1) if _side_after(stages, side) >= 1)
    require_side(arch, input_shape, smallest)
    layers: list[nn.Module] = []
    for stage in stages:
        layers.append(nn.Conv2d(channels, stage.width, stage.kernel, padding=stage.padding))
        if stage.batchnorm:
            layers.append(nn.BatchNorm2d(stage.width))
        if stage.pool:  # max and ReLU commute, and after the pool the map is smaller
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.ReLU())
        channels = stage.width
    flat = channels * _side_after(stages, height) * _side_after(stages, width)
    widths = (flat, *hidden)
    trunk = nn.Sequential(*layers, nn.Flatten(), *_linear_stack(widths))
    return Plain(trunk, widths[-1], num_classes, softmax=softmax)


@register("mlp", "Fully connected layers with ReLU.", usual_shape=(1, 28, 28))
def mlp(input_shape: Shape, num_classes: int, *, hidden: int = 256, layers: int = 2) -> nn.Module:
    """A multilayer perceptron with ReLU.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        hidden: width of each hidden layer.
        layers: hidden layers; 0 is logistic regression.
    """
    problems = [f"hidden = {hidden}: at least 1"] if hidden < 1 else []
    problems += [f"layers = {layers}: 0 to {MAX_LAYERS}"] if not 0 <= layers <= MAX_LAYERS else []
    require_options("mlp", problems)
    channels, height, width = input_shape
    widths = (channels * height * width, *[hidden] * layers)
    return Plain(nn.Sequential(nn.Flatten(), *_linear_stack(widths)), widths[-1], num_classes)


@register(
    "lenet5",
    "LeNet-5 as Co-Boosting has it: 6-16-120, 84.",
    usual_shape=(1, 32, 32),
    published_parameters=61_706,
)
def lenet5(input_shape: Shape, num_classes: int, *, batchnorm: bool = False) -> nn.Module:
    """LeNet-5 as in Co-Boosting.

    Its last 5 x 5 convolution (16-120) sees the whole map at 32 pixels, so it is a linear layer,
    here at any size.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        batchnorm: add BatchNorm after each convolution, for methods that read its statistics. The
            papers' LeNet-5 has none.
    """
    stages = (Stage(6, 5, batchnorm=batchnorm), Stage(16, 5, batchnorm=batchnorm))
    return _conv_net("lenet5", input_shape, num_classes, stages, hidden=(120, 84))


@register("cnn1", "CNN1 of DENSE: 32-64-64 convolutions, 64.", published_parameters=122_570)
def cnn1(input_shape: Shape, num_classes: int) -> nn.Module:
    """CNN1 of DENSE: 32-64-64 convolutions and one hidden layer of 64."""
    stages = (Stage(32, 3), Stage(64, 3), Stage(64, 3, pool=False))
    return _conv_net("cnn1", input_shape, num_classes, stages, hidden=(64,))


@register(
    "cnn2", "The PyTorch tutorial's CNN: 6-16 convolutions, 120, 84.", published_parameters=62_006
)
def cnn2(input_shape: Shape, num_classes: int) -> nn.Module:
    """The net that papers call CNN2, on 3 x 32 x 32; its layers are those of ``lenet5``."""
    stages = (Stage(6, 5), Stage(16, 5))
    return _conv_net("cnn2", input_shape, num_classes, stages, hidden=(120, 84))


@register(
    "cnn5",
    "The 5-layer CNN of Co-Boosting: three convolutions of 128.",
    published_parameters=319_242,
)
def cnn5(input_shape: Shape, num_classes: int) -> nn.Module:
    """The 5-layer CNN of Co-Boosting and DENSE.

    In their code it has three convolutions, two max-pools and one linear layer.
    """
    stages = (Stage(128, 3), Stage(128, 3), Stage(128, 3, pool=False))
    return _conv_net("cnn5", input_shape, num_classes, stages)


_THREE = (Stage(16, 3, 1), Stage(32, 3, 1), Stage(64, 3, 1))
_LAST = Stage(128, 3, 1, pool=False)
MHO_FORMS = {
    "mnist": (Stage(10, 5), Stage(20, 5)),
    "emnist": (*_THREE, _LAST, _LAST),
    "cifar": (*_THREE, _LAST),
}


@register(
    "cnn-mho",
    "The small CNNs of FedMHO, by data set.",
    usual_shape=(1, 28, 28),
    published_parameters=8_490,
)
def cnn_mho(
    input_shape: Shape,
    num_classes: int,
    *,
    form: Literal["auto", "mnist", "emnist", "cifar"] = "auto",
    softmax: bool = False,
) -> nn.Module:
    """FedMHO's "CNN": MNIST 8,490, SVHN and CIFAR 117,930, EMNIST (47 classes) 298,927 parameters.

    Kernels, padding and pools follow from these counts together with Table 2 (467 K, 4.00 M,
    3.96 M operations).

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        form: which of the nets. ``auto`` takes MNIST's for grey images and at most 10 classes,
            EMNIST's for other grey ones, CIFAR's for colour; name the form if clients hold only
            some of the classes.
        softmax: end in a softmax *before* the cross entropy, as the authors' MNIST net does. Such
            outputs have hardly any weight beside the logits of other nets.
    """
    if form == "auto":
        form = "cifar" if input_shape[0] > 1 else "mnist" if num_classes <= 10 else "emnist"
    return _conv_net("cnn-mho", input_shape, num_classes, MHO_FORMS[form], softmax=softmax)


@register(
    "cnn-dense",
    "DENSE's CNN for MNIST: 16-32 convolutions, BatchNorm.",
    usual_shape=(1, 28, 28),
    published_parameters=29_034,
)
def cnn_dense(input_shape: Shape, num_classes: int, *, batchnorm: bool = True) -> nn.Module:
    """DENSE's CNN for MNIST: 16-32 convolutions.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        batchnorm: add BatchNorm after each convolution, as published.
    """
    stages = (Stage(16, 5, 2, batchnorm=batchnorm), Stage(32, 5, 2, batchnorm=batchnorm))
    return _conv_net("cnn-dense", input_shape, num_classes, stages)
