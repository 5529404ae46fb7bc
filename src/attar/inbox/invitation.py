"""An invitation: one text file with all that a partner needs to send its upload.

    attar inbox invitation 1
    partner: berlin
    url: https://fl.example.org:9080/berlin
    token: …
    expires: 2026-12-03T12:00:00+00:00
    -----BEGIN CERTIFICATE-----
    …

Its end is the server's certificate as other programs read it: ``curl --cacert FILE``.
"""

import datetime
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from attar.errors import TrustError
from attar.inbox.names import HOST, NAME

FIRST_LINE = "attar inbox invitation 1"
MOST = 16_384  # bytes of the file
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n"
)
_KEYS = ("partner", "url", "token", "expires")


@dataclass(frozen=True)
class Invitation:
    """An invitation to send one upload.

    Attributes:
        partner: who is invited; the client in the upload must have the same name.
        host: of the server.
        port: of the server.
        token: the secret that stands for the partner.
        expires: in seconds since 1970.
        certificate: of the server, PEM.
    """

    partner: str
    host: str
    port: int
    token: str
    expires: float
    certificate: str

    @property
    def url(self) -> str:
        """Where the upload goes."""
        return f"https://{self.host}:{self.port}/{self.partner}"

    def to_text(self) -> str:
        """The content of the file."""
        expires = datetime.datetime.fromtimestamp(round(self.expires), datetime.UTC)
        lines = [
            FIRST_LINE,
            f"partner: {self.partner}",
            f"url: {self.url}",
            f"token: {self.token}",
            f"expires: {expires.isoformat()}",
        ]
        return "\n".join(lines) + "\n" + self.certificate


def read_invitation(path: Path) -> Invitation:
    """Read an invitation.

    Raises:
        TrustError: The file cannot be read, or is none.
    """
    fix = "name the file that the server's operator made with `attar inbox invite`"
    try:
        with path.open("rb") as file:
            text = file.read(MOST + 1).decode("ascii").replace("\r\n", "\n")
    except OSError as error:
        raise TrustError(
            f"The invitation {path} cannot be read: {error.strerror}.", fix=fix
        ) from None
    except UnicodeDecodeError:
        text = ""
    try:
        return _parse(text)
    except ValueError as error:
        raise TrustError(f"{path} is not an invitation: {error}.", fix=fix) from None


def _parse(text: str) -> Invitation:
    """The invitation in a text; ValueError says what is wrong with it."""
    head, mark, rest = text.strip().partition("-----BEGIN")
    first, *lines = head.splitlines() or [""]
    if len(text) > MOST or first.strip() != FIRST_LINE:
        raise ValueError(f"its first line is not {FIRST_LINE!r}")
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if missing := [key for key in _KEYS if key not in fields]:
        raise ValueError(f"it has no {', no '.join(missing)}")
    certificate = f"{mark}{rest}\n"
    if not _CERTIFICATE.fullmatch(certificate):
        raise ValueError("it has no certificate, or a damaged one")
    ssl.PEM_cert_to_DER_cert(certificate)
    values = {key: fields[key].strip() for key in _KEYS}
    url = urlsplit(values["url"])
    host, port = url.hostname or "", url.port
    if url.scheme != "https" or port is None or not HOST.fullmatch(host):
        raise ValueError("its url is not of the form https://HOST:PORT/PARTNER")
    if not NAME.fullmatch(values["partner"]) or url.path != f"/{values['partner']}":
        raise ValueError("its partner is no name, or another one than in the url")
    if not _TOKEN.fullmatch(values["token"]):
        raise ValueError("its token is incomplete")
    expires = datetime.datetime.fromisoformat(values["expires"]).timestamp()
    return Invitation(values["partner"], host, port, values["token"], expires, certificate)
