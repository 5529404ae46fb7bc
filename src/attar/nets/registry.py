"""The architectures by name.

A net is an ``nn.Module`` with

    features(x)   (B, C, H, W) -> (B, F), the penultimate features
    head          F -> logits
    forward(x)    head(features(x))

and a builder is a plain function ``(input_shape, num_classes, **options) -> Net`` registered
under one name. Its keyword parameters with their annotations and defaults *are* the options of
the architecture. Other packages add nets through the entry point group ``attar.nets``: each
point is named like the net that importing it registers.

Such a net is a classifier. Conditional autoencoders, the decoders sent from them, and the
statistics of a client's features are registered under other ``kind``s (``nets/cvae.py`` and
``nets/statistics.py`` say what they offer). A net that is registered with ``tokens=True``
is also a ``TokenNet``; callers ask the registry for that (``token_net``), not the net.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NamedTuple, Protocol, cast, get_type_hints

from torch import Tensor, nn

from attar.errors import SpecError
from attar.internal.plugins import explain_refusal, load_points
from attar.settings import Scalar, coerce_settings

Shape = tuple[int, int, int]
Kind = Literal["classifier", "cvae", "decoder", "statistics", "sums", "mixtures"]

# A spec may come from a foreign file: no option may ask for a net of unbounded size.
MAX_OPTION = 4096  # largest value of a number
MAX_OPTION_TEXT = 200  # characters, unless a net says otherwise
MAX_SIDE = 1024  # pixels of an image's height or width
MAX_CHANNELS = 64
MAX_CLASSES = 30_000  # ImageNet-21k has 21,841


class Net(Protocol):
    """What every architecture offers.

    Attributes:
        head: penultimate features (B, F) -> logits (B, C).
    """

    head: nn.Module

    def features(self, x: Tensor) -> Tensor:
        """The penultimate features, (B, C, H, W) -> (B, F)."""

    def __call__(self, x: Tensor) -> Tensor:
        """Logits: ``head(features(x))``."""


class Look(NamedTuple):
    """What a transformer computes from k patches of each image.

    Attributes:
        logits: (B, C).
        tokens: the last layer's output of every token, (B, tokens, F).
        attention: of the class token to the patches in the last layer, (B, k).
    """

    logits: Tensor
    tokens: Tensor
    attention: Tensor


class TokenNet(Net, Protocol):
    """A net that sees an image as patches, and can leave some of them out.

    Attributes:
        grid: rows and columns of patches, which are numbered row by row.
    """

    grid: tuple[int, int]

    def look(self, x: Tensor, keep: Tensor | None = None) -> Look:
        """Logits, tokens and attention.

        Args:
            x: images, (B, C, H, W).
            keep: numbers of the patches that go through the net, (B, k), each at its own position;
                the others cost nothing and get no gradient. None keeps all of them.
        """

    def __call__(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """The logits of ``look``."""


Builder = Callable[..., nn.Module]
"""``(input_shape, num_classes, **options) -> Net``."""

Title = Callable[[Mapping[str, Scalar]], str]
"""Options -> the name of the net in tables."""


@dataclass(frozen=True)
class NetEntry:
    """One architecture.

    Attributes:
        name: under which it is registered.
        build: its builder.
        summary: what it is, in a line.
        usual_shape: of the images in its paper.
        published_parameters: how many it has there; None if the paper does not say.
        kind: what it does.
        title: the name for tables, if the options are too long for one; None: name and options.
        longest_option: characters of an option that is a text.
        tokens: whether the builder makes a ``TokenNet``.
    """

    name: str
    build: Builder
    summary: str
    usual_shape: Shape = (3, 32, 32)
    published_parameters: int | None = None
    kind: Kind = "classifier"
    title: Title | None = None
    longest_option: int = MAX_OPTION_TEXT
    tokens: bool = False

    @property
    def required(self) -> list[str]:
        """Options without a default: such a net cannot be made from its name alone."""
        return [name for name, option in self.options.items() if option.default is option.empty]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options: name -> parameter of the builder, with annotation and default."""
        parameters = list(inspect.signature(self.build).parameters.items())
        return dict(parameters[2:])


NETS: dict[str, NetEntry] = {}
# Names of plug-ins; one of them may have registered a builder of attar under its own name.
_PLUGINS: set[str] = set()


def register(
    name: str,
    summary: str,
    *,
    usual_shape: Shape = (3, 32, 32),
    published_parameters: int | None = None,
    kind: Kind = "classifier",
    title: Title | None = None,
    longest_option: int = MAX_OPTION_TEXT,
    tokens: bool = False,
) -> Callable[[Builder], Builder]:
    """Register a builder of nets; a decorator.

    Args:
        name: of the net, not yet in use.
        summary: what it is, in a line.
        usual_shape: of the images in its paper.
        published_parameters: how many it has there; None if the paper does not say.
        kind: what it does.
        title: the name for tables, if the options are too long for one.
        longest_option: characters of an option that is a text.
        tokens: whether the builder makes a ``TokenNet``.

    Raises:
        SpecError: if the name is in use, or a parameter has no annotation.
    """

    def add(builder: Builder) -> Builder:
        if name in NETS:
            raise SpecError(
                f"The net name {name!r} is registered twice.",
                fix="give the second one another name",
            )
        entry = NetEntry(
            name=name,
            build=builder,
            summary=summary,
            usual_shape=usual_shape,
            published_parameters=published_parameters,
            kind=kind,
            title=title,
            longest_option=longest_option,
            tokens=tokens,
        )
        options = entry.options.items()
        if untyped := [key for key, option in options if option.annotation is option.empty]:
            raise SpecError(
                f"Net {name!r} has options without a type: {', '.join(untyped)}.",
                fix="write width: int = 8",
            )
        NETS[name] = entry
        return builder

    return add


