"""Model folders: ``config.json``, ``model.safetensors`` and ``README.md``, the model card.

A folder holds one deployable model: a net, or a mixture of nets with its rule.
``load_model(DIR)`` gives a module that takes canonical images ([0, 1], B x C x H x W, any size)
and returns logits over ``.classes``. Weights may be stored in half precision (bfloat16,
float16), which halves the file; they are read as single precision.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from attar.blocks.ensemble import RULES
from attar.core import Deployable, Mixture, Part
from attar.errors import RunError
from attar.internal.files import write_atomic
from attar.internal.strict_json import strict_json
from attar.models.classifier import Classifier
from attar.uploads import (
    class_name_problems,
    part_from_json,
    part_to_json,
    role_problems,
    shape_problems,
    statistics_problems,
    value_problems,
)
from attar.version import __version__

FORMAT = "attar-model/1"
HALF = (torch.bfloat16, torch.float16)


def save_model(folder: str | Path, model: Deployable, *, card: str) -> None:
    """Write a model folder.

    The config is written last and states the hash of the weights, so that an incomplete folder
    never loads.

    Args:
        folder: where to; missing folders are made, old files replaced.
        model: a net, or a mixture of nets.
        card: the text of ``README.md``.
    """
    folder = Path(folder)
    members = (model,) if isinstance(model, Part) else model.members
    prefixes = (
        [""] if isinstance(model, Part) else [f"member{number}." for number in range(len(members))]
    )
    if isinstance(model, Mixture):
        prefixes += [
            f"statistics{number}."
            for number, part in enumerate(model.statistics)
            if part is not None
        ]
        members += tuple(part for part in model.statistics if part is not None)
    tensors = {
        prefix + name: tensor.detach()
        .cpu()
        .contiguous()
        .clone()  # members may share their weights, a file's tensors may not
        for prefix, part in zip(prefixes, members, strict=True)
        for name, tensor in part.state.items()
    }
    described: dict[str, Any] = {"kind": "net", **part_to_json(members[0])}
    if isinstance(model, Mixture):
        described = {
            "kind": "mixture",
            "rule": model.rule,
            "weights": None if model.weights is None else model.weights.tolist(),
            "classes": list(model.classes),
            "members": [part_to_json(part) for part in model.members],
            **_gate_json(model),
        }
    weights = save(tensors)
    config = {
        "format": FORMAT,
        "attar": __version__,
        "model": described,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    write_atomic(folder / "README.md", card)
    write_atomic(folder / "model.safetensors", weights)
    write_atomic(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _gate_json(model: Mixture) -> dict[str, Any]:
    """What the rule "accord" has beside members and weights; nothing of other rules."""
    if model.rule != "accord":
        return {}
    told = [None if part is None else part_to_json(part) for part in model.statistics]
    return {"statistics": told, "familiarity": model.familiarity, "temperature": model.temperature}


def load_model(folder: str | Path, device: str = "cpu") -> Classifier:
    """Load the model of a folder, ready to classify.

    Args:
        folder: a model folder.
        device: where to compute.

    Returns:
        A frozen module in eval mode: images (B, C, H, W) in [0, 1] -> logits.

    Raises:
        RunError: if the folder is no model folder, incomplete or damaged.
    """
    return Classifier(load_description(folder)).to(device)


def load_description(folder: str | Path) -> Deployable:
    """Read the net or the mixture in a model folder, checked like an upload.

    Raises:
        RunError: if the folder is no model folder, incomplete or damaged, with every problem.
    """
    folder = Path(folder)
    try:
        config = strict_json((folder / "config.json").read_bytes())
        data = (folder / "model.safetensors").read_bytes()
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise ValueError(f"config.json is not of format {FORMAT}")
        if hashlib.sha256(data).hexdigest() != config.get("weights_sha256"):
            raise ValueError("model.safetensors is not the file that config.json was written with")
        return _described(config["model"], load(data))
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        if missing == "config.json" and (folder / "run.json").is_file():
            raise RunError(
                f"The run in {folder} is unfinished: there is no model in it yet.",
                fix="resume it: repeat the command, `attar fuse` or `attar federate`, with --resume",
            ) from None
        raise RunError(
            f"{folder} is not a model folder: {missing} is missing.",
            fix="name the --out folder of `attar fuse`",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        problems = [str(reason) for reason in error.args]
        raise RunError(
            f"The model folder {folder} is damaged:", problems=problems, fix="fuse it again"
        ) from None


def _described(given: dict[str, Any], tensors: dict[str, Tensor]) -> Deployable:
    if given["kind"] == "net":
        return _part({key: value for key, value in given.items() if key != "kind"}, tensors)
    if given["rule"] not in RULES:
        raise ValueError(f"unknown rule {given['rule']}")
    if problems := class_name_problems(given["classes"]):
        raise ValueError(*problems)

    def own(prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }

    members = [
        _part(member, own(f"member{number}.")) for number, member in enumerate(given["members"])
    ]
    classes = tuple(given["classes"])
    if {name for part in members for name in part.classes} != set(classes):
        raise ValueError("the members' classes are not those of the mixture")
    weights = (
        None if given["weights"] is None else torch.tensor(given["weights"], dtype=torch.float32)
    )
    if weights is not None and weights.shape not in ((len(members),), (len(members), len(classes))):
        raise ValueError(
            f"weights of shape {list(weights.shape)} for {len(members)} members and {len(classes)} classes"
        )
    mixture = Mixture(tuple(members), given["rule"], weights, classes)
    if mixture.rule != "accord":
        return mixture
    told = given["statistics"]
    statistics = [
        None if one is None else _part(one, own(f"statistics{number}."), "statistics")
        for number, one in enumerate(told)
    ]
    if len(statistics) not in (0, len(members)):
        raise ValueError(f"statistics of {len(statistics)} clients for {len(members)} members")
    problems = [
        problem
        for pair in zip(members, statistics, strict=False)
        for problem in statistics_problems(*pair)
    ]
    if problems:
        raise ValueError(*problems)
    familiarity, temperature = (
        _positive(given[name], name) for name in ("familiarity", "temperature")
    )
    return replace(
        mixture, statistics=tuple(statistics), familiarity=familiarity, temperature=temperature
    )


def _positive(value: object, name: str) -> float:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value < float("inf")
    ):
        raise ValueError(f"{name} must be a number from 0")
    if name == "temperature" and value == 0:
        raise ValueError("temperature must be above 0")
    return float(value)


def _part(given: dict[str, Any], tensors: dict[str, Tensor], role: str = "classifier") -> Part:
    spec, classes, preprocess = part_from_json(given)
    tensors = {
        name: tensor.float() if tensor.dtype in HALF else tensor for name, tensor in tensors.items()
    }
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    problems = role_problems(role, spec) or shape_problems(spec, classes, preprocess, shapes)
    problems = problems or value_problems(tensors)
    if problems:
        raise ValueError(*problems)
    return Part(spec, tensors, classes, preprocess)
