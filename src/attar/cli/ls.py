"""``attar ls``: list nets, methods or data sources, or explain one of them."""

from typing import Literal

from tyro.conf import Positional

from attar.cli.flags import Json
from attar.cli.output import console
from attar.internal.interrupts import interrupts_end_the_process

What = Literal["nets", "methods", "data"]


def ls(what: Positional[What], name: Positional[str] = "", /, *, json: Json = False) -> None:
    """List nets, methods or data sources, or explain one of them.

    `attar ls methods accord` explains the settings of a method, `attar ls nets resnet20` the
    options of a net: their defaults, bounds and meaning.
    """
    with interrupts_end_the_process():
        from attar.cli.output import explain, listing, tables  # they load torch

    if name:
        explanation = explain.explain(what, name)
        console.emit(explanation, lambda: explain.show(explanation), json=json)
        return
    make_rows = {
        "nets": listing.list_nets,
        "methods": listing.list_methods,
        "data": listing.list_data,
    }
    rows = make_rows[what]()
    console.emit(rows, lambda: tables.show_list(what, rows), json=json)
    for reason in listing.refused_plugins(what):
        console.note(f"warning: {reason}")
