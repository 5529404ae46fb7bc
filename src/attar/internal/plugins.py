"""What other packages add through entry points.

Each entry point is loaded once, and one that cannot be loaded does not affect the others.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

Accept = Callable[[str, object], str | None]
"""Takes a plug-in's name and object; returns why it is refused, or None."""


def load_points(
    group: str, what: str, ours: Callable[[str], bool], accept: Accept
) -> dict[str, str]:
    """Load all entry points of a group and pass what they name to ``accept``.

    Args:
        group: the group, for example ``"attar.nets"``.
        what: the word for one plug-in in messages, for example ``"net"``.
        ours: whether attar itself has a plug-in of this name; attar's then takes precedence.
        accept: is given the name and object of each plug-in.

    Returns:
        The plug-ins that are not used, by name, each with the reason.
    """
    offers: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        offers.setdefault(point.name, []).append(point)
    reasons = {name: _offer(name, points, what, ours, accept) for name, points in offers.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _offer(
    name: str, points: list[EntryPoint], what: str, ours: Callable[[str], bool], accept: Accept
) -> str | None:
    packages = [_package(point) for point in points]
    names = " and ".join(packages)
    if ours(name):
        return f"packages attar and {names} offer {what} {name!r}: attar's is used"
    if len(packages) > 1:
        advice = "none of them is used, uninstall all but one"
        return f"packages {names} offer {what} {name!r}: {advice}"
    offer = f"package {packages[0]} offers {what} {name!r}"
    plugin, failure = load_point(points[0])
    if failure:
        return f"{offer}, which cannot be loaded: {failure}"
    reason = accept(name, plugin)
    return None if reason is None else f"{offer}, which cannot be used: {reason}"


@cache  # a module that failed half-way would fail differently when it is imported again
def load_point(point: EntryPoint) -> tuple[object, str]:
    """Load what an entry point names, once.

    Args:
        point: the entry point.

    Returns:
        The object, and why it cannot be loaded: one of them is empty.
    """
    try:
        return point.load(), ""
    # Foreign code may raise anything, and a script without a main guard exits.
    except (Exception, SystemExit) as error:
        return None, in_a_line(error)


def in_a_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")


def explain_refusal(reasons: Mapping[str, str], name: str) -> str | None:
    """Why the plug-in ``name`` is not used, as a sentence; None if no package offers it.

    Args:
        reasons: what ``load_points`` returned.
        name: the plug-in that was asked for.
    """
    reason = reasons.get(name)
    return None if reason is None else f"{reason[:1].upper()}{reason[1:]}."


def _package(point: EntryPoint) -> str:
    return "of unknown name" if point.dist is None else f"{point.dist.name} {point.dist.version}"
