"""Hugging Face checkpoints of ViT and DeiT: ``hf:FOLDER``, or ``hf:OWNER/NAME`` from the hub.

A checkpoint is a folder with ``config.json`` and ``model.safetensors`` (and perhaps
``preprocessor_config.json``), as ``save_pretrained`` writes it. Its weights are put into the net
``vit`` (nets/vit.py), which computes the same. So it has tokens, stacks, travels and resumes
like any other net, and a receiver needs neither the folder nor another package. Nothing of it
is executed, and only the model types of ``MODEL_TYPES`` are supported.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import SpecError
from attar.internal.strict_json import strict_json
from attar.models.hub import PREFIX, find_folder
from attar.settings import Scalar
from attar.uploads import class_name_problems, normalise_name, shape_problems, value_problems

MODEL_TYPES = ("vit", "deit")
# Endings of the model classes that a checkpoint may be saved as: with one head, and with two.
SINGLE = "ForImageClassification"
DOUBLE = "ForImageClassificationWithTeacher"

# The defaults of transformers for entries that a config leaves out.
DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
}
# Names in a block of transformers -> names here; query, key and value become one matrix.
BLOCK = {
    "layernorm_before": "norm1",
    "attention.output.dense": "attention.project",
    "layernorm_after": "norm2",
    "intermediate.dense": "perceptron.0",
    "output.dense": "perceptron.3",
}


def parse_net(text: str) -> ModelSpec:
    """Read a net by name and options, or the architecture of a Hugging Face checkpoint.

    Args:
        text: ``"lenet5"``, ``"mlp:hidden=8"`` or ``"hf:OWNER/NAME"``.

    Raises:
        SpecError: if there is no such net, or a checkpoint is of another kind.
        RunError: if there is no such checkpoint.
        SettingsError: if the net has no such option.
    """
    return load_checkpoint(text).spec if text.startswith(PREFIX) else ModelSpec.parse(text)


def load_checkpoint(text: str) -> Part:
    """Load the classifier of a Hugging Face checkpoint: weights, class names and preprocessing.

    Args:
        text: ``"hf:FOLDER"`` or ``"hf:OWNER/NAME"``, which is fetched from the hub.

    Returns:
        The net ``vit`` with the checkpoint's weights.

    Raises:
        SpecError: if it is of another kind or damaged.
        RunError: if there is no such folder or repository, or the hub cannot be reached.
    """
    folder = find_folder(text)
    try:
        config = _read_json(folder / "config.json")
        weights = load((folder / "model.safetensors").read_bytes())
        processor_file = folder / "preprocessor_config.json"
        processor = _read_json(processor_file) if processor_file.exists() else {}
        return _to_part(config, weights, processor)
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise SpecError(
            f"{text} is not a checkpoint: {missing} is missing.",
            fix="name a folder that save_pretrained wrote, with weights as safetensors "
            "(pickled ones are not read)",
        ) from None
    except KeyError as error:
        problems = [f"{error.args[0]} is missing"]
        raise SpecError(f"The checkpoint {text} cannot be used:", problems=problems) from None
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        problems = [str(reason) for reason in error.args]
        raise SpecError(f"The checkpoint {text} cannot be used:", problems=problems) from None


def _read_json(path: Path) -> dict[str, Any]:
    content = strict_json(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _to_part(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], processor: Mapping[str, Any]
) -> Part:
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        supported = ", ".join(MODEL_TYPES)
        raise ValueError(f"it is a {str(kind)[:40]!r}; supported model types: {supported}")
    saved_as = (config.get("architectures") or [""])[0]
    if not str(saved_as).endswith((SINGLE, DOUBLE)):
        expected = f"expected a classifier (…{SINGLE})"
        raise ValueError(f"it is saved as {str(saved_as)[:60]}; {expected}")
    values = {key: config.get(key, default) for key, default in DEFAULTS.items()}
    if values["hidden_act"] != "gelu":
        activation = str(values["hidden_act"])[:40]
        raise ValueError(f"its activation is {activation}; only gelu is supported")
    depth = values["num_hidden_layers"]
    bias = values["qkv_bias"]
    distillation = "none"
    if kind != "vit":
        distillation = "head" if saved_as.endswith(DOUBLE) else "token"
    options: dict[str, Scalar] = {
        "patch": values["patch_size"],
        "width": values["hidden_size"],
        "depth": depth,
        "heads": values["num_attention_heads"],
        "hidden": values["intermediate_size"],
        "epsilon": values["layer_norm_eps"],
        "qkv_bias": bias,
        "distillation": distillation,
    }
    spec = ModelSpec.of("vit", options)
    state = _rename_weights(weights, kind, depth, bias, distillation)
    last_bias = state["head.bias" if distillation != "head" else "head.heads.0.bias"]
    classes = _class_names(config, len(last_bias))
    preprocess = _read_preprocess(values, processor)
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}
    problems = shape_problems(spec, classes, preprocess, shapes)
    problems = problems or value_problems(state) or class_name_problems(classes)
    if problems:
        raise ValueError(*problems)
    return Part(spec, state, classes, preprocess)


def _rename_weights(
    weights: Mapping[str, Tensor], kind: str, depth: int, bias: bool, distillation: str
) -> dict[str, Tensor]:
    """The tensors under the names of ``nets/vit.py``, in single precision."""
    names = {"embeddings.patch_embeddings.projection": "embed", "layernorm": "norm"}
    for number in range(depth):
        for theirs, ours in BLOCK.items():
            names[f"encoder.layer.{number}.{theirs}"] = f"blocks.{number}.{ours}"
    names = {f"{kind}.{theirs}": ours for theirs, ours in names.items()}
    if distillation == "head":
        names |= {"cls_classifier": "head.heads.0", "distillation_classifier": "head.heads.1"}
    else:
        names["classifier"] = "head"
    state = {
        f"{ours}.{part}": weights[f"{theirs}.{part}"].float()
        for theirs, ours in names.items()
        for part in ("weight", "bias")
    }
    tokens = ["cls_token", "distillation_token"][: 1 if distillation == "none" else 2]
    extra = [weights[f"{kind}.embeddings.{token}"] for token in tokens]
    state["tokens_extra"] = torch.cat(extra, dim=1).float()
    state["positions"] = weights[f"{kind}.embeddings.position_embeddings"].float()
    for number in range(depth):
        attention = f"{kind}.encoder.layer.{number}.attention.attention"
        for part in ("weight", "bias") if bias else ("weight",):
            three = [weights[f"{attention}.{name}.{part}"] for name in ("query", "key", "value")]
            state[f"blocks.{number}.attention.qkv.{part}"] = torch.cat(three).float()
    return state


def _class_names(config: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """The names of the classes; a name that occurs twice (ImageNet has two cranes) is numbered."""
    names = config.get("id2label") or {}
    classes: dict[str, str] = {}
    for place in range(number):
        name = str(names.get(str(place), place))
        name = f"{name} ({place})" if normalise_name(name) in classes else name
        classes[normalise_name(name)] = name
    return tuple(classes.values())


def _read_preprocess(config: Mapping[str, Any], processor: Mapping[str, Any]) -> Preprocess:
    """Mean and deviation are 0.5 where nothing is said, as in the image processors of ViT."""
    channels = config["num_channels"]
    side = config["image_size"]
    height, width = (side, side) if isinstance(side, int) else tuple(side)
    mean = processor.get("image_mean") or [0.5] * channels
    std = processor.get("image_std") or [0.5] * channels
    return Preprocess((channels, height, width), tuple(map(float, mean)), tuple(map(float, std)))
