"""Image models of transformers as backbones: ``hf:OWNER/NAME`` or ``hf:FOLDER``.

A checkpoint is a folder with ``config.json``, weights as safetensors and, for the size and the
normalisation of its input, ``preprocessor_config.json``. The model is built by the package
transformers; code that comes with a checkpoint is never run.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attar.backbones.backbone import Backbone
from attar.core import Preprocess
from attar.errors import SpecError
from attar.internal.strict_json import strict_json
from attar.models import PREFIX

# Where a model's features are: its class token after the last norm, or its pooled maps.
CLASS_TOKEN = ("vit", "deit", "dinov2", "dinov2_with_registers")
POOLED = (
    "convnext",
    "convnextv2",
    "mobilenet_v1",
    "mobilenet_v2",
    "resnet",
    "swin",
    "swinv2",
)
EXTRA = 'pip install "attar[transformers]"'
# Entries of config.json that do not change what the model computes.
_REMARKS = (
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "torch_dtype",
    "transformers_version",
)


def load_checkpoint(text: str) -> Backbone:
    """Load a model of transformers without its head.

    Args:
        text: ``"hf:OWNER/NAME"``, which is downloaded from the hub, or ``"hf:FOLDER"``.

    Raises:
        SpecError: if a package is missing, there is no such checkpoint, or it cannot be used.
    """
    name = text.removeprefix(PREFIX)
    try:
        import transformers
    except ImportError:
        raise SpecError(f"{text} needs the package transformers.", fix=EXTRA) from None
    local = Path(name).expanduser().is_dir()
    source = str(Path(name).expanduser()) if local else name
    try:
        folder = Path(source) if local else _download(source)
        config = _read_json(folder / "config.json")
        kind = str(config.get("model_type"))
        if kind not in CLASS_TOKEN + POOLED:
            supported = ", ".join(sorted(CLASS_TOKEN + POOLED))
            raise ValueError(f"it is a {kind[:40]!r}; supported model types: {supported}")
        processor_file = folder / "preprocessor_config.json"
        processor = _read_json(processor_file) if processor_file.exists() else {}
        model = transformers.AutoModel.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False
        )
        net = _Features(model.float(), kind).eval().requires_grad_(False)
        preprocess = _read_preprocess(config, processor)
        with torch.inference_mode():
            width = net.features(torch.zeros(1, *preprocess.input_shape)).shape[-1]
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise SpecError(f"{text} is no checkpoint: {missing} is missing.") from None
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        problems = [str(error)[:300]]
        raise SpecError(f"The checkpoint {text} cannot be used:", problems=problems) from None
    kept = {key: value for key, value in config.items() if key not in _REMARKS}
    architecture = f"transformers {json.dumps(kept, sort_keys=True)}"
    shown = f"{PREFIX}{folder.resolve().name if local else name}"
    return Backbone(shown, net, preprocess, width, architecture)


class _Features(nn.Module):
    """A model of transformers as a net with ``features``."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__()
        self.model = model
        self.by_token = kind in CLASS_TOKEN

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, F)."""
        output = self.model(pixel_values=x)
        found: Tensor = output.last_hidden_state[:, 0] if self.by_token else output.pooler_output
        return found.flatten(1)


def _download(name: str) -> Path:
    """The folder of a checkpoint of the hub."""
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        raise SpecError(
            f"There is no folder {name!r}.",
            fix="name a checkpoint's folder, or OWNER/NAME of the Hugging Face hub",
        )
    try:
        import huggingface_hub
    except ImportError:
        raise SpecError(f"{name!r} is not on this machine.", fix=EXTRA) from None
    patterns = ["config.json", "preprocessor_config.json", "*.safetensors", "*.index.json"]
    return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))


def _read_json(path: Path) -> dict[str, Any]:
    content = strict_json(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _read_preprocess(config: dict[str, Any], processor: dict[str, Any]) -> Preprocess:
    """Size and normalisation; 224 pixels, and 0.5 for mean and deviation, where nothing is said.

    Images are stretched to the size at which the model is evaluated: that of the crop if there is
    one.
    """
    channels = int(config.get("num_channels", 3))
    size: Any = processor.get("size")
    if processor.get("crop_size") and processor.get("do_center_crop", True):
        size = processor["crop_size"]
    size = size or config.get("image_size") or 224
    if isinstance(size, dict):
        shortest = size.get("shortest_edge", 224)
        size = (size.get("height", shortest), size.get("width", shortest))
    height, width = (size, size) if isinstance(size, int) else size
    mean = processor.get("image_mean") or [0.5] * channels
    std = processor.get("image_std") or [0.5] * channels
    if processor.get("do_normalize") is False:
        mean, std = [0.0] * channels, [1.0] * channels
    shape = (channels, int(height), int(width))
    return Preprocess(shape, tuple(map(float, mean)), tuple(map(float, std)))
