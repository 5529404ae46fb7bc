"""What the headers of a request say: whose token it carries, and which bytes it brings."""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass

from attar.uploads import MAX_SIGNATURE

Headers = Iterable[tuple[bytes, bytes]]

_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"\d{1,15}")


class NotUnderstood(Exception):
    """Headers that cannot be served; ``status`` is that of the answer."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


@dataclass(frozen=True)
class Sent:
    """What a request brings.

    Attributes:
        start: the place of its first byte in the file.
        length: the number of its bytes.
        size: of the whole file.
        sha256: of the whole file, in hex; None where the sender does not say it.
        signature: the content of the ``.sig`` file beside it; None where there is none.
    """

    start: int
    length: int
    size: int
    sha256: str | None
    signature: bytes | None = None


def read_token(headers: Headers) -> str | None:
    """The token of `Authorization: Bearer TOKEN`; None where there is none."""
    value = _find(headers, b"authorization")
    if value is None or value[:7].lower() != "bearer ":
        return None
    return value[7:].strip()


def read_headers(headers: Headers) -> Sent:
    """What the headers of a PUT announce.

    Raises:
        NotUnderstood: They announce nothing, or contradict each other.
    """
    headers = list(headers)
    length = _find(headers, b"content-length")
    if length is None or not _NUMBER.fullmatch(length):
        raise NotUnderstood(411, "the length of the body must be said before it comes")
    if _find(headers, b"content-encoding") not in (None, "identity"):
        raise NotUnderstood(415, "bytes are taken as they are, without content-encoding")
    sha256 = _find(headers, b"upload-sha256")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise NotUnderstood(400, "upload-sha256 must be 64 digits in hex")
    signature = _read_signature(_find(headers, b"upload-signature"))
    count = int(length)
    said = _find(headers, b"content-range")
    if said is None:
        start, size = 0, count
    else:
        match = _RANGE.fullmatch(said)
        if match is None:
            raise NotUnderstood(400, "content-range must be bytes FIRST-LAST/SIZE")
        start, last, size = map(int, match.groups())
        if last != start + count - 1 or last >= size:
            raise NotUnderstood(400, "content-range and content-length contradict each other")
    if not count:
        raise NotUnderstood(400, "the body is empty")
    return Sent(start, count, size, sha256, signature)


def _read_signature(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        signature = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        signature = b""
    if not 0 < len(signature) <= MAX_SIGNATURE:
        raise NotUnderstood(400, "upload-signature must be a .sig file in base64")
    return signature


def _find(headers: Headers, name: bytes) -> str | None:
    """The value of a header; None where it is missing."""
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)
