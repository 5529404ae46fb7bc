"""What other packages add by entry points. Each point is loaded once, and one that cannot be
loaded stops nobody else.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

Take = Callable[
    [str, object], str | None
]  # a name and what it stands for -> why it is not taken, None where it is


def load_points(group: str, what: str, ours: Callable[[str], bool], take: Take) -> dict[str, str]:
    """Hand what the points of ``group`` name to ``take``; those that are not taken, by name,
    each with the reason.

    ``what`` is the word for one of them; ``ours`` tells the names that attar itself has, which
    stay attar's.
    """
    offers: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        offers.setdefault(point.name, []).append(point)
    reasons = {name: _offered(name, points, what, ours, take) for name, points in offers.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _offered(
    name: str, points: list[EntryPoint], what: str, ours: Callable[[str], bool], take: Take
) -> str | None:
    packages = [_package(point) for point in points]
    if ours(name):
        return f"packages attar and {' and '.join(packages)} offer {what} {name!r}: attar's own is kept"
    if len(packages) > 1:
        return f"packages {' and '.join(packages)} offer {what} {name!r}: none of them is used, uninstall all but one"
    thing, failure = _loaded(points[0])
    if failure:
        return f"package {packages[0]} offers {what} {name!r}, which cannot be loaded: {failure}"
    reason = take(name, thing)
    return (
        None
        if reason is None
        else f"package {packages[0]} offers {what} {name!r}, which cannot be used: {reason}"
    )


@cache  # a module that failed half-way would tell another story when it is imported again
def _loaded(point: EntryPoint) -> tuple[object, str]:
    """What the point names, and what went wrong: one of them is empty."""
    try:
        return point.load(), ""
    except (
        Exception,
        SystemExit,
    ) as error:  # foreign code may raise anything, a script without a main guard exits
        return None, in_a_line(error)


def in_a_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")


def refused(refusals: Mapping[str, str], name: str) -> str | None:
    """Why the plug-in ``name`` is not there, as a sentence; None where nobody offers it."""
    reason = refusals.get(name)
    return None if reason is None else f"{reason[:1].upper()}{reason[1:]}."


def _package(point: EntryPoint) -> str:
    return "of unknown name" if point.dist is None else f"{point.dist.name} {point.dist.version}"
