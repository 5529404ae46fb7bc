"""Nets and weights to start from.

They are named as a net, a model folder, an upload file, a Hugging Face checkpoint, or one of the
nets whose ImageNet weights are a package.
"""

from pathlib import Path
from typing import Literal

from attar.core import Deployable, ModelSpec, Part
from attar.data.images import SUFFIXES
from attar.errors import RunError, SettingsError
from attar.models.folder import load_description
from attar.models.hub import PREFIX
from attar.models.huggingface import load_checkpoint, parse_net
from attar.models.pretrained import PRETRAINED, load_pretrained
from attar.uploads import read_bundle

DEFAULT_NETS = {None: "lenet5", "classifier": "lenet5", "cvae": "cvae-small"}


def parse_trainable_nets(
    names: str | None, kind: Literal["classifier", "cvae"] | None
) -> list[ModelSpec]:
    """Read the nets that clients train.

    Args:
        names: as for ``parse_nets``; None names the usual one of ``kind``.
        kind: what is trained; None allows both kinds.

    Raises:
        SettingsError: if one of them is of another kind.
    """
    specs = parse_nets(names or DEFAULT_NETS[kind])
    others = [s for s in specs if s.kind == "decoder" or s.kind != (kind or s.kind)]
    if others:
        raise SettingsError(
            f"Nets that cannot be trained as {kind or 'classifier or cvae'}:",
            problems=[f"{spec} is a {spec.kind}" for spec in others],
        )
    return specs


def parse_nets(names: str) -> list[ModelSpec]:
    """Read a list of nets.

    Args:
        names: separated by commas, as are options: ``lenet5,mlp:hidden=64,layers=1`` are two
            nets. A piece with ``=`` that names no net belongs to the net before it.

    Raises:
        SettingsError: if the list is empty, or a net has no such option.
        SpecError: if there is no such net.
    """
    pieces: list[str] = []
    for piece in filter(None, (text.strip() for text in names.split(","))):
        if "=" in piece and ":" not in piece and pieces:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    if not pieces:
        raise SettingsError(
            "No net is named.", fix="for example --net lenet5,cnn1 (see `attar ls nets`)"
        )
    return [parse_net(piece) for piece in pieces]


def resolve_start(start: Path | None, net: str | None) -> Part | None:
    """Load the weights to start from.

    Args:
        start: a model folder, an upload or a checkpoint, as named by ``--start``.
        net: the net that was named; one from Hugging Face brings its own weights.

    Returns:
        The net to start from; None to start from new weights.

    Raises:
        RunError: if ``start`` holds no single net.
        SpecError: if a checkpoint cannot be used.
    """
    if start is None and net is not None and net.startswith(PREFIX):
        return load_checkpoint(net)
    return None if start is None else load_start(start)


def load_deployable(path: Path) -> Deployable:
    """Load a model folder, the classifier of an upload file, or a model of the Hugging Face hub.

    Args:
        path: where it is; for the hub ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION``.

    Raises:
        RunError: if there is no model at ``path``, or it holds no classifier.
        BundleError: if an upload file is damaged.
        SpecError: if a checkpoint on the hub is of another kind.
    """
    if path.is_dir() or path.as_posix().startswith(PREFIX):
        return load_description(path)
    if not path.exists():
        raise RunError(
            f"There is no model at {path}.",
            fix="name a model folder (--out of `attar fuse`), an .attar file, or hf:OWNER/NAME",
        )
    if path.suffix.lower() in SUFFIXES:
        raise RunError(
            f"{path} is an image, not a model.",
            fix="name the model first: attar predict MODEL IMAGES",
        )
    upload = read_bundle(path)
    for name in ("classifier", "knowledge", "deployed"):
        if name in upload.parts:
            return upload.parts[name]
    raise RunError(f"{path} holds no classifier but: {', '.join(upload.parts)}.")


def load_start(path: Path) -> Part:
    """Load the single net in a model folder, here or on the hub, an upload or a Hugging Face
    checkpoint.

    Args:
        path: where it is, or the name of a net of ``PRETRAINED``.

    Raises:
        RunError: if there is no model at ``path``, or it is a mixture.
        SpecError: if a checkpoint cannot be used, or a package with weights is missing.
    """
    if str(path) in PRETRAINED and not path.exists():
        return load_pretrained(str(path))
    model = load_deployable(path)
    if not isinstance(model, Part):
        raise RunError(
            f"{path} is a mixture of {len(model.members)} nets; training starts from one net.",
            fix="name a single net",
        )
    return model
