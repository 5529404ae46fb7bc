"""The server of an inbox as an ASGI application.

    PUT  /<partner>   the upload; `Content-Range: bytes OFFSET-LAST/SIZE` goes on with it
    HEAD /<partner>   `Upload-Offset`: how much is here; `Upload-State`: see ``State``
    GET  /<partner>   the same as JSON, with the reasons for a refusal

Each request carries `Authorization: Bearer TOKEN`. Headers alone decide whether a body is read.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from attar.inbox.examiner import Examiner, Finding
from attar.inbox.folder import Entry, Inbox, Journal, hash_file
from attar.inbox.headers import NotUnderstood, Sent, read_headers, read_token
from attar.inbox.listener import LimitedListener
from attar.inbox.partial import Announced, Partial
from attar.inbox.receive import BrokenOff, Pace, Receive, Send, drop_body, store_body
from attar.inbox.register import MOST_REFUSED, Invited, Register
from attar.internal.text import human_bytes
from attar.uploads import MAX_FILE

State = Literal["waiting", "checking", "arrived", "refused", "ended"]

VERDICT_SECONDS = 20.0  # that an answer waits for the check; then the sender has to ask again
LINGER_SECONDS = 2.0  # for which a refused sender is listened to, so that it reads the answer
LINGER_BYTES = 2**20
STRANGERS_EVERY = 60.0  # seconds between two lines of the journal about strangers
DISK_SPARE = 2**28  # bytes of the disk that uploads leave free


@dataclass(frozen=True)
class Limits:
    """What one upload may cost the server.

    Attributes:
        file: bytes.
        streams: uploads that are received at a time; each needs about 1 MB of memory.
        pace: how slow a sender may be.
    """

    file: int = MAX_FILE
    streams: int = 16
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class Reply:
    """An answer: a status, what it says as JSON, and headers of its own."""

    status: int
    content: Mapping[str, Any]
    headers: tuple[tuple[str, str], ...] = ()


class Service:
    """Receives uploads into an inbox.

    Args:
        register: who is invited.
        examiner: checks finished files.
        listener: the socket, which is told who proved to be a partner.
        limits: of an upload.
        tell: called with each line of the journal.

    Attributes:
        inbox: where accepted files go.
        journal: where events are written.
    """

    def __init__(
        self,
        register: Register,
        examiner: Examiner,
        listener: LimitedListener,
        limits: Limits,
        tell: Callable[[Entry], None],
    ) -> None:
        self.inbox = Inbox(register.path)
        self.journal = Journal(register.path / "journal.jsonl")
        self._register = register
        self._examiner = examiner
        self._listener = listener
        self._limits = limits
        self._tell = tell
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._verdicts: dict[str, asyncio.Task[None]] = {}
        self._requests = 0  # that are being answered
        self._strangers = 0  # requests since the last line about them
        self._strangers_told = 0.0

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            self._requests += 1
            try:
                await _send_reply(scope, await self._answer(scope, receive), receive, send)
            finally:
                self._requests -= 1
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    def note(self, event: str, partner: str | None = None, /, **details: Any) -> None:
        """Write an event to the journal and tell it."""
        self._tell(self.journal.write(event, partner, **details))

    def resume_checks(self) -> None:
        """Check the files that were complete when the last server ended."""
        for name in self._register.guests():
            if self.inbox.find(name) is None and Partial(self.inbox.path, name).is_complete():
                self._start_check(name)

    async def settle(self, seconds: float) -> None:
        """Wait until running checks have ended and answers were sent; end what still comes in."""
        for stream in self._streams.values():
            stream.cancel()
        if self._verdicts:
            await asyncio.wait(self._verdicts.values())
        ends = time.monotonic() + seconds
        while self._requests and time.monotonic() < ends:
            await asyncio.sleep(0.05)
        self._note_strangers()

    async def _answer(self, scope: Mapping[str, Any], receive: Receive) -> Reply:
        guest = self._find_guest(scope)
        if isinstance(guest, Reply):
            self._count_stranger()
            return guest
        if scope["method"] in ("HEAD", "GET"):
            return await self._report(guest)
        if scope["method"] != "PUT":
            return _error(405, "only PUT, HEAD and GET are known here", ("Allow", "PUT, HEAD, GET"))
        client = scope.get("client")
        address = None if client is None else (client[0], client[1])
        self._listener.authenticate(address)
        try:
            return await self._put(guest, scope, receive)
        except OSError as error:
            self.note("failed", guest.partner, why=f"{error.strerror or error}")
            return _error(507, "the server cannot store this")
        finally:
            self._listener.revoke(address)

    def _find_guest(self, scope: Mapping[str, Any]) -> Invited | Reply:
        """Who asks; or the answer to somebody who may not."""
        token = read_token(scope["headers"])
        guest = None if token is None else self._register.find(token)
        if guest is None:
            return _error(401, "no valid invitation", ("WWW-Authenticate", "Bearer"))
        if scope["path"] != f"/{guest.partner}":
            return _error(403, "this invitation is another partner's")
        if time.time() > guest.expires and not self._has_arrived(guest):
            return _error(403, "this invitation has expired")
        return guest

    def _has_arrived(self, guest: Invited) -> bool:
        return guest.spent_sha256 is not None or self.inbox.find(guest.partner) is not None

    def _state(self, guest: Invited) -> State:
        if self._has_arrived(guest):
            return "arrived"
        if guest.partner in self._verdicts:
            return "checking"
        if guest.refused >= MOST_REFUSED:
            return "ended"
        offset = Partial(self.inbox.path, guest.partner).offset()
        return "refused" if guest.refused and not offset else "waiting"

    async def _report(self, guest: Invited, status: int = 200) -> Reply:
        """Where the upload of a partner stands."""
        state = self._state(guest)
        partial = Partial(self.inbox.path, guest.partner)
        offset, announced = partial.offset(), partial.announced()
        sha256 = None if announced is None else announced.sha256
        if state == "arrived":
            path = self.inbox.find(guest.partner)
            sha256 = guest.spent_sha256
            if path is not None:
                offset = path.stat().st_size
                sha256 = sha256 or await asyncio.to_thread(hash_file, path)
        elif state in ("refused", "ended"):
            sha256 = guest.refused_sha256
        content = {
            "partner": guest.partner,
            "state": state,
            "offset": offset,
            "sha256": sha256,
            "tries_left": max(0, MOST_REFUSED - guest.refused),
            "why": list(guest.why) if state in ("refused", "ended") else [],
        }
        headers = [("Upload-State", state), ("Upload-Offset", str(offset))]
        if sha256 is not None:
            headers.append(("Upload-SHA256", sha256))
        return Reply(status, content, tuple(headers))

    async def _put(self, guest: Invited, scope: Mapping[str, Any], receive: Receive) -> Reply:
        state = self._state(guest)
        if state == "arrived":
            return await self._report(guest, 410)
        if state == "ended":
            return await self._report(guest, 403)
        if state == "checking":
            return await self._report(guest, 409)
        try:
            sent = read_headers(scope["headers"])
        except NotUnderstood as error:
            return _error(error.status, str(error))
        if sent.size > self._limits.file:
            return _error(413, f"at most {human_bytes(self._limits.file)} are accepted")
        if self._full_disk(guest, sent):
            return _error(507, f"the server has no room for {human_bytes(sent.size)}")
        if guest.partner not in self._streams and len(self._streams) >= self._limits.streams:
            return _error(503, "too many uploads at a time", ("Retry-After", "10"))
        await self._end_stream(guest.partner)
        partial = Partial(self.inbox.path, guest.partner)
        known = partial.announced()
        fits = sent.start == 0 or (known is not None and known.fits(sent.size, sent.sha256))
        if guest.partner in self._verdicts or sent.start > partial.offset() or not fits:
            return await self._report(guest, 409)
        return await self._store(guest, sent, partial, receive)

    def _full_disk(self, guest: Invited, sent: Sent) -> bool:
        here = Partial(self.inbox.path, guest.partner).offset()
        free = shutil.disk_usage(self.inbox.path).free
        return sent.size - here + DISK_SPARE > free

    async def _end_stream(self, name: str) -> None:
        """End a partner's earlier connection: it may be dead, and nobody else has the token."""
        while (earlier := self._streams.get(name)) is not None:
            earlier.cancel()
            await asyncio.wait({earlier})
            if self._streams.get(name) is earlier:
                del self._streams[name]

    async def _store(self, guest: Invited, sent: Sent, partial: Partial, receive: Receive) -> Reply:
        """Receive the body; where the file is complete, wait a while for the verdict."""
        name = guest.partner
        if sent.start == 0:
            partial.announce(Announced(sent.size, sent.sha256))
        partial.cut(sent.start)
        if sent.signature is not None:
            partial.sign(sent.signature)
        self.note("sending", name, bytes=sent.size, offset=sent.start)
        body = store_body(receive, partial, sent.length, self._limits.pace)
        stream = self._streams[name] = asyncio.create_task(body)
        try:
            await asyncio.wait({stream})
        finally:
            stream.cancel()
            if self._streams.get(name) is stream:
                del self._streams[name]
        if stream.cancelled():
            return _error(409, "another connection of this partner took over")
        error = stream.exception()
        if isinstance(error, BrokenOff):
            self.note("broken off", name, why=str(error), bytes=sent.size, offset=partial.offset())
            return _error(408, str(error))
        if error is not None:
            raise error
        if not partial.is_complete():  # a range that ends before the file does
            return await self._report(guest, 202)
        verdict = self._start_check(name)
        await asyncio.wait({verdict}, timeout=VERDICT_SECONDS)
        known = self._register.guests()[name]
        status = {"arrived": 201, "checking": 202}.get(self._state(known), 422)
        return await self._report(known, status)

    def _start_check(self, name: str) -> asyncio.Task[None]:
        verdict = self._verdicts[name] = asyncio.create_task(self._judge(name))
        return verdict

    async def _judge(self, name: str) -> None:
        """Accept a finished file, or refuse it."""
        try:
            partial = Partial(self.inbox.path, name)
            finding = await self._examiner.examine(partial.path, name)
            problems = _problems(finding, partial.announced())
            if problems or finding.sha256 is None:
                self._register.refuse(name, finding.sha256, problems)
                partial.remove()
                self.note("refused", name, why="; ".join(problems))
                return
            receipt = self.inbox.take(name, partial.path, finding.sha256, partial.signature())
            partial.remove()
            self._register.spend(name, receipt.sha256)
            self.note(
                receipt.stored,
                name,
                bytes=receipt.size,
                sha256=receipt.sha256,
                file=str(receipt.path),
                here=len(self.inbox.files()),
            )
        # The end of a task: any other error goes to the journal, and the sender may try again.
        except Exception as error:
            self.note("failed", name, why=f"{type(error).__name__}: {error}"[:500])
        finally:
            del self._verdicts[name]

    def _count_stranger(self) -> None:
        self._strangers += 1
        if time.monotonic() - self._strangers_told > STRANGERS_EVERY:
            self._note_strangers()

    def _note_strangers(self) -> None:
        if self._strangers:
            self.note("strangers", requests=self._strangers)
        self._strangers = 0
        self._strangers_told = time.monotonic()


