"""The inbox without a network: invitations, headers, partial files, and what the server answers."""

import asyncio
import base64
import hashlib
import json
import os
import re
import resource
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

pytest.importorskip("cryptography", reason="the server makes its certificate with it")

from attar.errors import BundleError, RunError, SettingsError, TrustError
from attar.inbox import require_inbox
from attar.inbox.certificate import make_certificate
from attar.inbox.examiner import Examiner, Finding
from attar.inbox.folder import Entry, Inbox
from attar.inbox.headers import NotUnderstood, Sent, read_headers, read_token
from attar.inbox.invitation import Invitation, read_invitation
from attar.inbox.listener import SPARE, LimitedListener
from attar.inbox.partial import Announced, Partial
from attar.inbox.receive import PIECE, BrokenOff, Pace, drop_body, store_body
from attar.inbox.register import MOST_REFUSED, Register, hash_token
from attar.inbox.service import DISK_SPARE, Limits, Service
from attar.inbox.verbs import describe_event, explain_missing
from attar.testing import tiny_upload
from attar.uploads import check_file, encode, write_bundle
from attar.uploads.checks import value_problems

ADDRESS = "fl.example.org:9080"
CLASSES = ("a", "b", "c")


def test_invite_says_what_to_install(monkeypatch):
    monkeypatch.setattr("attar.inbox.find_spec", lambda name: None)
    with pytest.raises(RunError, match="hypercorn and cryptography"):
        require_inbox()


# Invitations


def test_read_invitation_reads_what_invite_wrote(tmp_path):
    invitation = Register(tmp_path / "inbox").invite("berlin", ADDRESS, days=2)
    file = tmp_path / "berlin.invitation"
    file.write_text(invitation.to_text())
    again = read_invitation(file)
    assert again == replace(invitation, expires=again.expires)
    assert abs(again.expires - (time.time() + 2 * 86400)) < 10
    assert again.url == "https://fl.example.org:9080/berlin"
    # Other programs find the certificate in the same file.
    ssl.create_default_context(cafile=file)
    # Mail programs change the ends of lines.
    file.write_bytes(invitation.to_text().replace("\n", "\r\n").encode())
    assert read_invitation(file) == again


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("attar inbox invitation 1", "attar inbox invitation 2", "first line"),
        ("https://", "http://", "url"),
        (":9080/berlin", "/berlin", "url"),
        (":9080/berlin", ":9080/oslo", "partner"),
        ("partner: berlin", "partner: ../berlin", "partner"),
        ("token: ", "token: x", "token"),
        ("expires: ", "expires: never ", "never"),
        ("expires: ", "ends: ", "no expires"),
        ("-----BEGIN", "-----BEGUN", "certificate"),
        ("-----END", "é-----END", "first line"),
    ],
)
def test_read_invitation_refuses(tmp_path, old, new, why):
    text = Register(tmp_path / "inbox").invite("berlin", ADDRESS, days=2).to_text()
    assert old in text
    file = tmp_path / "berlin.invitation"
    file.write_text(text.replace(old, new))
    with pytest.raises(TrustError, match=why):
        read_invitation(file)


def test_read_invitation_needs_a_file(tmp_path):
    with pytest.raises(TrustError, match="cannot be read"):
        read_invitation(tmp_path / "nothing")


def test_register_keeps_the_hash_of_a_token_only(tmp_path):
    register = Register(tmp_path)
    invitation = register.invite("berlin", ADDRESS, days=2)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert invitation.token.encode() not in kept
    assert hash_token(invitation.token).encode() in kept
    assert register.find(invitation.token) == register.guests()["berlin"]
    assert register.find("x" * 43) is None
    for secret in (register.key, tmp_path / "invitations/berlin.json"):
        assert secret.stat().st_mode & 0o077 == 0


def test_register_sees_what_another_process_writes(tmp_path):
    server, command = Register(tmp_path), Register(tmp_path)
    first = command.invite("berlin", ADDRESS, days=2)
    assert server.find(first.token) is not None
    second = command.invite("berlin", None, days=2)  # ends the first
    assert server.find(first.token) is None
    assert server.find(second.token) is not None
    assert second.certificate == first.certificate


