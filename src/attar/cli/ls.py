"""``attar ls``: list nets, methods or data sources."""

from typing import Literal

from tyro.conf import Positional

from attar.cli.arguments import Json
from attar.cli.output import console, listing, tables


def ls(what: Positional[Literal["nets", "methods", "data"]], /, *, json: Json = False) -> None:
    """List nets, methods or data sources."""
    make_rows = {
        "nets": listing.list_nets,
        "methods": listing.list_methods,
        "data": listing.list_data,
    }
    rows = make_rows[what]()
    console.emit(rows, lambda: tables.show_list(what, rows), json=json)
    for reason in listing.refused_plugins(what):
        console.note(f"warning: {reason}")
