"""The kinds of trackers: those of attar, and those of other packages."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from attar.errors import SettingsError
from attar.internal.plugins import explain_refusal, load_points
from attar.tracking.tracker import Factory

GROUP = "attar.trackers"


class Kind(NamedTuple):
    """A kind that attar has.

    Attributes:
        home: ``module:class`` in this package, imported when it is used.
        package: that it needs.
        extra: of attar, which brings the package.
        place: what is written after the colon.
    """

    home: str
    package: str
    extra: str
    place: str


TRACKERS: Mapping[str, Kind] = {
    "tensorboard": Kind("tensorboard:TensorBoard", "tensorboard", "tensorboard", "DIR"),
    "mlflow": Kind("mlflow:MLflow", "mlflow", "mlflow", "URI"),
    "wandb": Kind("wandb:WandB", "wandb", "wandb", "PROJECT"),
}


def parse_tracker(text: str) -> tuple[str, str]:
    """Read ``KIND:PLACE``.

    Raises:
        SettingsError: if there is no such kind, or no place.
    """
    kind, colon, place = text.partition(":")
    known = [*TRACKERS, *_plugins()[0]]
    if kind not in known:
        close = get_close_matches(kind.lower(), known, 1)
        ending = f": did you mean {close[0]}?" if close else "."
        why = explain_refusal(_plugins()[1], kind)
        raise SettingsError(
            f"--track {text}: there is no tracker {kind!r}{ending}",
            problems=[] if why is None else [why],
            fix=f"write {', '.join(f'{name}:{one.place}' for name, one in TRACKERS.items())}",
        )
    if not colon or not place:
        where = TRACKERS[kind].place if kind in TRACKERS else "PLACE"
        raise SettingsError(f"--track {text} does not say where.", fix=f"--track {kind}:{where}")
    return kind, place


def check_trackers(texts: Sequence[str]) -> None:
    """Check trackers before a run of hours.

    Args:
        texts: of flags ``--track``.

    Raises:
        SettingsError: if there is no such kind, or its package is missing.
    """
    for text in texts:
        kind, _ = parse_tracker(text)
        built_in = TRACKERS.get(kind)
        if built_in is not None and not _is_there(built_in.package):
            raise SettingsError(
                f"--track {text} needs the package {built_in.package}.",
                fix=f"pip install 'attar[{built_in.extra}]'",
            )


def with_whole_paths(texts: Sequence[str]) -> tuple[str, ...]:
    """Trackers whose folders are named from the root, for processes that begin elsewhere."""
    pairs = [parse_tracker(text) for text in texts]
    return tuple(
        f"{kind}:{Path(place).expanduser().absolute()}"
        if kind == "tensorboard" or (kind == "mlflow" and ":" not in place)
        else f"{kind}:{place}"
        for kind, place in pairs
    )


def find_factory(kind: str) -> Factory:
    """What makes the trackers of a kind that ``parse_tracker`` accepted."""
    if kind not in TRACKERS:
        return _plugins()[0][kind]
    module, _, name = TRACKERS[kind].home.partition(":")
    factory: Factory = getattr(import_module(f"attar.tracking.{module}"), name)
    return factory


def list_trackers() -> tuple[str, ...]:
    """The kinds that there are, those of other packages last."""
    return (*TRACKERS, *_plugins()[0])


def refused_trackers() -> Mapping[str, str]:
    """The trackers of other packages that are not used, by name, each with the reason."""
    return _plugins()[1]


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # a module that was put in its place has no origin
        return True


@cache
def _plugins() -> tuple[dict[str, Factory], dict[str, str]]:
    """Kinds of other packages, and those that are refused with the reason."""
    found: dict[str, Factory] = {}

    def accept(name: str, plugin: object) -> str | None:
        if not callable(plugin):
            return "it cannot be called with a place and a run"
        found[name] = plugin
        return None

    refused = load_points(GROUP, "tracker", lambda name: name in TRACKERS, accept)
    return found, refused
