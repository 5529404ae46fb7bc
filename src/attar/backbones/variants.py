"""Variants of a backbone: ``NAME?mirror=true&root=true&stages=3``."""

from dataclasses import dataclass

from attar.errors import SpecError
from attar.nets.efficientnet_lite import STAGES

_SWITCHES = ("mirror", "root")
_STAGES = "stages"
KNOWN = (*_SWITCHES, _STAGES)


@dataclass(frozen=True)
class Variant:
    """What is made of a backbone's features.

    Attributes:
        mirror: they are averaged with those of the mirror image; takes twice the time.
        root: the square root of every number is taken, with its sign.
        stages: the means of the maps of so many earlier stages stand beside the last ones; of
            EfficientNet-Lite only.
    """

    mirror: bool = False
    root: bool = False
    stages: int = 0

    @property
    def suffix(self) -> str:
        """As it stands behind a backbone's name; always in the same order."""
        given = [f"{name}=true" for name in _SWITCHES if getattr(self, name)]
        given += [f"{_STAGES}={self.stages}"] if self.stages else []
        return f"?{'&'.join(given)}" if given else ""


def read_variant(text: str) -> tuple[str, Variant]:
    """Split the name of a backbone from its variant.

    Options that are not those of a variant stay with the name, such as ``weights`` of a net of
    timm.

    Args:
        text: such as ``"efficientnet-lite0?mirror=true"``.

    Raises:
        SpecError: with every value that cannot be used.
    """
    name, _, options = text.partition("?")
    items = [item.partition("=") for item in options.split("&") if item]
    chosen = {key: value for key, _, value in items if key in KNOWN}
    rest = [key + sign + value for key, sign, value in items if key not in KNOWN]
    problems = [
        f"{key} = {value}: true or false"
        for key, value in chosen.items()
        if key in _SWITCHES and value not in ("true", "false")
    ]
    most = len(STAGES)
    stages = chosen.get(_STAGES, "0")
    if not (stages.isascii() and stages.isdigit() and int(stages) <= most):
        problems.append(f"{_STAGES} = {stages}: 0 to {most}")
    if len(chosen) + len(rest) < len(items):
        problems.append("an option is named twice")
    if problems:
        raise SpecError(
            f"The backbone {text} cannot be used:",
            problems=problems,
            fix="write NAME?mirror=true&root=true&stages=3, or some of these",
        )
    variant = Variant(chosen.get("mirror") == "true", chosen.get("root") == "true", int(stages))
    return name + (f"?{'&'.join(rest)}" if rest else ""), variant
