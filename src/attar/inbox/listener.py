"""The listening socket of a server: how many connections are held, and how long strangers are.

A connection is a stranger's until a request on it has proved who sends it. A stranger has a few
seconds to do so, and where the house is full the stranger who has waited longest must go. So
connections that say nothing cost no more than their places, and take them from nobody for long.
"""

import gc
import resource
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

MOST_CONNECTIONS = 128  # each takes about 0.5 MB for its encryption
PATIENCE_SECONDS = 15.0  # for the handshake and the headers of a request
SPARE = 8  # connections beyond the limit while those who must go are on their way out
COLLECT_EVERY = 32  # connections that ended
OWN_DESCRIPTORS = 64  # for files of the server itself


@dataclass
class _Visitor:
    """An open connection."""

    connection: socket.socket
    since: float
    known: bool = False
    leaving: bool = False


class Door(socket.socket):
    """A listening TCP socket, to be given to a server on top of asyncio.

    Args:
        host: the address to listen on.
        port: its port; 0 for any free one.
        most: how many connections are held at a time.
        patience: seconds until a stranger must go.

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
        self._visitors: list[_Visitor] = []  # in the order in which they came
        self._lock = threading.RLock()  # a server may sweep from another thread
        self._most = most
        self._patience = patience
        self._ended = 0  # connections since the last collection
        self.sent_away = 0  # strangers who had to go
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.setblocking(False)
        try:
            self.bind((host, port))
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next connection. Where the house is full, a stranger has to go first.

        Raises:
            BlockingIOError: Nobody is waiting outside, or there is no place for them yet.
            ConnectionAbortedError: There is no place for this one.
        """
        with self._lock:
            self._forget_the_closed()
            full = len(self._visitors) >= self._most
            if full and len(self._visitors) >= self._most + SPARE and self._anybody_leaves():
                raise BlockingIOError
            connection, address = super().accept()
            strangers = (one for one in self._visitors if not (one.known or one.leaving))
            if full and (longest := next(strangers, None)) is not None:
                self._send_away(longest)
            elif full and not self._anybody_leaves():
                connection.close()
                raise ConnectionAbortedError("all places are taken by known partners")
            self._visitors.append(_Visitor(connection, time.monotonic()))
            return connection, address

    def recognise(self, address: tuple[str, int] | None) -> None:
        """Treat a connection as a known one from now on."""
        self._set_known(address, known=True)

    def forget(self, address: tuple[str, int] | None) -> None:
        """Treat a connection as a stranger's again."""
        self._set_known(address, known=False)

    def sweep(self) -> None:
        """Send away the strangers who have had their time."""
        with self._lock:
            self._forget_the_closed()
            now = time.monotonic()
            for visitor in self._visitors:
                if not (visitor.known or visitor.leaving) and now - visitor.since > self._patience:
                    self._send_away(visitor)

    def clear(self) -> None:
        """Send everybody away."""
        for visitor in self._visitors:
            self._send_away(visitor)

    def _set_known(self, address: tuple[str, int] | None, *, known: bool) -> None:
        for visitor in self._visitors:
            if visitor.connection.fileno() >= 0 and _peer(visitor.connection) == address:
                visitor.known = known
                visitor.since = time.monotonic()

    def _send_away(self, visitor: _Visitor) -> None:
        self.sent_away += not visitor.known
        visitor.leaving = True
        # The server reads the end of the connection and closes it: closing it here would give its
        # descriptor to another one.
        with suppress(OSError):
            visitor.connection.shutdown(socket.SHUT_RDWR)

    def _anybody_leaves(self) -> bool:
        return any(one.leaving for one in self._visitors)

    def _forget_the_closed(self) -> None:
        still_open = [one for one in self._visitors if one.connection.fileno() >= 0]
        self._ended += len(self._visitors) - len(still_open)
        self._visitors = still_open
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
