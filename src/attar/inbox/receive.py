"""The body of one upload: from the connection to the disk, at a bearable rate, in little memory."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from attar.inbox.partial import Partial

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PIECE = 256 * 1024  # bytes that are collected before they are written


@dataclass(frozen=True)
class Pace:
    """How slow a sender may be.

    Attributes:
        bytes_per_second: on average over a window.
        window: in seconds.
    """

    bytes_per_second: float = 1000.0
    window: float = 20.0


class BrokenOff(Exception):
    """The body did not come to its end; what came is on disk."""


async def store_body(receive: Receive, partial: Partial, length: int, pace: Pace) -> None:
    """Append the body of a request to a partial upload.

    Args:
        receive: of the ASGI application.
        partial: where the bytes go.
        length: how many were announced; no more are stored.
        pace: slower senders are left.

    Raises:
        BrokenOff: The connection ended, or the sender was too slow.
        OSError: The disk refused the bytes.
    """
    waiting = bytearray()
    stored = 0
    watch = _Watch(pace)
    try:
        while stored + len(waiting) < length:
            data = await watch.next_piece(receive)
            if stored + len(waiting) + len(data) > length:
                raise BrokenOff("more bytes than announced")
            waiting += data
            if len(waiting) >= PIECE:
                await asyncio.to_thread(partial.append, waiting)
                stored += len(waiting)
                waiting = bytearray()
    finally:  # also where another connection of the partner has taken over
        if waiting:
            partial.append(waiting)


class _Watch:
    """Waits for pieces, for as long as the sender keeps its pace."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._ends = time.monotonic() + pace.window
        self._came = 0

    async def next_piece(self, receive: Receive) -> bytes:
        """The next bytes of a body.

        Raises:
            BrokenOff: The connection or the body ended, or the sender was too slow.
        """
        while True:
            try:
                left = self._ends - time.monotonic()
                message = await asyncio.wait_for(receive(), max(left, 0.01))
            except TimeoutError:
                self._check()
                continue
            if message["type"] != "http.request":
                raise BrokenOff("the connection ended")
            data: bytes = message.get("body", b"")
            self._came += len(data)
            if time.monotonic() >= self._ends:
                self._check()
            if data:
                return data
            if not message.get("more_body", False):
                raise BrokenOff("the body ended early")

    def _check(self) -> None:
        least = self._pace.bytes_per_second * self._pace.window
        if self._came < least:
            raise BrokenOff(f"too slow: {self._came} bytes in {self._pace.window:g} s")
        self._came = 0
        self._ends = time.monotonic() + self._pace.window


async def drop_body(receive: Receive, seconds: float, most: int) -> None:
    """Read and drop what comes, until the connection ends, or so many seconds or bytes."""
    ends = time.monotonic() + seconds
    while most > 0:
        try:
            message = await asyncio.wait_for(receive(), max(ends - time.monotonic(), 0.01))
        except TimeoutError:
            return
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        most -= len(message.get("body", b""))
