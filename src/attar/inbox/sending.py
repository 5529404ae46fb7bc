"""The partner's side of an inbox, with the standard library alone.

Before a byte is sent, the server's certificate is compared with the one in the invitation. The
server is asked how much it has, and the rest is sent. It answers with words for people and
numbers; nothing of that is run.
"""

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

from attar.errors import BundleError, RunError, TrustError
from attar.inbox.folder import check_sender, hash_file
from attar.inbox.invitation import Invitation
from attar.internal.text import human_bytes
from attar.running import ProgressReport, Watch
from attar.uploads import MAX_SIGNATURE, check_file, signature_path

BLOCK = 256 * 1024
ANSWER_SECONDS = 90.0  # longer than the server waits for its own check
POLL_SECONDS = 2.0
FIRST_PAUSE = 1.0  # after a break; doubled each time
LONGEST_PAUSE = 30.0
MOST_ANSWER = 65_536  # bytes of an answer that are read


@dataclass(frozen=True)
class Receipt:
    """That the server has accepted a file."""

    partner: str
    size: int
    sha256: str


@dataclass(frozen=True)
class _Answer:
    """An answer of the server."""

    status: int
    content: dict[str, Any]

    @property
    def state(self) -> str:
        """Where the upload stands; "" where the answer does not say."""
        return str(self.content.get("state", ""))

    @property
    def reasons(self) -> list[str]:
        """Why something was refused, safe to print."""
        why = self.content.get("why") or [self.content.get("error", "no reason given")]
        return [_printable(str(reason)) for reason in why][:20] if isinstance(why, list) else []


def send_file(
    file: Path,
    invitation: Invitation,
    *,
    minutes: float,
    say: Callable[[str], None],
    watch: Watch,
) -> Receipt:
    """Send an upload until the server has accepted it.

    Args:
        file: the upload.
        invitation: from the server's operator.
        minutes: how long to keep trying.
        say: called with lines for people.
        watch: called with the progress.

    Raises:
        BundleError: The file is damaged, of another client, or the server refused it.
        TrustError: The server is another one, or does not accept the invitation.
        RunError: The time is over.
    """
    if not file.exists():
        raise BundleError(f"There is no upload file {file}.", fix="make it with `attar train`")
    check_sender(check_file(file, str(file)), invitation.partner)
    return _Sender(file, invitation, say, watch).run(minutes)


