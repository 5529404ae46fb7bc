"""Flower's SuperLink behind a gate: ``python -m attar.network.link`` takes the arguments of
``flower-superlink``.

SuperLink serves three interfaces on one port. Partners need Fleet, where each call is signed
with a registered key. Control (register a key, start a program on the server) and Runtime ask
for no key at all, so here they answer this machine alone. It also ends when the process that
started it is gone, so that a killed `attar network server` leaves no port taken.
"""

import os
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

PUBLIC = "/v1/fleet/"
LOOPBACK = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI app that closes everything but Fleet to other machines."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send(
                {
                    "type": "http.response.start",
                    "status": 403,
                    "headers": [(b"content-length", b"0")],
                }
            )
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


def is_allowed(scope: Scope) -> bool:
    """Whether this caller may use that path."""
    client = scope.get("client")
    return str(scope.get("path", "")).startswith(PUBLIC) or (
        client is not None and client[0] in LOOPBACK
    )


def end_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run Flower's SuperLink with the gate in front."""
    from flwr.superlink import main as superlink
    from flwr.superlink.cli import flower_superlink

    end_with_parent()
    create = superlink.create_app

    def create_gated(*arguments: Any, **options: Any) -> Any:
        app = create(*arguments, **options)
        app.add_middleware(Gate)
        return app

    superlink.create_app = create_gated
    flower_superlink()


if __name__ == "__main__":
    main()
