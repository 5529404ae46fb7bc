"""Plain nets: an MLP, and the small CNNs of the one-shot papers (convolutions, max-pools, linear
layers; one has BatchNorm).

lenet5     LeCun et al., Proc. IEEE 1998, with ReLU and max-pools as Co-Boosting has it
cnn1       "CNN1" of DENSE (CNNCifar2): 32-64-64, 64
cnn2       the PyTorch tutorial's net: 6-16, 120, 84
cnn5       "5-layer CNN" of Co-Boosting, "CNN2" of DENSE: 128-128-128
cnn-mho    the small CNNs of FedMHO
cnn-dense  what DENSE gives clients on MNIST (CNNMnist): 16-32 with BatchNorm
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
    """``trunk`` ends in flat features. ``softmax``: probabilities stand where logits belong."""

    def __init__(
        self, trunk: nn.Module, width: int, num_classes: int, *, softmax: bool = False
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, num_classes)
        self.last = nn.Softmax(-1) if softmax else nn.Identity()

    def features(self, x: Tensor) -> Tensor:
        flat: Tensor = self.trunk(x)
        return flat

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.head(self.features(x)))
        return logits


@dataclass(frozen=True)
class Stage:
    """Convolution, BatchNorm if asked for, a max-pool that halves the map, ReLU."""

    width: int
    kernel: int
    padding: int = 0
    pool: bool = True
    batchnorm: bool = False

    def after(self, side: int) -> int:
        """The side of the map that a map of ``side`` becomes; below 1 when it does not fit."""
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
    require_side(
        arch, input_shape, next(side for side in count(1) if _side_after(stages, side) >= 1)
    )
    layers: list[nn.Module] = []
    for stage in stages:
        layers += [nn.Conv2d(channels, stage.width, stage.kernel, padding=stage.padding)]
        layers += [nn.BatchNorm2d(stage.width)] if stage.batchnorm else []
        layers += (
            [nn.MaxPool2d(2), nn.ReLU()] if stage.pool else [nn.ReLU()]
        )  # max and ReLU commute: the smaller map first
        channels = stage.width
    flat = channels * _side_after(stages, height) * _side_after(stages, width)
    widths = (flat, *hidden)
    trunk = nn.Sequential(*layers, nn.Flatten(), *_linear_stack(widths))
    return Plain(trunk, widths[-1], num_classes, softmax=softmax)


@register("mlp", "Fully connected layers with ReLU.", usual_shape=(1, 28, 28))
def mlp(input_shape: Shape, num_classes: int, *, hidden: int = 256, layers: int = 2) -> nn.Module:
    """No layers at all: logistic regression."""
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
    """The last 5 x 5 convolution (16-120) sees its whole map at 32 pixels: a linear layer, here
    at any size.

    ``batchnorm``: after each convolution, for methods that read its statistics. The papers'
    LeNet-5 has none.
    """
    stages = (Stage(6, 5, batchnorm=batchnorm), Stage(16, 5, batchnorm=batchnorm))
    return _conv_net("lenet5", input_shape, num_classes, stages, hidden=(120, 84))


@register("cnn1", "CNN1 of DENSE: 32-64-64 convolutions, 64.", published_parameters=122_570)
def cnn1(input_shape: Shape, num_classes: int) -> nn.Module:
    stages = (Stage(32, 3), Stage(64, 3), Stage(64, 3, pool=False))
    return _conv_net("cnn1", input_shape, num_classes, stages, hidden=(64,))


@register(
    "cnn2", "The PyTorch tutorial's CNN: 6-16 convolutions, 120, 84.", published_parameters=62_006
)
def cnn2(input_shape: Shape, num_classes: int) -> nn.Module:
    """In layers the same as ``lenet5``; the papers call it CNN2 and feed it 3 x 32 x 32."""
    return _conv_net(
        "cnn2", input_shape, num_classes, (Stage(6, 5), Stage(16, 5)), hidden=(120, 84)
    )


@register(
    "cnn5",
    "The 5-layer CNN of Co-Boosting: three convolutions of 128.",
    published_parameters=319_242,
)
def cnn5(input_shape: Shape, num_classes: int) -> nn.Module:
    """As Co-Boosting and DENSE write it: three convolutions, two max-pools and one linear layer,
    whatever "five" counts.
    """
    stages = (Stage(128, 3), Stage(128, 3), Stage(128, 3, pool=False))
    return _conv_net("cnn5", input_shape, num_classes, stages)


MHO_FORMS = {
    "mnist": (Stage(10, 5), Stage(20, 5)),
    "emnist": (
        *(Stage(width, 3, 1) for width in (16, 32, 64)),
        Stage(128, 3, 1, False),
        Stage(128, 3, 1, False),
    ),
    "cifar": (*(Stage(width, 3, 1) for width in (16, 32, 64)), Stage(128, 3, 1, False)),
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
    3.96 M operations). ``auto``: grey images and at most 10 classes are MNIST, other grey ones
    EMNIST, colour CIFAR; name the form when clients hold only some of the classes. ``softmax``:
    as in the authors' code, whose MNIST net ends in a softmax *before* the cross entropy; what
    it says weighs next to nothing beside the logits of others.
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
    stages = (Stage(16, 5, 2, batchnorm=batchnorm), Stage(32, 5, 2, batchnorm=batchnorm))
    return _conv_net("cnn-dense", input_shape, num_classes, stages)
