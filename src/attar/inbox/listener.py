"""The listening socket of a server: how many connections are open, and for how long.

A connection is unauthenticated until a request on it has proved who sends it. It has a few seconds
to do so. If all places are taken, the oldest unauthenticated connection is closed for a new one.
So connections that send nothing hold a place for a short time only.
"""

import gc
import resource
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

MOST_CONNECTIONS = 128  # each takes about 0.5 MB for its encryption
PATIENCE_SECONDS = 15.0  # until an unauthenticated connection is closed
SPARE = 8  # connections beyond the limit while others are being closed
COLLECT_EVERY = 32  # connections that ended
OWN_DESCRIPTORS = 64  # for files of the server itself


@dataclass
class _Connection:
    """An open connection, since when it is so, and whether its sender is known."""

    stream: socket.socket
    since: float
    authenticated: bool = False
    closing: bool = False


class LimitedListener(socket.socket):
    """A listening TCP socket, to be given to a server on top of asyncio.

    Args:
        host: the address to listen on.
        port: its port; 0 for any free one.
        most: how many connections are open at a time.
        patience: seconds until an unauthenticated connection is closed.

    Raises:
        OSError: the address is in use.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        most: int = MOST_CONNECTIONS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._connections: list[_Connection] = []  # the oldest first
        self._lock = threading.RLock()  # a server may close expired ones from another thread
        self._most = most
        self._patience = patience
        self._ended = 0  # connections since the last collection
        self.expired = 0  # unauthenticated connections that were closed
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.setblocking(False)
        try:
            self.bind((host, port))
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next connection; if all places are taken, an unauthenticated one is closed for it.

        Raises:
            BlockingIOError: No connection is waiting, or no place is free yet.
            ConnectionAbortedError: All places are taken by authenticated connections.
        """
        with self._lock:
            self._drop_closed()
            full = len(self._connections) >= self._most
            if full and len(self._connections) >= self._most + SPARE and self._any_closing():
                raise BlockingIOError
            connection, address = super().accept()
            others = (one for one in self._connections if not (one.authenticated or one.closing))
            if full and (oldest := next(others, None)) is not None:
                self._shut(oldest)
            elif full and not self._any_closing():
                connection.close()
                raise ConnectionAbortedError("all places are taken by authenticated connections")
            self._connections.append(_Connection(connection, time.monotonic()))
            return connection, address

    def authenticate(self, address: tuple[str, int] | None) -> None:
        """Keep a connection open: its sender is known."""
        self._set_authenticated(address, authenticated=True)

    def revoke(self, address: tuple[str, int] | None) -> None:
        """Treat a connection as unauthenticated again."""
        self._set_authenticated(address, authenticated=False)

    def close_expired(self) -> None:
        """Close the unauthenticated connections whose time is over."""
        with self._lock:
            self._drop_closed()
            now = time.monotonic()
            for one in self._connections:
                if not (one.authenticated or one.closing) and now - one.since > self._patience:
                    self._shut(one)

    def close_all(self) -> None:
        """Close every connection."""
        for one in self._connections:
            self._shut(one)

    def _set_authenticated(self, address: tuple[str, int] | None, *, authenticated: bool) -> None:
        for one in self._connections:
            if one.stream.fileno() >= 0 and _peer(one.stream) == address:
                one.authenticated = authenticated
                one.since = time.monotonic()

    def _shut(self, one: _Connection) -> None:
        self.expired += not one.authenticated
        one.closing = True
        # The server reads the end of the connection and closes it: closing it here would give its
        # descriptor to another one.
        with suppress(OSError):
            one.stream.shutdown(socket.SHUT_RDWR)

    def _any_closing(self) -> bool:
        return any(one.closing for one in self._connections)

    def _drop_closed(self) -> None:
        still_open = [one for one in self._connections if one.stream.fileno() >= 0]
        self._ended += len(self._connections) - len(still_open)
        self._connections = still_open
        if self._ended >= COLLECT_EVERY:
            # What asyncio keeps of an encrypted connection refers to itself and holds 0.25 MB,
            # which Python's collector does not see: a thousand of them would wait for it.
            self._ended = 0
            gc.collect()


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return None
    return host, port


def raise_descriptor_limit() -> int:
    """Allow this process as many open files as the system lets it; returns their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**20
