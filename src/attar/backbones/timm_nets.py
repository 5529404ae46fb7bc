"""Nets of the package timm as backbones: ``timm:NAME``, or with weights of one's own.

``timm:NAME`` takes the pre-trained weights that timm downloads from the hub;
``timm:NAME?weights=FILE.safetensors`` takes them from a file.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from attar.backbones.backbone import Backbone
from attar.core import Preprocess
from attar.errors import SpecError

EXTRA = 'pip install "attar[timm]"'


def load_timm(text: str) -> Backbone:
    """Load a net of timm without its head.

    Args:
        text: ``"timm:NAME"`` or ``"timm:NAME?weights=FILE.safetensors"``.

    Raises:
        SpecError: if timm cannot be imported, has no such net, or the weights are not its own.
    """
    name, _, option = text.removeprefix("timm:").partition("?")
    key, _, file = option.partition("=")
    if option and (key != "weights" or not file.endswith(".safetensors")):
        raise SpecError(f"{text}: unknown option.", fix="write timm:NAME?weights=FILE.safetensors")
    try:
        import timm
        from timm.data import resolve_model_data_config
    except ImportError as error:
        raise SpecError(
            f"{text} needs the package timm, which cannot be imported:",
            problems=[str(error)],
            fix=f"{EXTRA}; timm itself needs torchvision",
        ) from None
    try:
        model: nn.Module = timm.create_model(name, pretrained=not file, num_classes=0)
        if file:
            _load_weights(model, Path(file).expanduser())
        data: dict[str, Any] = resolve_model_data_config(model)
        channels, height, width = map(int, data["input_size"])
        mean, std = (tuple(map(float, data[entry])) for entry in ("mean", "std"))
        preprocess = Preprocess((channels, height, width), mean, std)
        net = _Features(model.float()).eval().requires_grad_(False)
        with torch.inference_mode():
            features = net.features(torch.zeros(1, *preprocess.input_shape)).shape[-1]
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        problems = [str(error)[:300]]
        raise SpecError(f"{text} cannot be used:", problems=problems) from None
    architecture = f"timm {json.dumps(name.partition('.')[0])}"
    return Backbone(f"timm:{name}", net, preprocess, features, architecture)


def _load_weights(model: nn.Module, path: Path) -> None:
    """Load all weights of a net; those of a classifier's head in the file are left out.

    Raises:
        ValueError: if some are missing, or of another shape.
    """
    given = load_file(path)
    needed = model.state_dict()
    missing = [name for name in needed if name not in given]
    wrong = [name for name in needed if name in given and given[name].shape != needed[name].shape]
    if missing or wrong:
        names = ", ".join([*missing, *wrong][:5])
        raise ValueError(f"{path.name} does not hold the weights of this net: {names}")
    model.load_state_dict({name: given[name] for name in needed})


class _Features(nn.Module):
    """A net of timm without classes as a net with ``features``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, F)."""
        found: Tensor = self.model(x)
        return found.flatten(1)