class _Sender:
    """Sends one file, from wherever the server is."""

    def __init__(
        self, file: Path, invitation: Invitation, say: Callable[[str], None], watch: Watch
    ) -> None:
        self._file = file
        self._invitation = invitation
        self._say = say
        self._watch = watch
        self._size = file.stat().st_size
        self._sha256 = hash_file(file)
        self._signature = _read_signature(file)
        self._began = time.monotonic()

    def run(self, minutes: float) -> Receipt:
        """Ask and send until the file is accepted or cannot be."""
        ends = time.monotonic() + 60 * minutes
        pause = FIRST_PAUSE
        trouble = ""
        while True:
            try:
                answer = self._ask()
                if answer.state == "waiting" or self._may_try_again(answer):
                    answer = self._put(answer)
                    pause = FIRST_PAUSE
                if self._is_accepted(answer):
                    return Receipt(self._invitation.partner, self._size, self._sha256)
                self._check_refusal(answer)
                trouble, wait = answer.state or answer.reasons[0], POLL_SECONDS
            except (OSError, HTTPException) as error:
                trouble, wait = _explain(error), pause
                pause = min(2 * pause, LONGEST_PAUSE)
                if time.monotonic() + wait < ends:
                    self._say(f"No connection: {trouble}. Trying again in {wait:.0f} s.")
            if time.monotonic() + wait > ends:
                raise RunError(
                    f"{self._invitation.url} has not accepted {self._file} within {minutes:g} "
                    f"minutes: {trouble}.",
                    fix="start the same command again: what was sent is not sent again",
                )
            time.sleep(wait)

    def _ask(self) -> _Answer:
        """How much the server has. Where it is more than a number, it is asked for the words."""
        head, content = self._request("HEAD")
        state = head.getheader("Upload-State", "")
        if head.status == 200 and state in ("waiting", "checking"):
            offset = head.getheader("Upload-Offset", "0")
            content = {"state": state, "sha256": head.getheader("Upload-SHA256")}
            return _Answer(200, {**content, "offset": int(offset) if offset.isdecimal() else 0})
        got, content = self._request("GET")
        return _Answer(got.status, content)

    def _put(self, answer: _Answer) -> _Answer:
        """Send what the server does not have."""
        offset = answer.content.get("offset", 0)
        same = answer.content.get("sha256") == self._sha256
        start = offset if same and isinstance(offset, int) and 0 < offset < self._size else 0
        headers = {
            "Content-Length": str(self._size - start),
            "Content-Type": "application/octet-stream",
            "Upload-SHA256": self._sha256,
        }
        if self._signature is not None:
            headers["Upload-Signature"] = base64.b64encode(self._signature).decode()
        if start:
            headers["Content-Range"] = f"bytes {start}-{self._size - 1}/{self._size}"
            self._say(f"The server has {human_bytes(start)} of {human_bytes(self._size)} already.")
        got, content = self._request("PUT", headers, self._blocks(start))
        return _Answer(got.status, content)

    def _blocks(self, start: int) -> Iterator[bytes]:
        """The bytes from ``start`` on, with progress."""
        sent = start
        with self._file.open("rb") as file:
            file.seek(start)
            while block := file.read(BLOCK):
                yield block
                sent += len(block)
                self._show(sent, start)

    def _show(self, sent: int, start: int) -> None:
        seconds = time.monotonic() - self._began
        left = seconds * (self._size - sent) / (sent - start) if sent > start else None
        megabytes = (sent // 10**6, self._size // 10**6)
        report = ProgressReport("MB", *megabytes, sent / self._size, left, {})
        self._watch(report)

    def _request(
        self,
        method: str,
        headers: dict[str, str] | None = None,
        body: Iterator[bytes] | None = None,
    ) -> tuple[HTTPResponse, dict[str, Any]]:
        """One request on a connection of its own, whose certificate is checked first."""
        connection = _connect(self._invitation)
        self._began = time.monotonic()
        try:
            path = f"/{self._invitation.partner}"
            authorised = {"Authorization": f"Bearer {self._invitation.token}", **(headers or {})}
            try:
                connection.request(method, path, body=body, headers=authorised)
            except (BrokenPipeError, ConnectionResetError) as broken:
                # A server that refuses a body answers and closes before all of it is sent.
                try:
                    answer = connection.getresponse()
                except (OSError, HTTPException):
                    raise broken from None
            else:
                answer = connection.getresponse()
            return answer, _read_content(answer)
        finally:
            connection.close()

    def _is_accepted(self, answer: _Answer) -> bool:
        """Whether the server has this file.

        Raises:
            BundleError: It has another one of this partner.
        """
        if answer.state != "arrived":
            return False
        if answer.content.get("sha256") != self._sha256:
            raise BundleError(
                f"The server has another file of {self._invitation.partner} already.",
                fix="ask its operator to move that one away and to invite you again",
            )
        return True

    def _may_try_again(self, answer: _Answer) -> bool:
        """Whether another file than this one was refused, and there are tries left."""
        return answer.state == "refused" and answer.content.get("sha256") != self._sha256

    def _check_refusal(self, answer: _Answer) -> None:
        """Raise where it makes no sense to send again."""
        if answer.state == "refused":
            raise BundleError(
                f"The server refuses {self._file}:",
                problems=answer.reasons,
                fix=f"make the file again; {answer.content.get('tries_left', 0)} tries are left",
            )
        if answer.state == "ended":
            raise BundleError(
                f"The server has refused too many files of {self._invitation.partner}:",
                problems=answer.reasons,
                fix="ask its operator for a new invitation",
            )
        if answer.status in (401, 403):
            raise TrustError(
                f"The server does not accept this invitation: {answer.reasons[0]}.",
                fix="ask its operator for a new one: a later invitation ends the earlier one",
            )
        if answer.status in (400, 405, 410, 411, 413, 415):
            raise BundleError(
                f"The server does not take {self._file} ({human_bytes(self._size)}): "
                f"{answer.reasons[0]}.",
                fix="ask its operator",
            )


def _read_signature(file: Path) -> bytes | None:
    """The signature beside an upload; None where there is none.

    Raises:
        BundleError: It is too large to be one.
    """
    path = signature_path(file)
    if not path.is_file():
        return None
    with path.open("rb") as opened:
        signature = opened.read(MAX_SIGNATURE + 1)
    if not 0 < len(signature) <= MAX_SIGNATURE:
        raise BundleError(f"{path} is no signature.", fix=f"sign {file} again, or delete {path}")
    return signature


def _connect(invitation: Invitation) -> HTTPSConnection:
    """A connection to the server whose certificate is the invitation's.

    Raises:
        TrustError: The server has another certificate.
        OSError: There is no connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The certificate itself is compared below, so that a server behind a tunnel is known, too.
    context.check_hostname = False
    context.load_verify_locations(cadata=invitation.certificate)
    connection = HTTPSConnection(
        invitation.host, invitation.port, timeout=ANSWER_SECONDS, context=context
    )
    try:
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise _stranger(invitation, error.verify_message) from None
    except OSError:
        connection.close()
        raise
    if shown != ssl.PEM_cert_to_DER_cert(invitation.certificate):
        connection.close()
        raise _stranger(invitation, "another certificate")
    return connection


def _stranger(invitation: Invitation, why: str) -> TrustError:
    return TrustError(
        f"{invitation.host}:{invitation.port} is not the server of this invitation ({why}).",
        fix="nothing was sent. Ask its operator whether the address is right, and for a new "
        "invitation where the server has a new certificate",
    )


def _read_content(answer: HTTPResponse) -> dict[str, Any]:
    """What an answer says; empty where that is not JSON."""
    try:
        content = json.loads(answer.read(MOST_ANSWER))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _explain(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _printable(text)


def _printable(text: str) -> str:
    """Text of a server, safe for a terminal."""
    short = " ".join(text.split())[:500]
    return "".join(letter if letter.isprintable() else "?" for letter in short)