def test_register_counts_refusals_and_marks_a_spent_token(tmp_path):
    register = Register(tmp_path)
    invitation = register.invite("berlin", ADDRESS, days=2)
    register.refuse("berlin", "ab" * 32, ["no upload"])
    assert Register(tmp_path).guests()["berlin"].refused == 1
    assert Register(tmp_path).guests()["berlin"].why == ("no upload",)
    register.spend("berlin", "cd" * 32)
    assert register.find(invitation.token).spent_sha256 == "cd" * 32


@pytest.mark.parametrize(
    ("name", "address", "days", "why"),
    [
        ("ber/lin", ADDRESS, 2, "cannot be a partner's name"),
        ("", ADDRESS, 2, "cannot be a partner's name"),
        ("berlin", "fl.example.org", 2, "not an address"),
        ("berlin", None, 2, "needs the server's address"),
        ("berlin", ADDRESS, 0, "--days"),
        ("berlin", ADDRESS, float("nan"), "--days"),
    ],
)
def test_invite_refuses(tmp_path, name, address, days, why):
    with pytest.raises(SettingsError, match=why):
        Register(tmp_path).invite(name, address, days)


def test_invite_refuses_twins_another_address_and_who_is_here(tmp_path):
    register = Register(tmp_path)
    register.invite("berlin", ADDRESS, 2)
    with pytest.raises(SettingsError, match="capitals alone"):
        register.invite("Berlin", None, 2)
    with pytest.raises(RunError, match="know the server as"):
        register.invite("oslo", "other.example.org:9080", 2)
    Inbox(tmp_path).store("berlin", encode(tiny_upload("berlin", "mlp:hidden=4", CLASSES)))
    with pytest.raises(RunError, match="has sent"):
        register.invite("berlin", None, 2)


def test_a_folder_without_invitations_is_no_inbox(tmp_path):
    with pytest.raises(RunError, match="nobody is invited"):
        Register(tmp_path).address()
    assert Register(tmp_path).guests() == {}


def test_a_damaged_invitation_is_named(tmp_path):
    register = Register(tmp_path)
    register.invite("berlin", ADDRESS, 2)
    (tmp_path / "invitations/berlin.json").write_text("{")
    with pytest.raises(RunError, match=r"berlin\.json is damaged"):
        Register(tmp_path).guests()


# Headers


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ([(b"content-length", b"10")], Sent(0, 10, 10, None)),
        (
            [(b"content-length", b"4"), (b"content-range", b"bytes 6-9/10")],
            Sent(6, 4, 10, None),
        ),
        (
            [(b"Content-Length", b"10"), (b"upload-sha256", b"ab" * 32)],
            Sent(0, 10, 10, "ab" * 32),
        ),
    ],
)
def test_read_headers(headers, sent):
    assert read_headers(headers) == sent


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 411),
        ([(b"transfer-encoding", b"chunked")], 411),
        ([(b"content-length", b"-1")], 411),
        ([(b"content-length", b"9" * 30)], 411),
        ([(b"content-length", b"0")], 400),
        ([(b"content-length", b"4"), (b"content-encoding", b"gzip")], 415),
        ([(b"content-length", b"4"), (b"content-range", b"bytes */10")], 400),
        ([(b"content-length", b"4"), (b"content-range", b"bytes 6-8/10")], 400),
        ([(b"content-length", b"4"), (b"content-range", b"bytes 7-10/10")], 400),
        ([(b"content-length", b"4"), (b"upload-sha256", b"AB" * 32)], 400),
        ([(b"content-length", b"4"), (b"upload-signature", b"#")], 400),
        ([(b"content-length", b"4"), (b"upload-signature", b"A" * 6000)], 400),
    ],
)
def test_read_headers_refuses(headers, status):
    with pytest.raises(NotUnderstood) as refused:
        read_headers(headers)
    assert refused.value.status == status


def test_read_token():
    assert read_token([(b"Authorization", b"Bearer abc")]) == "abc"
    assert read_token([(b"authorization", b"Basic abc")]) is None
    assert read_token([]) is None


# Partial files and bodies


def test_partial_goes_on_where_it_ended(tmp_path):
    partial = Partial(tmp_path, "berlin")
    assert (partial.offset(), partial.announced(), partial.is_complete()) == (0, None, False)
    partial.announce(Announced(6, "ab"))
    partial.cut(0)
    partial.append(b"abcd")
    again = Partial(tmp_path, "berlin")
    assert (again.offset(), again.announced()) == (4, Announced(6, "ab"))
    again.cut(2)
    again.append(b"CDEF")
    assert again.is_complete()
    assert again.path.read_bytes() == b"abCDEF"
    again.remove()
    assert not list((tmp_path / "partial").iterdir())


