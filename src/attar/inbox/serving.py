"""Running the server of an inbox until all have arrived, enough have, or the time is over."""

import asyncio
import gc
import logging
import signal
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hypercorn.asyncio
from hypercorn.config import Config, Sockets

from attar.errors import RunError
from attar.inbox.examiner import Examiner
from attar.inbox.folder import Entry
from attar.inbox.listener import (
    MOST_CONNECTIONS,
    OWN_DESCRIPTORS,
    LimitedListener,
    raise_descriptor_limit,
)
from attar.inbox.register import Register
from attar.inbox.service import Limits, Service

Reason = Literal["complete", "quorum", "deadline", "stopped"]

LOOK_SECONDS = 0.25
HANDSHAKE_SECONDS = 10.0
SILENT_SECONDS = 60  # without a byte from a connection; longer than an answer waits for a verdict
ANSWER_SECONDS = 5.0  # for the last answers
END_SECONDS = 10.0  # for connections to be closed
BACKLOG = 256  # connections that the system holds before they are accepted


@dataclass(frozen=True)
class Terms:
    """When the server ends.

    Attributes:
        wait_for: so many uploads suffice; None for those of all who are invited.
        deadline: in seconds since 1970; None for none.
    """

    wait_for: int | None
    deadline: float | None

    def reason(self, invited: set[str], arrived: set[str], now: float) -> Reason | None:
        """Why the server ends now; None while it goes on."""
        if invited and invited <= arrived:
            return "complete"
        if self.wait_for is not None and len(invited & arrived) >= self.wait_for:
            return "quorum"
        return "deadline" if self.deadline is not None and now >= self.deadline else None


class _Config(Config):
    """Hypercorn's settings, with a socket of ours."""

    def __init__(self, register: Register, listener: LimitedListener) -> None:
        super().__init__()
        self._listener = listener
        self.certfile = str(register.certificate)
        self.keyfile = str(register.key)
        self.alpn_protocols = ["http/1.1"]
        self.h2_max_concurrent_streams = 1
        self.backlog = BACKLOG
        self.ssl_handshake_timeout = HANDSHAKE_SECONDS
        self.read_timeout = SILENT_SECONDS
        self.max_app_queue_size = 4
        self.websocket_max_message_size = 1024
        self.include_server_header = False
        self.accesslog = None
        self.loglevel = "ERROR"

    def create_sockets(self) -> Sockets:
        """The listener alone."""
        return Sockets([self._listener], [], [])


async def serve_inbox(
    register: Register,
    terms: Terms,
    *,
    listen: tuple[str, int],
    limits: Limits,
    tell: Callable[[Entry], None],
    look: Callable[[Mapping[str, Path]], None],
) -> Reason:
    """Serve an inbox.

    Args:
        register: of the inbox.
        terms: when to end.
        listen: address and port.
        limits: of one upload.
        tell: called with each event.
        look: called with the files that are here, several times a second.

    Returns:
        Why it ended.

    Raises:
        RunError: The address is in use, or a part of the server ended by itself.
    """
    listener = _open_listener(*listen)
    examiner = Examiner()
    service = Service(register, examiner, listener, limits, tell)
    stopped = asyncio.Event()
    with listener, _stopping(stopped):
        try:
            await examiner.start()
            gc.freeze()  # what is imported stays, so that collecting garbage takes less time
            shutdown = asyncio.Event()
            server = asyncio.create_task(
                hypercorn.asyncio.serve(
                    service,  # type: ignore[arg-type]  # its messages are plain dictionaries
                    _Config(register, listener),
                    shutdown_trigger=shutdown.wait,
                    mode="asgi",
                )
            )
            service.note("open", here=len(service.inbox.files()), invited=len(register.guests()))
            service.resume_checks()
            reason = await _watch(register, service, listener, terms, server, stopped, look)
            await service.settle(ANSWER_SECONDS)
            listener.close_all()
            shutdown.set()
            await asyncio.wait({server}, timeout=END_SECONDS)
            server.cancel()
        finally:
            await examiner.stop()
    return reason


async def _watch(
    register: Register,
    service: Service,
    listener: LimitedListener,
    terms: Terms,
    server: asyncio.Task[None],
    stopped: asyncio.Event,
    look: Callable[[Mapping[str, Path]], None],
) -> Reason:
    """Wait for the end."""
    while not stopped.is_set():
        if server.done():
            server.result()
            raise RunError("The server ended by itself.")
        files = service.inbox.files()
        look(files)
        now = time.time()
        invited = {name for name, one in register.guests().items() if now < one.expires}
        if (reason := terms.reason(invited | set(files), set(files), now)) is not None:
            return reason
        listener.close_expired()
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), LOOK_SECONDS)
    return "stopped"


def _open_listener(host: str, port: int) -> LimitedListener:
    most = min(MOST_CONNECTIONS, raise_descriptor_limit() - OWN_DESCRIPTORS)
    try:
        return LimitedListener(host, port, most=most)
    except OSError as error:
        raise RunError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}.",
            fix="end the program that uses it: perhaps this server runs already; or choose --port",
        ) from None


class _stopping:
    """Ctrl-C and SIGTERM end the server in order; errors of single connections are no news."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_ignore_connections)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopped.set)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _ignore_connections(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Leave out what strangers can cause at will: it would fill the log."""
    if not isinstance(context.get("exception"), ssl.SSLError | OSError):
        logging.getLogger(__name__).error(context["message"], exc_info=context.get("exception"))