def _problems(finding: Finding, announced: Announced | None) -> tuple[str, ...]:
    if announced is None or announced.sha256 in (None, finding.sha256) or finding.sha256 is None:
        return finding.problems
    return ("the file changed while it was sent: its sha256 is not the announced one",)


def _error(status: int, why: str, *headers: tuple[str, str]) -> Reply:
    return Reply(status, {"error": why}, headers)


async def _send_reply(scope: Mapping[str, Any], reply: Reply, receive: Receive, send: Send) -> None:
    """Send an answer, then close the connection.

    What a refused sender sends on is dropped for a moment: a connection that is closed while
    bytes come in is reset, and the sender could not read the answer.
    """
    body = (json.dumps(dict(reply.content)) + "\n").encode()
    headers = [(name.lower().encode(), value.encode()) for name, value in reply.headers]
    headers += [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"cache-control", b"no-store"),
    ]
    shown = b"" if scope["method"] == "HEAD" else body
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": shown, "more_body": True})
    if scope["method"] == "PUT" and reply.status not in (201, 202, 422):
        await drop_body(receive, LINGER_SECONDS, LINGER_BYTES)
    # The server behind this application hands over what else came in before it ends a request.
    rest = asyncio.create_task(drop_body(receive, 60.0, 2**40))
    try:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        rest.cancel()
        with suppress(asyncio.CancelledError):
            await rest


async def _live(receive: Receive, send: Send) -> None:
    """Answer the server's two questions about start and end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