def test_announced_fits_the_same_file():
    assert Announced(6, "ab").fits(6, None)
    assert Announced(6, None).fits(6, "ab")
    assert not Announced(6, "ab").fits(7, "ab")
    assert not Announced(6, "ab").fits(6, "cd")


def body(*pieces, end=True, pause=0.0):
    """``receive`` of a request with this body."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request" if end else "http.disconnect", "body": b""})

    async def receive():
        await asyncio.sleep(pause)
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    return receive


@pytest.fixture
def partial(tmp_path):
    made = Partial(tmp_path, "berlin")
    made.announce(Announced(10))
    return made


def test_store_body_stores_large_pieces(tmp_path, partial):
    pieces = [os.urandom(PIECE // 2 + 7) for _ in range(5)]
    length = sum(map(len, pieces))
    asyncio.run(store_body(body(*pieces), partial, length, Pace()))
    assert partial.path.read_bytes() == b"".join(pieces)


def test_store_body_keeps_what_came_before_a_break(partial):
    with pytest.raises(BrokenOff, match="connection ended"):
        asyncio.run(store_body(body(b"abc", b"de", end=False), partial, 10, Pace()))
    assert partial.path.read_bytes() == b"abcde"


def test_store_body_stores_no_more_than_announced(partial):
    with pytest.raises(BrokenOff, match="more bytes"):
        asyncio.run(store_body(body(b"abc", b"d" * 100), partial, 10, Pace()))
    assert partial.path.read_bytes() == b"abc"


def test_store_body_leaves_slow_and_silent_senders(partial):
    slow = body(*[b"x"] * 1000, pause=0.01)
    with pytest.raises(BrokenOff, match="too slow"):
        asyncio.run(store_body(slow, partial, 1000, Pace(bytes_per_second=1000, window=0.2)))
    assert 1 <= partial.offset() < 100
    silent = body(b"x", pause=60)
    with pytest.raises(BrokenOff, match="too slow: 0 bytes"):
        asyncio.run(store_body(silent, partial, 1000, Pace(bytes_per_second=1, window=0.2)))


def test_drop_body_ends():
    async def endless():
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    asyncio.run(drop_body(endless, seconds=60, most=10**6))
    asyncio.run(drop_body(body(b"x", pause=60), seconds=0.05, most=10**6))


# The listener


@pytest.fixture
def listener():
    with LimitedListener("127.0.0.1", 0, most=4, patience=0.05) as made:
        made.listen()
        yield made


def accept(listener):
    """Accept the next connection, which is on its way."""
    for _ in range(200):
        try:
            return listener.accept()
        except BlockingIOError:
            time.sleep(0.01)
    pytest.fail("no connection")


def is_open(connection):
    connection.settimeout(0.01)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True


def test_door_sends_away_the_stranger_who_waited_longest(listener):
    clients = [socket.create_connection(listener.getsockname()) for _ in range(6)]
    accepted = [accept(listener) for _ in range(4)]
    listener.authenticate(accepted[0][1])
    accepted += [accept(listener), accept(listener)]
    assert [is_open(one) for one in clients] == [True, False, False, True, True, True]
    assert listener.expired == 2
    listener.revoke(accepted[0][1])
    time.sleep(0.1)
    listener.close_expired()  # all have had their time by now
    assert not any(is_open(one) for one in clients)
    for connection in [*clients, *(one for one, _ in accepted)]:
        connection.close()


def test_door_lets_only_a_few_in_before_others_are_out(listener):
    clients = [socket.create_connection(listener.getsockname()) for _ in range(30)]
    accepted = [accept(listener) for _ in range(4 + SPARE)]
    with pytest.raises(BlockingIOError):
        listener.accept()
    for connection, _ in accepted:
        connection.close()
    accepted.append(accept(listener))
    listener.close_all()
    for connection in [*clients, *(one for one, _ in accepted)]:
        connection.close()


def test_door_refuses_more_where_all_are_known(listener):
    clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
    accepted = [accept(listener) for _ in range(4)]
    for _, address in accepted:
        listener.authenticate(address)
    with pytest.raises(ConnectionAbortedError):
        listener.accept()
    assert [is_open(one) for one in clients] == [True] * 4 + [False]
    for connection in [*clients, *(one for one, _ in accepted)]:
        connection.close()


# What the server answers


class QuickExaminer:
    """Finds what it is told to, in place of a process."""

    def __init__(self):
        self.problems, self.wait = (), asyncio.Event()
        self.wait.set()

    async def examine(self, path, partner):
        await self.wait.wait()
        if self.problems is None:
            raise OSError("the disk is gone")
        from attar.inbox.folder import hash_file

        return Finding(hash_file(path), self.problems)


class Served:
    """A service on which requests are made without a server."""

    def __init__(self, path, limits=None):
        self.register = Register(path)
        self.events = []
        self.examiner = QuickExaminer()
        self.tokens = {
            name: self.register.invite(name, ADDRESS, 2).token for name in ("berlin", "oslo")
        }
        self.listener = LimitedListener("127.0.0.1", 0)
        self.service = Service(
            self.register, self.examiner, self.listener, limits or Limits(), self.events.append
        )

    async def request(self, method, path, receive, *headers, token=None):
        """The status, the headers and the content of the answer."""
        sent = []

        async def send(message):
            sent.append(message)

        given = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        scope = {
            "type": "http", "method": method, "path": path, "client": ("127.0.0.1", 1),
            "headers": [*given, *headers],
        }  # fmt: skip
        await self.service(scope, receive, send)
        text = b"".join(message.get("body", b"") for message in sent)
        return (
            sent[0]["status"],
            {key.decode(): value.decode() for key, value in sent[0]["headers"]},
            json.loads(text) if text else {},
        )

    async def put(self, name, data, *, start=0, size=None, sha256=None, **more):
        size = len(data) + start if size is None else size
        headers = [(b"content-length", str(len(data)).encode())]
        if start or start + len(data) != size:
            last = start + len(data) - 1
            headers.append((b"content-range", f"bytes {start}-{last}/{size}".encode()))
        if sha256 is not None:
            headers.append((b"upload-sha256", sha256.encode()))
        receive = more.pop("receive", None) or body(data)
        return await self.request(
            "PUT", f"/{name}", receive, *headers, token=self.tokens[name], **more
        )

    async def head(self, name):
        _, headers, _ = await self.request("HEAD", f"/{name}", body(), token=self.tokens[name])
        return headers["upload-state"], int(headers["upload-offset"])

    def events_of(self, name):
        return [entry.event for entry in self.events if entry.partner == name]


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr("attar.inbox.service.LINGER_SECONDS", 0.05)
    made = Served(tmp_path)
    yield made
    made.listener.close()


def test_service_stores_an_upload_once(served):
    async def story():
        assert await served.head("berlin") == ("waiting", 0)
        status, _, content = await served.put("berlin", b"upload")
        assert (status, content["state"]) == (201, "arrived")
        assert served.service.inbox.find("berlin").read_bytes() == b"upload"
        assert await served.head("berlin") == ("arrived", 6)
        # The token is spent: a second file is not stored, and the receipt can be asked for.
        status, _, content = await served.put("berlin", b"another")
        assert (status, content["sha256"]) == (410, hashlib.sha256(b"upload").hexdigest())
        assert served.service.inbox.find("berlin").read_bytes() == b"upload"

    asyncio.run(story())
    assert served.events_of("berlin") == ["sending", "arrived"]
    assert not list((served.register.path / "partial").iterdir())


def test_a_signature_is_stored_beside_its_upload(served):
    signature = (b"upload-signature", base64.b64encode(b"signed"))

    async def story():
        token = served.tokens["berlin"]
        length = (b"content-length", b"6")
        return await served.request(
            "PUT", "/berlin", body(b"upload"), length, signature, token=token
        )

    assert asyncio.run(story())[0] == 201
    assert (served.register.path / "berlin.attar.sig").read_bytes() == b"signed"
    assert not list((served.register.path / "partial").iterdir())


def test_a_spent_token_stays_spent_when_the_file_is_moved_away(served):
    async def story():
        await served.put("berlin", b"upload")
        served.service.inbox.find("berlin").unlink()
        status, _, _ = await served.put("berlin", b"another")
        assert status == 410

    asyncio.run(story())
    assert served.service.inbox.find("berlin") is None


async def unread():
    pytest.fail("the body was read")


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/berlin", None, 401),
        ("/berlin", "x" * 43, 401),
        ("/berlin", "oslo", 403),
        ("/", "oslo", 403),
        ("/nobody", "oslo", 403),
        ("/oslo/../berlin", "oslo", 403),
    ],
)
def test_strangers_are_refused_before_a_byte_is_stored(served, path, token, status):
    seen = []

    async def receive():
        seen.append(len(list(served.register.path.rglob("*.part"))))
        return {"type": "http.disconnect"}

    given = served.tokens.get(token, token)
    length = (b"content-length", b"1000000000")
    answer = asyncio.run(served.request("PUT", path, receive, length, token=given))
    assert answer[0] == status
    assert set(seen) <= {0}
    assert not list(served.register.path.glob("partial/*"))
    assert not served.events_of("berlin")


def test_strangers_are_counted_not_listed(served):
    async def story():
        for _ in range(50):
            await served.request("GET", "/berlin", unread)
        await served.service.settle(1)

    asyncio.run(story())
    told = [entry.details["requests"] for entry in served.events if entry.event == "strangers"]
    assert len(told) == 2
    assert sum(told) == 50


def test_an_expired_invitation_is_refused(served):
    guest = served.register.guests()["berlin"]
    served.register._write(replace(guest, expires=time.time() - 1))

    async def story():
        return await served.put("berlin", b"upload")

    status, _, content = asyncio.run(story())
    assert (status, content["error"]) == (403, "this invitation has expired")


def test_service_goes_on_where_a_body_broke_off(served):
    async def story():
        status, _, _ = await served.put(
            "berlin", b"up", size=6, receive=body(b"up", end=False), sha256=None
        )
        assert status == 202
        status, _, _ = await served.put("berlin", b"load", receive=body(b"lo", end=False), start=2)
        assert status == 408
        assert await served.head("berlin") == ("waiting", 4)
        # Beyond what is here, or of another file: the answer says where to go on.
        for wrong in ({"start": 5, "size": 6}, {"start": 4, "size": 9}):
            data = b"x" * (wrong["size"] - wrong["start"])
            status, headers, _ = await served.put("berlin", data, receive=unread_put, **wrong)
            assert (status, headers["upload-offset"]) == (409, "4")
        status, _, _ = await served.put("berlin", b"oad", start=3)  # bytes that are here already
        assert status == 201

    async def unread_put():
        return {"type": "http.disconnect"}

    asyncio.run(story())
    assert served.service.inbox.find("berlin").read_bytes() == b"upload"
    assert "broken off" in served.events_of("berlin")


def test_a_partial_of_another_file_is_not_continued(served):
    async def story():
        await served.put("berlin", b"old!", size=8, sha256="ab" * 32)
        status, _, _ = await served.put("berlin", b"new!", start=4, sha256="cd" * 32)
        assert status == 409
        status, _, _ = await served.put("berlin", b"new file")
        assert status == 201

    asyncio.run(story())
    assert served.service.inbox.find("berlin").read_bytes() == b"new file"


@pytest.mark.parametrize(
    ("limits", "size", "status"),
    [(Limits(file=100), 101, 413), (Limits(file=100), 100, 202), (Limits(streams=0), 5, 503)],
)
def test_limits_hold_before_a_byte_is_stored(tmp_path, limits, size, status):
    served = Served(tmp_path, limits)
    receive = body(b"x", end=False) if status != 202 else None
    answer = asyncio.run(served.put("berlin", b"x", size=size, receive=receive))
    served.listener.close()
    assert answer[0] == status
    assert bool(list(tmp_path.glob("partial/*"))) == (status == 202)


def test_an_upload_larger_than_the_free_disk_is_refused(served, monkeypatch):
    class Usage:
        free = DISK_SPARE + 5

    monkeypatch.setattr("attar.inbox.service.shutil.disk_usage", lambda path: Usage)

    async def story():
        return [(await served.put("berlin", b"x" * size))[0] for size in (6, 5)]

    assert asyncio.run(story()) == [507, 201]


def test_a_disk_that_refuses_bytes_is_said(served, monkeypatch):
    def refuse(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Partial, "append", refuse)
    assert asyncio.run(served.put("berlin", b"upload"))[0] == 507
    assert served.events[-1].details["why"] == "No space left on device"


def test_a_refused_file_may_be_sent_again_a_few_times(served):
    async def story():
        for tries_left in reversed(range(MOST_REFUSED)):
            served.examiner.problems = ("no upload",)
            status, _, content = await served.put("berlin", b"damaged")
            assert (status, content["tries_left"], content["why"]) == (
                422,
                tries_left,
                ["no upload"],
            )
        served.examiner.problems = ()
        status, _, content = await served.put("berlin", b"good")
        assert (status, content["state"]) == (403, "ended")
        assert (await served.put("oslo", b"good"))[0] == 201

    asyncio.run(story())
    assert served.service.inbox.find("berlin") is None
    assert not list(served.register.path.glob("partial/*"))


def test_bytes_that_are_not_the_announced_ones_are_refused(served):
    status, _, content = asyncio.run(served.put("berlin", b"upload", sha256="ab" * 32))
    assert status == 422
    assert "its sha256 is not the announced one" in content["why"][0]


def test_a_check_that_fails_by_itself_costs_no_try(served):
    served.examiner.problems = None

    async def story():
        status, _, content = await served.put("berlin", b"upload")
        assert (status, content["state"], content["tries_left"]) == (422, "waiting", MOST_REFUSED)
        served.examiner.problems = ()
        assert (await served.put("berlin", b"upload"))[0] == 201

    asyncio.run(story())


def test_nothing_is_stored_while_a_file_is_checked(served, monkeypatch):
    monkeypatch.setattr("attar.inbox.service.VERDICT_SECONDS", 0.05)

    async def story():
        served.examiner.wait.clear()
        status, _, content = await served.put("berlin", b"upload")
        assert (status, content["state"]) == (202, "checking")
        status, _, _ = await served.put("berlin", b"another")
        assert status == 409
        served.examiner.wait.set()
        await served.service.settle(1)
        assert await served.head("berlin") == ("arrived", 6)

    asyncio.run(story())


def test_the_newest_connection_of_a_partner_wins(served):
    async def story():
        dead = asyncio.create_task(served.put("berlin", b"up", size=6, receive=silent_after(b"u")))
        while "sending" not in served.events_of("berlin"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        status, _, _ = await served.put("berlin", b"pload", start=1)
        assert status == 201
        assert (await dead)[0] == 409

    def silent_after(data):
        first = [{"type": "http.request", "body": data, "more_body": True}]

        async def receive():
            if not first:
                await asyncio.sleep(3600)
            return first.pop()

        return receive

    asyncio.run(asyncio.wait_for(story(), 30))
    assert served.service.inbox.find("berlin").read_bytes() == b"upload"


def test_a_complete_file_of_a_killed_server_is_checked(tmp_path):
    served = Served(tmp_path)
    partial = Partial(tmp_path, "berlin")
    partial.announce(Announced(6))
    partial.cut(0)
    partial.append(b"upload")

    async def story():
        served.service.resume_checks()
        await served.service.settle(1)

    asyncio.run(story())
    served.listener.close()
    assert served.service.inbox.find("berlin").read_bytes() == b"upload"


def test_other_methods_and_protocols_are_refused(served):
    async def story():
        status, headers, _ = await served.request(
            "POST", "/berlin", body(), token=served.tokens["berlin"]
        )
        assert (status, headers["allow"]) == (405, "PUT, HEAD, GET")
        sent = []

        async def send(message):
            sent.append(message)

        await served.service({"type": "websocket"}, body(), send)
        assert sent == [{"type": "websocket.close", "code": 1008}]

    asyncio.run(story())


# The check of finished files


def test_check_file_agrees_with_the_reader(tmp_path):
    upload = tiny_upload("berlin", "lenet5", CLASSES)
    write_bundle(tmp_path / "a.attar", upload)
    checked = check_file(tmp_path / "a.attar", "a.attar")
    assert checked.client == "berlin"
    for key, tensor in upload.parts["classifier"].state.items():
        assert torch.equal(checked.parts["classifier"].state[key], tensor)
    for damaged in (b"", b"x" * 100, (tmp_path / "a.attar").read_bytes()[:-1]):
        (tmp_path / "b.attar").write_bytes(damaged)
        with pytest.raises(BundleError, match=r"b\.attar cannot be used"):
            check_file(tmp_path / "b.attar", "b.attar")


def test_check_file_copies_no_large_file(tmp_path, monkeypatch):
    """A file whose tensors lie askew would need its size in memory, twice."""
    data = encode(tiny_upload("berlin", "mlp:hidden=4", CLASSES))
    end = 8 + int.from_bytes(data[:8], "little")
    longer = (end - 8 + 1).to_bytes(8, "little") + data[8:end] + b" " + data[end:]
    stated = re.search(rb'sha256\\":\\"([0-9a-f]{64})', longer)[1]
    blank = longer.replace(stated, b"0" * 64)
    askew = blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode())
    (tmp_path / "a.attar").write_bytes(askew)
    assert check_file(tmp_path / "a.attar", "a.attar").client == "berlin"
    monkeypatch.setattr("attar.uploads.mapped.MOST_COPIED", len(askew) - 1)
    with pytest.raises(BundleError, match="one after another"):
        check_file(tmp_path / "a.attar", "a.attar")


def test_value_problems_finds_negative_values():
    states = {
        "negative variances": {"bn.running_var": torch.tensor([1.0, -1e-9])},
        "is negative": {"bn.num_batches_tracked": torch.tensor(-1)},
    }
    for why, state in states.items():
        (problem,) = value_problems(state)
        assert why in problem
    assert value_problems({"bn.running_var": torch.empty(0)}) == []


def test_examiner_checks_files_and_survives_a_check_that_hangs(tmp_path):
    write_bundle(tmp_path / "a.part", tiny_upload("berlin", "mlp:hidden=4", CLASSES))
    os.mkfifo(tmp_path / "hangs")

    async def story():
        examiner = Examiner(least_seconds=20)
        try:
            good = await examiner.examine(tmp_path / "a.part", "berlin")
            wrong = await examiner.examine(tmp_path / "a.part", "oslo")
            examiner._least_seconds = 0.2
            hangs = await examiner.examine(tmp_path / "hangs", "berlin")
            return good, wrong, hangs, examiner.pid
        finally:
            await examiner.stop()

    good, wrong, hangs, pid = asyncio.run(story())
    assert good.problems == ()
    assert good.sha256 is not None
    assert "sent an upload of a client 'berlin'" in wrong.problems[0]
    assert (hangs.sha256, len(hangs.problems)) == (None, 1)
    assert pid is None, "the process that hung was ended"


def test_limit_memory_limits_what_a_check_may_use():
    script = (
        "from attar.inbox.memory import limit_memory\n"
        "limit_memory(200_000_000)\n"
        "good = bytearray(100_000_000)\n"
        "try:\n    bytearray(300_000_000)\nexcept MemoryError:\n    print('limited')\n"
    )
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("this system does not say what a process uses")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "limited\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


# Words


def test_events_are_told_in_words():
    entries = [
        Entry(0.0, "sending", "berlin", {"bytes": 10**6, "offset": 0}),
        Entry(0.0, "broken off", "berlin", {"bytes": 10**6, "offset": 10**5, "why": "the end"}),
    ]
    lines = [describe_event(entry, 3).partition("  ")[2] for entry in entries]
    assert lines == ["berlin sends 1.0 MB", "berlin broke off at 100.0 kB of 1.0 MB: the end"]
    assert describe_event(Entry(0.0, "other", None, {}), 3) is None
    assert explain_missing("oslo", entries) == "never connected"
    assert explain_missing("berlin", entries) == "broke off at 100.0 kB of 1.0 MB"
    assert explain_missing("berlin", entries[:1]) == "was sending"
    refused = Entry(0.0, "refused", "berlin", {"why": "no upload"})
    assert explain_missing("berlin", [*entries, refused]) == "refused: no upload"


def test_make_certificate_names_hosts_and_addresses():
    from cryptography import x509

    for host, kind in (("fl.example.org", x509.DNSName), ("10.0.0.7", x509.IPAddress)):
        certificate = x509.load_pem_x509_certificate(make_certificate(host)[0])
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(name) for name in names.get_values_for_type(kind)] == [host]


def test_invitation_has_its_url():
    made = Invitation("berlin", "fl.example.org", 9080, "t", 0.0, "c")
    assert made.url == "https://fl.example.org:9080/berlin"
