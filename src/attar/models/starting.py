"""The nets and weights that are named to start from: a net by name, a model folder, an upload, a
Hugging Face checkpoint.
"""

from pathlib import Path
from typing import Literal

from attar.core import Deployable, ModelSpec, Part
from attar.data.images import SUFFIXES
from attar.errors import RunError, SettingsError
from attar.models.folder import load_description
from attar.models.huggingface import PREFIX, load_checkpoint, parse_net
from attar.uploads import read_bundle

DEFAULT_NETS = {None: "lenet5", "classifier": "lenet5", "cvae": "cvae-small"}


def parse_trainable_nets(
    names: str | None, kind: Literal["classifier", "cvae"] | None
) -> list[ModelSpec]:
    """The nets that are named, all of the kind that is asked for; its usual one where none is named."""
    specs = parse_nets(names or DEFAULT_NETS[kind])
    if wrong := [
        f"{spec} is a {spec.kind}"
        for spec in specs
        if spec.kind != (kind or spec.kind) or spec.kind == "decoder"
    ]:
        raise SettingsError(
            f"Nets that cannot be trained as {kind or 'classifier or cvae'}:", problems=wrong
        )
    return specs


def parse_nets(names: str) -> list[ModelSpec]:
    """``lenet5,mlp:hidden=64,layers=1`` -> two specs: a piece with = that names no net belongs
    to the net before it.
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
    """The weights to start from: those of ``--start``, or of the checkpoint that is the net
    itself; None: fresh ones.
    """
    if start is None and net is not None and net.startswith(PREFIX):
        return load_checkpoint(net)
    return None if start is None else load_start(start)


def load_deployable(path: Path) -> Deployable:
    """A model folder, or the classifier of an upload file."""
    if path.is_dir():
        return load_description(path)
    if not path.exists():
        raise RunError(
            f"There is no model at {path}.",
            fix="name a model folder (--out of `attar fuse`) or an .attar file",
        )
    if path.suffix.lower() in SUFFIXES:
        raise RunError(
            f"{path} is an image, not a model.",
            fix="the model comes first: attar predict MODEL IMAGES",
        )
    upload = read_bundle(path)
    for name in ("classifier", "knowledge", "deployed"):
        if name in upload.parts:
            return upload.parts[name]
    raise RunError(f"{path} holds no classifier but: {', '.join(upload.parts)}.")


def load_start(path: Path) -> Part:
    """The single net in a model folder, an upload or a Hugging Face checkpoint, to start from."""
    if str(path).startswith(PREFIX):
        return load_checkpoint(str(path))
    model = load_deployable(path)
    if not isinstance(model, Part):
        raise RunError(
            f"{path} is a mixture of {len(model.members)} nets, which cannot be a start.",
            fix="name a single net",
        )
    return model
