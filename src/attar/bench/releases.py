"""The defaults of a release as a frozen table, ``releases/0.1.json``. A recipe names one.

A table is named after the release that first had these defaults. Its values never change. Settings
that are new are added to every table, with the value that leaves older runs as they were.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from attar.errors import SettingsError

FIRST = "0.1"  # names of runs say only what differs from these defaults
CURRENT = "current"  # the defaults of the code, whatever they are
HOME = Path(__file__).parent / "releases"


@dataclass(frozen=True)
class Release:
    """The values that hold where a recipe says nothing.

    ``tables`` is empty for the defaults of the code.
    """

    name: str = CURRENT
    tables: Mapping[str, Any] = field(default_factory=dict)

    def section(self, name: str) -> dict[str, Any]:
        """A table, such as ``federation``; empty for the defaults of the code."""
        return dict(self.tables.get(name, {}))


AS_IN_CODE = Release()


def release_names() -> list[str]:
    """The releases whose defaults are on file, the newest last."""
    return sorted(
        (path.stem for path in HOME.glob("*.json")),
        key=lambda name: [int(word) for word in name.split(".")],
    )


@cache
def find_release(name: str) -> Release:
    """The defaults of a release, or of the code (``current``).

    Raises:
        SettingsError: There are none of that name.
    """
    if name == CURRENT:
        return AS_IN_CODE
    if name not in release_names():
        raise SettingsError(
            f"There are no defaults called {name!r}.",
            fix=f"choose one of: {', '.join([*release_names(), CURRENT])}",
        )
    return Release(name, json.loads((HOME / f"{name}.json").read_text()))
