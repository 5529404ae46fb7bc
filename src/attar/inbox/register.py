"""What the server keeps of its invitations: its own certificate, and the hash of each token.

Beside the uploads, in the inbox:

    server/address.json, server.crt, server.key   made once, with the first invitation
    invitations/<partner>.json                    the token's sha256, its end, and what became of it
"""

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from attar.errors import RunError, SettingsError
from attar.inbox.certificate import make_certificate
from attar.inbox.folder import Inbox
from attar.inbox.invitation import Invitation
from attar.inbox.names import NAME, NAME_RULE, parse_address
from attar.internal.files import write_atomic

MOST_REFUSED = 5  # files of one partner, before it must be invited again
SETTLED_NS = 100_000_000  # after a change of a folder, before its time is trusted
_INVITE = "attar inbox invite NAME --folder FOLDER --address HOST:PORT"


@dataclass(frozen=True)
class Invited:
    """What the server knows about one partner.

    Attributes:
        partner: its name.
        token_sha256: in hex.
        expires: when the invitation ends, in seconds since 1970.
        refused: how many of its files were refused.
        refused_sha256: of the last of these; None if there is none.
        why: the reasons for that.
        spent_sha256: of the file that was accepted; None before.
    """

    partner: str
    token_sha256: str
    expires: float
    refused: int = 0
    refused_sha256: str | None = None
    why: tuple[str, ...] = ()
    spent_sha256: str | None = None


class Register:
    """The invitations of one inbox. Commands and the server may use it at the same time.

    Attributes:
        path: the inbox.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guests = path / "invitations"
        self._read_at = -1  # the state of the folder that ``_by_token`` shows
        self._by_token: dict[str, Invited] = {}

    @property
    def certificate(self) -> Path:
        """The server's certificate, PEM."""
        return self.path / "server" / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private key, PEM."""
        return self.path / "server" / "server.key"

    def address(self) -> tuple[str, int]:
        """Host and port of the server.

        Raises:
            RunError: The folder is no inbox.
        """
        try:
            fields = json.loads((self.path / "server" / "address.json").read_text())
            return str(fields["host"]), int(fields["port"])
        except (OSError, ValueError, TypeError, KeyError):
            raise RunError(
                f"{self.path} is no inbox: nobody is invited to it.",
                fix=f"invite somebody: {_INVITE}",
            ) from None

    def invite(self, partner: str, address: str | None, days: float) -> Invitation:
        """Make an invitation; an earlier one of the same partner ends.

        Args:
            partner: who is invited.
            address: of the server, HOST:PORT; None for that of the earlier invitations.
            days: how long it is valid.

        Raises:
            SettingsError: The name, the address or the time cannot be used.
            RunError: The partner's file is here, or the address differs from the earlier one.
        """
        self._check_name(partner)
        if not 0 < days <= 365:
            raise SettingsError(f"--days {days:g}: expected more than 0, at most 365.")
        here = Inbox(self.path).find(partner)
        if here is not None:
            raise RunError(
                f"{partner} has sent {here} already.",
                fix=f"move that file away, then invite {partner} again",
            )
        host, port = self._prepare(address)
        token = secrets.token_urlsafe(32)
        guest = Invited(partner, hash_token(token), time.time() + days * 86400)
        self._write(guest)
        certificate = self.certificate.read_text()
        return Invitation(partner, host, port, token, guest.expires, certificate)

    def guests(self) -> dict[str, Invited]:
        """All who are invited, by name."""
        return {guest.partner: guest for guest in self._index().values()}

    def find(self, token: str) -> Invited | None:
        """Whose token this is; None if it is nobody's."""
        return self._index().get(hash_token(token))

    def refuse(self, partner: str, sha256: str | None, why: Sequence[str]) -> Invited:
        """Write down that a file was refused."""
        guest = self.guests()[partner]
        changed = replace(
            guest, refused=guest.refused + 1, refused_sha256=sha256, why=tuple(why[:20])
        )
        self._write(changed)
        return changed

    def spend(self, partner: str, sha256: str) -> None:
        """Write down that a file was accepted: the token stores no other."""
        self._write(replace(self.guests()[partner], spent_sha256=sha256))

    def _check_name(self, partner: str) -> None:
        if not NAME.fullmatch(partner):
            raise SettingsError(f"{partner!r} cannot be a partner's name.", fix=f"use {NAME_RULE}")
        twins = [
            name for name in self.guests() if name != partner and name.lower() == partner.lower()
        ]
        if twins:
            raise SettingsError(
                f"{partner} differs from {twins[0]}, who is invited, in capitals alone.",
                fix="choose another name",
            )

    def _prepare(self, address: str | None) -> tuple[str, int]:
        """Host and port; with the first invitation the certificate is made."""
        known = self.path / "server" / "address.json"
        if not known.exists():
            if address is None:
                raise SettingsError(
                    "The first invitation needs the server's address.",
                    fix="add --address HOST:PORT, as the partners reach it",
                )
            host, port = parse_address(address)
            certificate, key = make_certificate(host)
            write_atomic(self.key, key, mode=0o600)
            write_atomic(self.certificate, certificate)
            write_atomic(known, json.dumps({"host": host, "port": port}) + "\n")
        host, port = self.address()
        if address is not None and parse_address(address) != (host, port):
            raise RunError(
                f"The partners of {self.path} know the server as {host}:{port}, not {address}.",
                fix=f"leave --address away, or delete {self.path / 'server'} and invite all again",
            )
        return host, port

    def _write(self, guest: Invited) -> None:
        text = json.dumps(asdict(guest), indent=1) + "\n"
        write_atomic(self._guests / f"{guest.partner}.json", text, mode=0o600)
        self._read_at = -1

    def _index(self) -> dict[str, Invited]:
        """Guests by the hash of their tokens, read again when a file of the folder is replaced."""
        try:
            state = self._guests.stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        if state != self._read_at:
            guests = [_read_guest(path) for path in sorted(self._guests.glob("*.json"))]
            self._by_token = {guest.token_sha256: guest for guest in guests}
            # Another change within the clock's resolution would show the same time.
            settled = time.time_ns() - state > SETTLED_NS
            self._read_at = state if settled else -1
        return self._by_token


def hash_token(token: str) -> str:
    """The sha256 of a token, in hex. Tokens are random, so that no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def _read_guest(path: Path) -> Invited:
    try:
        fields = json.loads(path.read_text())
        return Invited(**{**fields, "why": tuple(fields["why"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is damaged ({error}).", fix=f"delete it and invite {path.stem} again"
        ) from None
