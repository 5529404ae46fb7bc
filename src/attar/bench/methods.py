"""Methods as the rows of a recipe name them: attar's own, those of plug-ins, and a few that exist
in the bench alone.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from attar import settings
from attar.bench.oracles import CENTRAL, LOCAL, ORACLES, find_kind
from attar.core import AnyMethod
from attar.errors import SettingsError
from attar.methods import METHODS, find_method, load_plugins

WITHOUT_FUSION = (LOCAL, CENTRAL)
BENCH_ALONE = (*WITHOUT_FUSION, *ORACLES)


def is_available(method: str) -> bool:
    """Whether a method is attar's, the bench's own or a loaded plug-in's."""
    return method in METHODS or method in BENCH_ALONE


def setting_names(method: str) -> set[str]:
    """The names of a method's settings; empty where the method is not available.

    Methods of plug-ins count once they are loaded.
    """
    if method == LOCAL:
        return {"client"}
    kind = find_kind(method)
    return set() if kind is None else set(settings.settings_of(kind))


def configure_method(method: str, values: Mapping[str, Any]) -> AnyMethod:
    """Make a method with its settings.

    Args:
        method: The name of a method that fuses, or of an oracle.
        values: Settings by their flat names; the others have the defaults of the code.

    Raises:
        SettingsError: There is no such method, or it does not take a setting.
    """
    kind = ORACLES.get(method) or find_method(method)
    return settings.configure(kind, values, of=f"method {method}")


def check_server_table(names: Iterable[str], methods: Iterable[str], *, recipe: str) -> None:
    """Refuse entries of a recipe's ``[server]`` table that none of its methods has.

    Nothing is refused where a method is not available, because its settings are not known.

    Raises:
        SettingsError: A setting would change nothing; all such settings are listed.
    """
    load_plugins()
    rows = list(methods)
    if all(map(is_available, rows)):
        check_setting_names(names, rows, of=f" of recipe {recipe}", table="server.")


def check_setting_names(
    names: Iterable[str], methods: Iterable[str], *, of: str = "", table: str = ""
) -> None:
    """Refuse settings that none of the methods has: they would silently change nothing.

    Args:
        names: The settings.
        methods: The methods, one of which must have each of them.
        of: Whose settings these are, for the message.
        table: Where they stand, put before each name in the message.

    Raises:
        SettingsError: Lists all such settings, each with the name that may be meant.
    """
    load_plugins()
    known = sorted(set().union(*map(setting_names, methods)))
    problems = []
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            problems.append(f"{table}{name}: no method of the recipe has it{hint}")
    if problems:
        raise SettingsError(
            f"Settings{of} that change nothing:",
            problems=problems,
            fix=f"settings of its methods: {', '.join(known) or 'they have none'}",
        )
