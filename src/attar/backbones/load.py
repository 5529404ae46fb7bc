"""Backbones by name."""

from pathlib import Path

import torch

from attar.backbones.backbone import Backbone
from attar.backbones.checkpoints import load_checkpoint
from attar.backbones.timm_nets import load_timm
from attar.core import Part
from attar.errors import SpecError
from attar.models import PREFIX, PRETRAINED, load_description, load_pretrained
from attar.nets import build_body, describe_net
from attar.nets.initialisation import SkipInitialisation

TIMM = "timm:"
KINDS = f"{', '.join(PRETRAINED)}, hf:OWNER/NAME, hf:FOLDER, timm:NAME, or a model folder of attar"


def load_backbone(name: str) -> Backbone:
    """Load a frozen backbone.

    Args:
        name: ``efficientnet-lite0`` or ``efficientnet-lite1``, with ImageNet weights;
            ``hf:OWNER/NAME`` of the Hugging Face hub or ``hf:FOLDER``, an image model of
            transformers; ``timm:NAME`` or ``timm:NAME?weights=FILE.safetensors``; or the model
            folder of a single net, which becomes a backbone without its head.

    Raises:
        SpecError: if there is no such backbone, or its weights or a package are missing.
        RunError: if a model folder is damaged.
    """
    if name in PRETRAINED:
        return backbone_of(name, load_pretrained(name))
    if name.startswith(PREFIX):
        return load_checkpoint(name)
    if name.startswith(TIMM):
        return load_timm(name)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise SpecError(f"There is no backbone called {name!r}.", fix=f"name one of: {KINDS}")
    model = load_description(folder)
    if not isinstance(model, Part):
        raise SpecError(
            f"{name} is a mixture of {len(model.members)} nets; a backbone is one net.",
            fix="name the model folder of a single net",
        )
    return backbone_of(folder.resolve().name, model)


def backbone_of(name: str, part: Part) -> Backbone:
    """A net that somebody has already loaded as a backbone, without its head.

    Args:
        name: under which it is known.
        part: the net.
    """
    shape = part.preprocess.input_shape
    with torch.random.fork_rng(devices=[]), SkipInitialisation():
        net = build_body(part.spec, shape)
    body = {key: value for key, value in part.state.items() if not key.startswith("head.")}
    net.load_state_dict(body)
    net.eval().requires_grad_(False)
    with torch.inference_mode():
        features = net.features(torch.zeros(1, *shape))  # type: ignore[operator]
    width = features.shape[-1]
    return Backbone(name, net, part.preprocess, width, describe_net(part.spec), part.spec)
