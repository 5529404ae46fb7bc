"""The nets that a recipe names: looked up, and those of other packages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from attar.bench.provenance import Origin, origin_of_net
from attar.bench.recipe import Federation
from attar.core import ModelSpec
from attar.errors import AttarError, SpecError
from attar.models import PREFIX, parse_nets
from attar.nets.registry import find

OF_START = "start"  # in place of a net: that of the model that the clients start from


def net_names(federation: Federation, student: str | None, groups: Sequence[str]) -> list[str]:
    """The texts of all nets of a run: of its groups, and of its student where one is named."""
    clients = [federation.group(name).net for name in groups or federation.group_names]
    return clients + ([student] if student else [])


@dataclass(frozen=True)
class ResolvedNets:
    """What a text of nets stands for, or why it stands for nothing.

    Attributes:
        specs: The nets.
        missing: Nets that are not available, and may be another package's.
        problems: Options that an available net does not have; no package would help.
    """

    specs: tuple[ModelSpec, ...] = ()
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@cache
def resolve_nets(names: str) -> ResolvedNets:
    """Look up the nets of a text such as ``lenet5,mlp:hidden=8``."""
    if names == OF_START:
        return ResolvedNets()
    try:
        return ResolvedNets(specs=tuple(parse_nets(names)))
    except AttarError as error:
        cause = error
    pieces = [piece.strip() for piece in names.split(",")]
    if any(piece.startswith(PREFIX) for piece in pieces):
        return ResolvedNets(missing=(f"net {names}",))
    unknown = []
    for piece in pieces:
        if not piece or (":" not in piece and "=" in piece):  # an option of the net before it
            continue
        try:
            find(piece.partition(":")[0])
        except SpecError as error:
            unknown.append(f"net {names}{describe_error(error)}")
    if unknown:
        return ResolvedNets(missing=tuple(unknown))
    known = f" ({cause.fix})" if cause.fix else ""
    problems = cause.problems or (cause.what,)
    return ResolvedNets(problems=tuple(f"net {names}: {problem}{known}" for problem in problems))


def plugin_nets(texts: Iterable[str]) -> dict[str, Origin]:
    """The nets of other packages, by architecture."""
    archs = dict.fromkeys(spec.arch for names in texts for spec in resolve_nets(names).specs)
    return {arch: origin for arch in archs if (origin := origin_of_net(arch)) is not None}


def describe_error(error: AttarError) -> str:
    """What a registry says besides that there is no such name.

    That is which name may be meant, or why that of a plug-in cannot be loaded.
    """
    what, asked, name = error.what.partition(" Did you mean ")
    if asked:
        return f" (did you mean {name})"
    return "" if what.startswith("There is no ") else f" ({what.removesuffix('.')})"
