"""A frozen backbone with a linear head: what a server makes of sums of features.

    logits(x) = W phi(x) + b        phi: as in ``feature_sums.py``

The backbone is any classifier of the registry without its head, so the model is one more net:
it is saved, loaded, evaluated and sent like any other.
"""

import json
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from attar.errors import SpecError
from attar.internal.strict_json import strict_json
from attar.nets.feature_sums import MAX_DIMENSIONS, project_by
from attar.nets.feature_views import view_features
from attar.nets.graph.format import MAX_TEXT
from attar.nets.limits import require_options
from attar.nets.quadratic import QuadraticHead
from attar.nets.registry import Net, Shape, build, find, register
from attar.nets.spec import ModelSpec
from attar.nets.statistics import shared_signs
from attar.settings import Scalar

ARCH = "frozen-backbone"
OUTPUTS = 2  # of the head that a backbone is built with and loses


class FrozenBackbone(nn.Module):
    """Images (B, C, H, W) -> logits (B, classes).

    Args:
        body: A net without its head.
        features: F, the width of its features.
        num_classes: C.
        dimensions: D; 0 takes the features without projection, D = F.
        clip: Length to which phi is clipped; 0 for none.
        mirror: Whether features are averaged with those of the mirror image.
        root: Whether the root of the features is taken.
        quadratic: Whether logits are quadratic in phi, not linear.

    Attributes:
        body: As given.
        centre: (F,), subtracted from the features.
        head: phi (B, D) -> logits (B, C).
        signs: (F, D); empty without projection.
    """

    centre: Tensor
    signs: Tensor

    def __init__(
        self,
        body: nn.Module,
        features: int,
        num_classes: int,
        *,
        dimensions: int,
        clip: float,
        mirror: bool = False,
        root: bool = False,
        quadratic: bool = False,
    ) -> None:
        super().__init__()
        self.body = body
        self.clip = clip
        self.mirror = mirror
        self.root = root
        width = dimensions or features
        self.head = (
            QuadraticHead(width, num_classes) if quadratic else nn.Linear(width, num_classes)
        )
        self.register_buffer("centre", torch.zeros(features))
        signs = shared_signs(features, dimensions) if dimensions else torch.zeros(0, device="cpu")
        self.register_buffer("signs", signs, persistent=False)

    def features(self, x: Tensor) -> Tensor:
        """phi(x), (B, D) in single precision."""
        body = cast(Net, self.body)
        raw = view_features(body.features, x, mirror=self.mirror, root=self.root)
        with torch.autocast(raw.device.type, enabled=False):
            signs = self.signs if self.signs.numel() else None
            return project_by(raw, self.centre, signs, self.clip).float()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def build_body(spec: ModelSpec, input_shape: Shape, features: int | None = None) -> nn.Module:
    """Make a classifier without its head, whose ``features`` are all that is used of it.

    Args:
        spec: the classifier.
        input_shape: (C, H, W) of its input.
        features: the width that its features should have; None for any.

    Raises:
        SpecError: if it is no classifier, has no head of its own, or features of another width.
    """
    if find(spec.arch).kind != "classifier" or spec.arch == ARCH:
        raise SpecError(f"{spec} cannot be a backbone.", fix="use a classifier")
    body = build(spec.arch, dict(spec.options), input_shape, OUTPUTS)
    if "head" not in dict(body.named_children()):
        raise SpecError(
            f"{spec} cannot be a backbone: it does not end in a layer of its own.",
            fix="use a net that ends in a linear layer",
        )
    head = cast(nn.Module, body.head)
    linear = [module for module in head.modules() if isinstance(module, nn.Linear)]
    width = sum(module.in_features for module in linear)
    if features is not None and width != features:
        raise SpecError(f"{spec} has {width} features, not {features}.")
    body.head = nn.Identity()
    return body


def describe_net(spec: ModelSpec) -> str:
    """A spec as the text of the option ``net``."""
    content = {"arch": spec.arch, "options": dict(spec.options)}
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def _read_net(text: str) -> ModelSpec:
    """The spec in the option ``net``, which may come from a foreign file."""
    try:
        given = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"Option net of {ARCH} is no JSON: {str(error)[:120]}") from None
    if not isinstance(given, dict) or set(given) != {"arch", "options"}:
        raise SpecError(f"Option net of {ARCH} must have exactly: arch, options.")
    arch = given["arch"]
    options = given["options"]
    plain = (bool, int, float, str)
    if not isinstance(arch, str) or not isinstance(options, dict):
        raise SpecError(f"Option net of {ARCH} must be a name and its options.")
    if not all(isinstance(value, plain) for value in options.values()):
        raise SpecError(f"Option net of {ARCH}: options are numbers, texts or booleans.")
    return ModelSpec.of(arch[:200], options)


def _title(options: Mapping[str, Scalar]) -> str:
    dimensions = options.get("dimensions")
    projected = f", projected to {dimensions} features" if dimensions else ""
    return f"{options.get('backbone')}{projected}"


@register(
    ARCH,
    "A frozen backbone with a linear head.",
    title=_title,
    longest_option=2 * MAX_TEXT,  # a graph in JSON in JSON
)
def frozen_backbone(
    input_shape: Shape,
    num_classes: int,
    *,
    backbone: str,
    net: str,
    features: int,
    dimensions: int = 0,
    clip: float = 0.0,
    mirror: bool = False,
    root: bool = False,
    quadratic: bool = False,
) -> nn.Module:
    """A frozen backbone with a linear head.

    Args:
        input_shape: (C, H, W) of the backbone's input.
        num_classes: outputs.
        backbone: its name, such as ``efficientnet-lite0``.
        net: its architecture and options, from ``describe_net``.
        features: width of the backbone's features.
        dimensions: to which they are projected; 0 for no projection.
        clip: length to which phi is clipped; 0 for none.
        mirror: whether features are averaged with those of the mirror image.
        root: whether the root of the features is taken.
        quadratic: whether logits are quadratic in phi, one covariance for each class.

    Raises:
        SpecError: with what is wrong with the options.
    """
    problems = [f"features = {features}: at least 1"] if features < 1 else []
    if (dimensions or features) > MAX_DIMENSIONS:
        problems.append(f"{dimensions or features} dimensions: at most {MAX_DIMENSIONS}")
    require_options(ARCH, problems)
    body = build_body(_read_net(net), input_shape, features)
    return FrozenBackbone(
        body,
        features,
        num_classes,
        dimensions=dimensions,
        clip=clip,
        mirror=mirror,
        root=root,
        quadratic=quadratic,
    )
