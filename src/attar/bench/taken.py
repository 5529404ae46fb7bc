"""Which settings the rows of a recipe take: a setting for every method that has it must be one
that some method has.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from attar import settings
from attar.bench.oracles import CENTRAL, LOCAL, ORACLES
from attar.errors import SettingsError
from attar.methods import METHODS, load_plugins

BENCH_ALONE = (LOCAL, CENTRAL, *ORACLES)  # methods that exist nowhere else


def settings_of(method: str) -> set[str]:
    """The names of a method's settings; none where it is not at hand. Methods of plug-ins count
    once they are loaded.
    """
    if method == LOCAL:
        return {"client"}
    kind = ORACLES.get(method) or METHODS.get(method)
    return set() if kind is None else set(settings.settings_of(kind))


def at_hand(method: str) -> bool:
    """Whether a method is ours, the bench's own or a loaded plug-in's."""
    return method in METHODS or method in BENCH_ALONE


def refuse_unheard(given: Iterable[str], methods: Iterable[str], *, of: str) -> None:
    """Like ``refuse_unknown``, of a recipe's own table; says nothing where a method is not at
    hand, whose settings nobody knows.
    """
    load_plugins()
    if all(map(at_hand, names := list(methods))):
        refuse_unknown(given, names, of=of, table="server.")


def refuse_unknown(
    given: Iterable[str], methods: Iterable[str], *, of: str = "", table: str = ""
) -> None:
    """Raise one SettingsError with every setting that none of the methods has: it would change
    nothing, and nobody would know.
    """
    load_plugins()
    known = sorted(set().union(*map(settings_of, methods)))
    problems = []
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            problems.append(
                f"{table}{name}: no method of the recipe has it{f'; did you mean {close[0]}?' if close else ''}"
            )
    if problems:
        told = ", ".join(known) or "they have none"
        raise SettingsError(
            f"Settings{f' of {of}' if of else ''} that change nothing:",
            problems=problems,
            fix=f"settings of its methods: {told}",
        )
