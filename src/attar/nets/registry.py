"""The architectures by name.

A net is an ``nn.Module`` with

    features(x)   (B, C, H, W) -> (B, F), the penultimate features
    head          F -> logits
    forward(x)    head(features(x))

and a builder is a plain function ``(input_shape, num_classes, **options) -> Net`` registered
under one name. Its keyword parameters with their annotations and defaults *are* the options of
the architecture. Other packages add nets through the entry point group ``attar.nets``: each
point is named like the net that importing it registers.

Such a net is a classifier. Conditional autoencoders, the decoders that are sent of them and the
statistics of a client's features are registered beside, by ``kind`` (``nets/cvae.py`` and
``nets/statistics.py`` say what they offer). A net that is registered with ``tokens=True``
promises to be a ``TokenNet``, too: who wants to look at tokens asks the registry
(``token_net``), not the net.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NamedTuple, Protocol, cast, get_type_hints

from torch import Tensor, nn

from attar.errors import SpecError
from attar.internal.plugins import load_points, refused
from attar.settings import Scalar, coerce_settings

Shape = tuple[int, int, int]
Kind = Literal["classifier", "cvae", "decoder", "statistics"]

# A spec may come from a stranger's file: no option may ask for a net of unbounded size.
MAX_OPTION = 4096
MAX_OPTION_TEXT = 200  # characters, unless a net says otherwise
MAX_SIDE = 1024
MAX_CHANNELS = 64
MAX_CLASSES = 100_000


class Net(Protocol):
    """What every architecture offers."""

    head: nn.Module

    def features(self, x: Tensor) -> Tensor: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class Look(NamedTuple):
    """What a transformer saw in (B, k) patches: logits (B, C), every token's output, the class
    token's attention (B, k).
    """

    logits: Tensor
    tokens: Tensor
    attention: Tensor


class TokenNet(Net, Protocol):
    """A net that looks at an image patch by patch, and can leave some of them out.

    Patches are numbered row by row over ``grid`` (rows, columns). ``keep`` (B, k) are those that
    go through the net, each at its own position; the others cost nothing and get no gradient.
    None: all of them.
    """

    grid: tuple[int, int]

    def look(self, x: Tensor, keep: Tensor | None = None) -> Look: ...

    def __call__(self, x: Tensor, keep: Tensor | None = None) -> Tensor: ...


Builder = Callable[..., nn.Module]
Title = Callable[[Mapping[str, Scalar]], str]


@dataclass(frozen=True)
class NetEntry:
    """One architecture: its builder, what it is in a line, the image shape its paper used and
    the published size there.
    """

    name: str
    build: Builder
    summary: str
    usual_shape: Shape = (3, 32, 32)
    published_parameters: int | None = None
    kind: Kind = "classifier"
    title: Title | None = None  # a short name of a net whose options are long
    longest_option: int = MAX_OPTION_TEXT  # characters of a text
    tokens: bool = False  # whether what it builds is a TokenNet

    @property
    def required(self) -> list[str]:
        """Options without a default: such a net cannot be made afresh from its name."""
        return [
            name for name, parameter in self.options.items() if parameter.default is parameter.empty
        ]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        parameters = list(inspect.signature(self.build).parameters.items())
        return dict(parameters[2:])


NETS: dict[str, NetEntry] = {}
_TAKEN: set[str] = (
    set()
)  # names of plug-ins, also of those that register a builder of ours under a name of their own


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
    """Register a builder under ``name``; a name can be taken once."""

    def add(builder: Builder) -> Builder:
        if name in NETS:
            raise SpecError(
                f"The net name {name!r} is registered twice.",
                fix="give the second one another name",
            )
        entry = NetEntry(
            name,
            builder,
            summary,
            usual_shape,
            published_parameters,
            kind,
            title,
            longest_option,
            tokens,
        )
        untyped = [
            option
            for option, parameter in entry.options.items()
            if parameter.annotation is parameter.empty
        ]
        if untyped:
            raise SpecError(
                f"Net {name!r} has options without a type: {', '.join(untyped)}.",
                fix="write width: int = 8",
            )
        NETS[name] = entry
        return builder

    return add


def find(arch: str) -> NetEntry:
    """The entry of ``arch``, looking at installed plug-ins when it is not ours."""
    if arch in NETS:
        return NETS[arch]
    if reason := refused(load_plugins(), arch):
        raise SpecError(
            reason, fix="repair or uninstall that package, or choose another net (`attar ls nets`)"
        )
    if arch not in NETS:
        trained = sorted(
            name
            for name, entry in NETS.items()
            if entry.kind in ("classifier", "cvae") and not entry.required
        )
        close = get_close_matches(arch, trained, 1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise SpecError(
            f"There is no net called {arch!r}.{meant}", fix=f"choose one of: {', '.join(trained)}"
        )
    return NETS[arch]


def token_net(arch: str, net: nn.Module) -> TokenNet:
    """``net``, built by ``arch``, as the TokenNet that its registration promises."""
    if not find(arch).tokens:
        raise SpecError(
            f"Net {arch} has no tokens.", fix="use a vision transformer (vit-*, deit-*)"
        )
    return cast(TokenNet, net)


def load_plugins() -> dict[str, str]:
    """Let packages that declare ``attar.nets`` entry points register their builders; by name,
    those that did not and why.

    A point names a module, or anything in one: importing it is what registers the net.
    """
    return load_points("attar.nets", "net", _is_ours, _take)


def _is_ours(name: str) -> bool:
    return (
        name in NETS
        and name not in _TAKEN
        and NETS[name].build.__module__.partition(".")[0] == "attar"
    )


def _take(name: str, _: object) -> str | None:
    if name not in NETS:
        return f"it registered no net of that name (decorate the builder: @attar.nets.registry.register({name!r}, 'what it is'))"
    _TAKEN.add(name)
    return None


def checked_options(arch: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """``options`` as the builder of ``arch`` declares them, or a SpecError naming every one that
    does not fit.
    """
    entry = find(arch)
    hints = get_type_hints(entry.build)
    fields = {name: hints[name] for name in entry.options}
    values = coerce_settings(fields, options, of=f"net {arch}")
    if missing := [name for name in entry.required if name not in values]:
        raise SpecError(
            f"Net {arch} cannot be made from its name alone: {', '.join(missing)} must come with it."
        )
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
    """A freshly initialised net on the current default device, from the global random state (see
    ``ModelSpec.build``).
    """
    channels, height, width = input_shape
    if not (1 <= channels <= MAX_CHANNELS and 1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise SpecError(
            f"Net {arch} cannot take images of shape {input_shape}.",
            fix=f"use 1 to {MAX_CHANNELS} channels and sides of 1 to {MAX_SIDE} pixels",
        )
    if not 1 <= num_classes <= MAX_CLASSES:
        raise SpecError(
            f"Net {arch} cannot have {num_classes} classes.", fix=f"use 1 to {MAX_CLASSES}"
        )
    values = checked_options(arch, options)
    return find(arch).build(input_shape, num_classes, **values)
