"""Starting the web service."""

import socket
from collections.abc import Callable
from typing import Any

from attar.deploy.limits import Limits
from attar.errors import RunError
from attar.internal.extras import import_extra
from attar.models import Classifier

EXTRA = "serve"
LOOPBACK = ("127.0.0.1", "localhost")


def make_service(
    classifier: Classifier,
    name: str,
    *,
    device: str = "cpu",
    limits: Limits | None = None,
    hosts: list[str] | None = None,
) -> Any:
    """A model as an ASGI application.

    Args:
        classifier: on ``device``.
        name: of the model, for people.
        device: where it computes.
        limits: of a request; None for the usual ones.
        hosts: the names under which it may be addressed; None for any.

    Raises:
        SettingsError: if a package is missing.
    """
    for package in ("starlette", "python_multipart"):
        import_extra(package, EXTRA)
    from attar.deploy.service import Service, make_app

    return make_app(Service(classifier, name, device, limits or Limits()), hosts)


def serve(app: Any, host: str, port: int, *, ready: Callable[[str], None]) -> None:
    """Serve an ASGI application until Ctrl-C.

    Args:
        app: the application.
        host: the address to listen on; 127.0.0.1 is reached from this machine alone.
        port: its port; 0 for any free one.
        ready: told the address once it listens.

    Raises:
        SettingsError: if a package is missing.
        RunError: if the port is in use.
    """
    uvicorn = import_extra("uvicorn", EXTRA)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise RunError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}.",
            fix="choose another --port, or --port 0 for any free one",
        ) from None
    with listening:
        address = f"[{host}]" if ":" in host else host
        ready(f"http://{address}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            app, log_level="warning", timeout_keep_alive=5, timeout_graceful_shutdown=5
        )
        uvicorn.Server(config).run(sockets=[listening])


def allowed_hosts(host: str) -> list[str] | None:
    """The names under which a service on this address may be asked; None for any.

    On this machine alone, only by its own names: a web page elsewhere whose name leads here is
    refused.
    """
    return list(LOOPBACK) if host in LOOPBACK else None
