"""Hugging Face checkpoints of ViT and DeiT as nets of ours: ``hf:FOLDER``, or ``hf:OWNER/NAME``
from the hub.

A checkpoint is a folder with ``config.json`` and ``model.safetensors`` (and perhaps
``preprocessor_config.json``), as ``save_pretrained`` writes it. Its weights are put into the net
``vit`` (nets/vit.py), which computes the same: so it has tokens, stacks, travels and resumes
like any other net, and whoever receives it needs neither the folder nor another package. Nothing
of it is executed, and only the model types of ``MODEL_TYPES`` are taken.
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
from attar.settings import Scalar
from attar.uploads import class_name_problems, normalise_name, shape_problems, value_problems

PREFIX = "hf:"
MODEL_TYPES = ("vit", "deit")
FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
SINGLE, DOUBLE = (
    "ForImageClassification",
    "ForImageClassificationWithTeacher",
)  # heads that a checkpoint may have

# What transformers takes where a config says nothing.
USUAL: dict[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
    "layer_norm_eps": 1e-12, "image_size": 224, "patch_size": 16, "num_channels": 3, "qkv_bias": True,
}  # fmt: skip
# Its name in a block of theirs -> ours; query, key and value become one matrix.
BLOCK = {
    "layernorm_before": "norm1",
    "attention.output.dense": "attention.project",
    "layernorm_after": "norm2",
    "intermediate.dense": "perceptron.0",
    "output.dense": "perceptron.3",
}


def parse_net(text: str) -> ModelSpec:
    """A net by name and options, or the architecture of a Hugging Face checkpoint."""
    return load_checkpoint(text).spec if text.startswith(PREFIX) else ModelSpec.parse(text)


def load_checkpoint(text: str) -> Part:
    """The classifier behind ``hf:FOLDER`` or ``hf:OWNER/NAME``, complete: weights, class names,
    preprocessing.
    """
    folder = _folder(text.removeprefix(PREFIX))
    try:
        config = _json(folder / "config.json")
        weights = load((folder / "model.safetensors").read_bytes())
        return _part(config, weights, _processor(folder / "preprocessor_config.json"))
    except FileNotFoundError as error:
        raise SpecError(
            f"{text} is not a checkpoint: {Path(str(error.filename)).name} is missing.",
            fix="name a folder that save_pretrained has written (weights as safetensors: pickled ones are not read)",
        ) from None
    except KeyError as error:
        raise SpecError(
            f"The checkpoint {text} cannot be taken:", problems=[f"{error.args[0]} is missing"]
        ) from None
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        problems = [str(reason) for reason in error.args]
        raise SpecError(f"The checkpoint {text} cannot be taken:", problems=problems) from None


def _folder(name: str) -> Path:
    """A folder of this machine; where there is none, one that is fetched from the hub."""
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        raise SpecError(
            f"There is no folder {name!r}.",
            fix="name a checkpoint's folder, or OWNER/NAME of the Hugging Face hub",
        )
    try:
        import huggingface_hub
    except ImportError:
        raise SpecError(
            f"There is no folder {name!r}, and the hub needs a package.",
            fix="pip install 'attar[transformers]'",
        ) from None
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(FILES)))
    except (OSError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"{name!r} could not be fetched from the hub:", problems=[str(error)]
        ) from None


def _json(path: Path) -> dict[str, Any]:
    found = strict_json(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found


def _processor(path: Path) -> dict[str, Any]:
    return _json(path) if path.exists() else {}


def _part(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], processor: Mapping[str, Any]
) -> Part:
    kind, heads = config.get("model_type"), config.get("architectures") or [""]
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"it is a {str(kind)[:40]!r}; model types that are taken: {', '.join(MODEL_TYPES)}"
        )
    if not str(heads[0]).endswith((SINGLE, DOUBLE)):
        raise ValueError(
            f"it is saved as {str(heads[0])[:60]}; expected one that classifies (…{SINGLE})"
        )
    given = {**USUAL, **{key: value for key, value in config.items() if key in USUAL}}
    if given["hidden_act"] != "gelu":
        raise ValueError(f"its activation is {str(given['hidden_act'])[:40]}; only gelu is known")
    distillation = "none" if kind == "vit" else "head" if heads[0].endswith(DOUBLE) else "token"
    options: dict[str, Scalar] = {
        "patch": given["patch_size"],
        "width": given["hidden_size"],
        "depth": given["num_hidden_layers"],
        "heads": given["num_attention_heads"],
        "hidden": given["intermediate_size"],
        "epsilon": given["layer_norm_eps"],
        "qkv_bias": given["qkv_bias"],
        "distillation": distillation,
    }
    spec = ModelSpec.of("vit", options)
    state = _state(weights, kind, given["num_hidden_layers"], given["qkv_bias"], distillation)
    classes = _classes(
        config, len(state["head.bias" if distillation != "head" else "head.heads.0.bias"])
    )
    preprocess = _preprocess(given, processor)
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}
    if (
        problems := shape_problems(spec, classes, preprocess, shapes)
        or value_problems(state)
        or class_name_problems(classes)
    ):
        raise ValueError(*problems)
    return Part(spec, state, classes, preprocess)


def _state(
    weights: Mapping[str, Tensor], kind: str, depth: int, bias: bool, distillation: str
) -> dict[str, Tensor]:
    """Their tensors under our names, in single precision."""
    extra = ["cls_token", "distillation_token"][: 1 if distillation == "none" else 2]
    names = {"embeddings.patch_embeddings.projection": "embed", "layernorm": "norm"}
    for number in range(depth):
        names |= {
            f"encoder.layer.{number}.{theirs}": f"blocks.{number}.{ours}"
            for theirs, ours in BLOCK.items()
        }
    heads = {"classifier": "head"} if distillation != "head" else {
        "cls_classifier": "head.heads.0", "distillation_classifier": "head.heads.1",
    }  # fmt: skip
    names = {f"{kind}.{theirs}": ours for theirs, ours in names.items()} | heads
    state = {
        f"{ours}.{part}": weights[f"{theirs}.{part}"].float()
        for theirs, ours in names.items()
        for part in ("weight", "bias")
    }
    state["tokens_extra"] = torch.cat(
        [weights[f"{kind}.embeddings.{token}"] for token in extra], dim=1
    ).float()
    state["positions"] = weights[f"{kind}.embeddings.position_embeddings"].float()
    for number in range(depth):
        for part in ("weight", "bias") if bias else ("weight",):
            three = [
                f"{kind}.encoder.layer.{number}.attention.attention.{which}.{part}"
                for which in ("query", "key", "value")
            ]
            state[f"blocks.{number}.attention.qkv.{part}"] = torch.cat(
                [weights[name] for name in three]
            ).float()
    return state


def _classes(config: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """Its names. ImageNet has two cranes: a name that was there before gets its number."""
    names, classes = config.get("id2label") or {}, dict[str, str]()
    for place in range(number):
        name = str(names.get(str(place), place))
        name = f"{name} ({place})" if normalise_name(name) in classes else name
        classes[normalise_name(name)] = name
    return tuple(classes.values())


def _preprocess(given: Mapping[str, Any], processor: Mapping[str, Any]) -> Preprocess:
    """Mean and standard deviation 0.5 where the checkpoint says nothing, as its image processors do."""
    channels, side = given["num_channels"], given["image_size"]
    height, width = (side, side) if isinstance(side, int) else tuple(side)
    mean, std = (processor.get(key) or [0.5] * channels for key in ("image_mean", "image_std"))
    return Preprocess((channels, height, width), tuple(map(float, mean)), tuple(map(float, std)))
