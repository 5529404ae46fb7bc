"""Backbones by name."""

from dataclasses import replace
from pathlib import Path

import torch

from attar.backbones.backbone import Backbone
from attar.backbones.checkpoints import load_checkpoint
from attar.backbones.timm_nets import load_timm
from attar.backbones.variants import Variant, read_variant
from attar.core import ModelSpec, Part
from attar.errors import SpecError
from attar.models import PREFIX, PRETRAINED, load_description, load_pretrained
from attar.nets import build_body, describe_net
from attar.nets.initialisation import SkipInitialisation

TIMM = "timm:"
KINDS = f"{', '.join(PRETRAINED)}, hf:OWNER/NAME, hf:FOLDER, timm:NAME, or a model folder of attar"


def load_backbone(name: str, variant: Variant | None = None) -> Backbone:
    """Load a frozen backbone.

    Args:
        name: ``efficientnet-lite0`` or ``efficientnet-lite1``, with ImageNet weights;
            ``hf:OWNER/NAME`` of the Hugging Face hub or ``hf:FOLDER``, an image model of
            transformers; ``timm:NAME`` or ``timm:NAME?weights=FILE.safetensors``; or the model
            folder of a single net, which becomes a backbone without its head. Behind the name
            may stand a variant: ``?mirror=true&root=true&stages=3``.
        variant: where the name has none.

    Raises:
        SpecError: if there is no such backbone, or its weights or a package are missing.
        RunError: if a model folder is damaged.
    """
    plain, own = read_variant(name)
    chosen = own if own != Variant() or variant is None else variant
    if plain in PRETRAINED:
        return backbone_of(plain, load_pretrained(plain), chosen)
    if plain.startswith((PREFIX, TIMM)):
        found = load_checkpoint(plain) if plain.startswith(PREFIX) else load_timm(plain)
        return _as_variant(found, chosen)
    folder = Path(plain).expanduser()
    if not folder.is_dir():
        raise SpecError(f"There is no backbone called {name!r}.", fix=f"name one of: {KINDS}")
    model = load_description(folder)
    if not isinstance(model, Part):
        raise SpecError(
            f"{name} is a mixture of {len(model.members)} nets; a backbone is one net.",
            fix="name the model folder of a single net",
        )
    return backbone_of(folder.resolve().name, model, chosen)


def backbone_of(name: str, part: Part, variant: Variant | None = None) -> Backbone:
    """A net that somebody has already loaded as a backbone, without its head.

    Args:
        name: under which it is known.
        part: the net.
        variant: what is made of its features; None for nothing.

    Raises:
        SpecError: if the net has no such variant.
    """
    spec = part.spec
    stages = variant.stages if variant else 0
    if stages:
        _require_stages(name, spec.arch)
        spec = ModelSpec.of(spec.arch, {**dict(spec.options), "stages": stages})
    shape = part.preprocess.input_shape
    with torch.random.fork_rng(devices=[]), SkipInitialisation():
        net = build_body(spec, shape)
    body = {key: value for key, value in part.state.items() if not key.startswith("head.")}
    net.load_state_dict(body)
    net.eval().requires_grad_(False)
    with torch.inference_mode():
        features = net.features(torch.zeros(1, *shape))  # type: ignore[operator]
    width = features.shape[-1]
    made = Backbone(name, net, part.preprocess, width, describe_net(spec), spec)
    return _as_variant(made, variant)


def _as_variant(made: Backbone, variant: Variant | None) -> Backbone:
    """A backbone with mirror images and roots, under the full name."""
    if variant is None or variant == Variant():
        return made
    if variant.stages:
        _require_stages(made.name, made.spec.arch if made.spec else "")
    name = made.name + variant.suffix
    return replace(made, name=name, mirror=variant.mirror, root=variant.root)


def _require_stages(name: str, arch: str) -> None:
    if arch not in PRETRAINED:
        raise SpecError(
            f"{name} has no option stages: only {' and '.join(PRETRAINED)} have.",
            fix="leave it out",
        )
