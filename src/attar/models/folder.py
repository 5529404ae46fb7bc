"""Model folders: ``config.json``, ``model.safetensors`` and ``README.md``, the model card.

A folder holds one deployable model: a net, or a mixture of nets with its rule.
``load_model(DIR)`` gives a module that takes canonical images ([0, 1], B x C x H x W, any size)
and returns logits over ``.classes``. Weights may be stored in half precision (bfloat16,
float16), which halves the file; they are read as single precision.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from attar.core import Deployable, Part
from attar.errors import RunError
from attar.internal.files import write_atomic
from attar.internal.strict_json import strict_json
from attar.models.classifier import Classifier
from attar.models.hub import PREFIX, find_folder
from attar.models.huggingface import load_checkpoint
from attar.models.mixtures import mixture_tensors, mixture_to_json, read_mixture, read_part
from attar.uploads import part_to_json
from attar.version import __version__

FORMAT = "attar-model/1"


def save_model(
    folder: str | Path,
    model: Deployable,
    *,
    card: str | None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder.

    The config is written last and states the hash of the weights, so that an incomplete folder
    never loads.

    Args:
        folder: where to; missing folders are made, old files replaced.
        model: a net, or a mixture of nets.
        card: the text of ``README.md``; None to write none.
        config: more for ``config.json``, about other files in the folder.
    """
    folder = Path(folder)
    if isinstance(model, Part):
        described: dict[str, Any] = {"kind": "net", **part_to_json(model)}
        state = dict(model.state)
    else:
        described = {"kind": "mixture", **mixture_to_json(model)}
        state = mixture_tensors(model)
    tensors = {  # members may share their weights, tensors of a file may not
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()
    }
    weights = save(tensors)
    described_folder = {
        "format": FORMAT,
        "attar": __version__,
        "model": described,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        **(config or {}),
    }
    if card is not None:
        write_atomic(folder / "README.md", card)
    write_atomic(folder / "model.safetensors", weights)
    write_atomic(folder / "config.json", json.dumps(described_folder, indent=2) + "\n")


def load_model(folder: str | Path, device: str = "cpu") -> Classifier:
    """Load the model of a folder, ready to classify.

    Args:
        folder: a model folder, or ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION`` of the Hugging
            Face hub (``attar[hub]``).
        device: where to compute.

    Returns:
        A frozen module in eval mode: images (B, C, H, W) in [0, 1] -> logits.

    Raises:
        RunError: if the folder is no model folder, incomplete or damaged, or the hub does not
            give it.
    """
    return Classifier(load_description(folder)).to(device)


def load_description(folder: str | Path) -> Deployable:
    """Read the net or the mixture in a model folder, checked like an upload.

    Args:
        folder: a model folder, or a name that begins with ``hf:``: a model folder on the Hugging
            Face hub, or a checkpoint of ViT or DeiT.

    Raises:
        RunError: if the folder is no model folder, incomplete or damaged, with every problem; or
            if the hub does not give it.
        SpecError: if a checkpoint is of another kind or damaged.
    """
    named = Path(folder).as_posix()
    if named.startswith(PREFIX):
        found = find_folder(named)
        if not _is_model_folder(found):
            return load_checkpoint(named)
        folder = found
    folder = Path(folder)
    try:
        config = strict_json((folder / "config.json").read_bytes())
        data = (folder / "model.safetensors").read_bytes()
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise ValueError(f"config.json is not of format {FORMAT}")
        if hashlib.sha256(data).hexdigest() != config.get("weights_sha256"):
            raise ValueError("model.safetensors is not the file that config.json was written with")
        return _read_model(config["model"], load(data))
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        if missing == "config.json" and (folder / "run.json").is_file():
            raise RunError(
                f"The run in {folder} is unfinished: there is no model in it yet.",
                fix="repeat `attar fuse` or `attar federate`, as it began, with --resume",
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


def _is_model_folder(folder: Path) -> bool:
    """Whether a folder's config is that of a model folder, of whatever version."""
    try:
        config = strict_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and str(config.get("format")).startswith("attar-")


def _read_model(given: dict[str, Any], tensors: dict[str, Tensor]) -> Deployable:
    if given["kind"] == "net":
        return read_part({key: value for key, value in given.items() if key != "kind"}, tensors)
    return read_mixture(given, tensors)