def find(arch: str, kinds: Sequence[str] = ("classifier", "cvae")) -> NetEntry:
    """The entry of a net, from attar or from an installed plug-in.

    Args:
        arch: its name.
        kinds: of nets to choose from, which the error names where there is none of this name.

    Raises:
        SpecError: if there is none, with a similar name; or why the plug-in is not used.
    """
    if arch in NETS:
        return NETS[arch]
    if reason := explain_refusal(load_plugins(), arch):
        fix = "repair or uninstall that package, or choose another net (`attar ls nets`)"
        raise SpecError(reason, fix=fix)
    if arch not in NETS:
        trainable = sorted(
            name for name, entry in NETS.items() if entry.kind in kinds and not entry.required
        )
        close = get_close_matches(arch, trainable, 1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise SpecError(
            f"There is no net called {arch!r}.{meant}", fix=f"choose one of: {', '.join(trainable)}"
        )
    return NETS[arch]


def token_net(arch: str, net: nn.Module) -> TokenNet:
    """Cast a net to the ``TokenNet`` that its registration promises.

    Args:
        arch: the name that ``net`` was built from.
        net: the module.

    Raises:
        SpecError: if the architecture has no tokens.
    """
    if not find(arch).tokens:
        raise SpecError(
            f"Net {arch} has no tokens.", fix="use a vision transformer (vit-*, deit-*)"
        )
    return cast(TokenNet, net)


def load_plugins() -> dict[str, str]:
    """Load the ``attar.nets`` entry points of other packages, which register their builders.

    A point names a module, or anything in one: importing it is what registers the net.

    Returns:
        The plug-ins that are not used, by name, each with the reason.
    """
    return load_points("attar.nets", "net", _is_ours, _accept)


def _is_ours(name: str) -> bool:
    return (
        name in NETS
        and name not in _PLUGINS
        and NETS[name].build.__module__.partition(".")[0] == "attar"
    )


def _accept(name: str, _: object) -> str | None:
    if name not in NETS:
        decorator = f"@attar.nets.registry.register({name!r}, 'what it is')"
        return f"it registered no net of that name (decorate the builder: {decorator})"
    _PLUGINS.add(name)
    return None


def check_options(arch: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Convert options to the types that the builder declares, and check them.

    Args:
        arch: the net.
        options: values by name, possibly from a foreign file.

    Returns:
        The options that were given, converted.

    Raises:
        SettingsError: with every option that does not exist or is of another type.
        SpecError: if there is no such net, an option without default is missing, or a number is
            out of bounds.
    """
    entry = find(arch)
    hints = get_type_hints(entry.build)
    fields = {name: hints[name] for name in entry.options}
    values = coerce_settings(fields, options, of=f"net {arch}")
    if missing := [name for name in entry.required if name not in values]:
        options_text = ", ".join(missing)
        raise SpecError(f"Net {arch} cannot be made without the options: {options_text}.")
    too_large = [
        f"{name} = {value}: at most {MAX_OPTION}, at least 0"
        for name, value in values.items()
        if isinstance(value, int | float) and not 0 <= value <= MAX_OPTION
    ]
    if too_large:
        raise SpecError(f"Options of net {arch} out of bounds.", problems=too_large)
    return values


def build(
    arch: str, options: Mapping[str, Scalar], input_shape: Shape, num_classes: int
) -> nn.Module:
    """Make a net on the current default device, drawing from the global random state.

    ``ModelSpec.build`` is the seeded way to do this.

    Args:
        arch: the net.
        options: values by name.
        input_shape: (C, H, W) of its input.
        num_classes: outputs of its head.

    Raises:
        SpecError: if the net does not take such images, classes or options.
        SettingsError: with every option that does not exist or is of another type.
    """
    channels, height, width = input_shape
    if not (1 <= channels <= MAX_CHANNELS and 1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise SpecError(
            f"Net {arch} cannot take images of shape {input_shape}.",
            fix=f"use 1 to {MAX_CHANNELS} channels and sides of 1 to {MAX_SIDE} pixels",
        )
    if not 1 <= num_classes <= MAX_CLASSES:
        fix = f"use 1 to {MAX_CLASSES}"
        raise SpecError(f"Net {arch} cannot have {num_classes} classes.", fix=fix)
    values = check_options(arch, options)
    return find(arch).build(input_shape, num_classes, **values)
