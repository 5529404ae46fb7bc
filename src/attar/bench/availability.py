"""What a cell needs and is not available here, in words: data, methods, nets, weights."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from attar.bench.methods import is_available
from attar.bench.nets import describe_error, net_names, resolve_nets
from attar.bench.recipe import Federation
from attar.data.fetch import data_root
from attar.data.sources import FORMS
from attar.data.sources import is_available as has_data_set
from attar.errors import SettingsError
from attar.methods import find_method
from attar.models import PRETRAINED, is_installed


def find_missing(
    method: str, federation: Federation, student: str | None, groups: Sequence[str] = ()
) -> list[str]:
    """What a run needs and is not available.

    Args:
        method: The method's name. Methods of plug-ins count once they are loaded.
        federation: The clients, their data and nets.
        student: The student's architecture; None: the method decides.
        groups: The groups whose uploads are fused; empty: all.

    Returns:
        What is missing, in words; empty where the run can take place.
    """
    sources = [federation.data, *([federation.public] if federation.public else [])]
    root = str(data_root())
    missing = [name for source in sources for name in _missing_data(source.partition("?")[0], root)]
    if not is_available(method):
        missing.append(_describe_missing_method(method))
    nets = dict.fromkeys(net_names(federation, student, groups))
    missing += [name for names in nets for name in resolve_nets(names).missing]
    if federation.start is not None and not _has_weights(federation.start):
        missing.append(f"weights {federation.start}")
    return missing


def _has_weights(start: str) -> bool:
    if start in PRETRAINED and is_installed(start):
        return True
    return start.startswith("hf:") or Path(start).exists()


def _missing_data(source: str, root: str) -> list[str]:
    form, _, path = source.partition(":")
    if f"{form}:" in {f"{name.partition(':')[0]}:" for name in FORMS}:
        return [] if form == "hf" or Path(path).expanduser().exists() else [f"data {source}"]
    return [] if _has_data(source, root) else [f"data set {source}"]


@cache
def _has_data(source: str, _root: str) -> bool:
    """Whether a data set is there; remembered for each data folder."""
    return has_data_set(source)


def _describe_missing_method(name: str) -> str:
    try:
        find_method(name)
    except SettingsError as error:
        return f"method {name}{describe_error(error)}"
    return f"method {name}"
