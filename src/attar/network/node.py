"""Flower's SuperNode, which runs attar's app alone and ends when `attar network client` ends.

``python -m attar.network.node`` takes the arguments of ``flower-supernode``. A SuperNode runs
whatever app its server sends. This one compares the app with the one that attar itself writes,
by its hash, and ends with the status ``REFUSED`` where it is another.
"""

import hashlib
import os
from importlib import import_module
from typing import Any

from attar.errors import TrustError
from attar.network.kit import make_app_files
from attar.network.link import end_with_parent

REFUSED = 77  # exit status: the server sent another app


def hash_own_app() -> str:
    """The sha256 of attar's app as Flower packs it, in hex; the same on every machine."""
    from flwr.cli.build import build_fab_from_files

    files = {
        name: content.encode() if isinstance(content, str) else content
        for name, content in make_app_files().items()
    }
    packed, _ = build_fab_from_files(files)
    return hashlib.sha256(packed).hexdigest()


def check_app(content: bytes, expected: str) -> None:
    """Refuse an app that is not attar's.

    Args:
        content: the packed app, from the server.
        expected: what ``hash_own_app`` says.

    Raises:
        TrustError: It is another one.
    """
    if hashlib.sha256(content).hexdigest() != expected:
        raise another_app()


def another_app() -> TrustError:
    """The error about a server that sends another app."""
    return TrustError(
        "The server sends another program than the one of this attar: it was not run.",
        fix="use the same version of attar on both sides; if it is the same, ask the server's "
        "operator what it wants to run here",
    )


def main() -> None:
    """Run Flower's SuperNode."""
    from flwr.supernode.cli import flower_supernode

    end_with_parent()
    expected = hash_own_app()
    connection: Any = import_module("flwr.supernode.fleet_http_connection")
    read_app = connection.fab_from_proto

    def read_checked_app(message: Any) -> Any:
        app = read_app(message)
        try:
            check_app(app.content, expected)
        except TrustError:
            os._exit(REFUSED)  # an exception would end one question alone: it would be asked again
        return app

    connection.fab_from_proto = read_checked_app
    flower_supernode()


if __name__ == "__main__":
    main()
