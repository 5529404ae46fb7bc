"""Ed25519 keys: a private key for each client, and the server's list of public keys.

Needs ``cryptography`` (``pip install 'attar[sign]'``), which is imported only when a key is made,
used or checked.
"""

from __future__ import annotations

import base64
import binascii
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attar.errors import TrustError
from attar.internal.files import write_atomic
from attar.uploads.manifest import is_client_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_KEY = 16_384  # bytes of a private key file
MAX_TRUSTED = 2**20  # bytes of a list of trusted keys
_PREFIX = "ed25519:"


@dataclass(frozen=True)
class TrustedKeys:
    """The server's list of public keys.

    Attributes:
        keys: client -> its keys, ``"ed25519:…"``.
        source: where the list was read, for messages.
    """

    keys: Mapping[str, tuple[str, ...]]
    source: str

    def owners(self, key: str) -> list[str]:
        """The clients for which a key is listed."""
        return [client for client, keys in self.keys.items() if key in keys]


def shorten(key: str) -> str:
    """The beginning of a key, enough to recognise it."""
    return f"{key[: len(_PREFIX) + 12]}…"


def generate_key(path: Path, client: str) -> str:
    """Make a private key, and the line with its public key for the server's list.

    Args:
        path: where to write the private key (mode 600). The line is written beside it, with the
            suffix ``.pub``.
        client: the client that the key is for.

    Returns:
        The public key, ``"ed25519:…"``.

    Raises:
        TrustError: if a file exists already, the name is invalid, or cryptography is missing.
    """
    ed25519 = import_ed25519()  # first of all: its error says what to install
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    public_path = path.with_suffix(".pub")
    problems = [f"{file} exists already" for file in (path, public_path) if file.exists()]
    if path.suffix == ".pub":
        problems.append(f"{path} is reserved for the public key")
    if not is_client_name(client):
        rule = "letters, digits, spaces or . _ @ + -, at most 64"
        problems.append(f"{client!r} cannot be a client's name: {rule}")
    if problems:
        raise TrustError(
            "No key was made:",
            problems=problems,
            fix="name another file; a private key that is lost cannot be restored",
        )
    private = ed25519.Ed25519PrivateKey.generate()
    public = public_text(private)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomic(path, pem, mode=0o600)
    write_atomic(public_path, f'"{client}" = "{public}"\n')
    return public


def load_private(path: Path) -> Ed25519PrivateKey:
    """Read a private key from a PEM file without a password.

    Raises:
        TrustError: if it cannot be read, or is a key of another kind.
    """
    import_ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    fix = "name the file that `attar keygen` wrote"
    try:
        with path.open("rb") as file:
            key = load_pem_private_key(file.read(MAX_KEY), password=None)
    except OSError as error:
        raise TrustError(f"The key {path} cannot be read: {error.strerror}.", fix=fix) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TrustError(f"{path} is not a private key without a password.", fix=fix) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise TrustError(f"{path} holds a key of another kind than Ed25519.", fix=fix)
    return key


def read_trusted(path: Path) -> TrustedKeys:
    """Read the server's list of keys.

    Args:
        path: a TOML file of lines ``"client" = "ed25519:…"``, or with a list of keys for a
            client.

    Returns:
        The keys of each client.

    Raises:
        TrustError: with every line that is no client with its keys, and every key that two
            clients share.
    """
    fix = 'one line per client, as in its .pub file: "berlin" = "ed25519:…"'
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TRUSTED + 1)
        if len(text) > MAX_TRUSTED:
            raise TrustError(f"{path} is too large for a list of keys.", fix=fix)
        entries = tomllib.loads(text.decode())
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise TrustError(f"The list of trusted keys {path} {reason}.", fix=fix) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error)[:120]
        raise TrustError(f"{path} is not a list of trusted keys ({reason}).", fix=fix) from None
    problems = [] if entries else ["it names no client"]
    keys: dict[str, tuple[str, ...]] = {}
    for client, value in entries.items():
        listed = value if isinstance(value, list) else [value]
        if not is_client_name(client):
            problems.append(f"{client[:80]!r} cannot be a client's name")
        elif not listed or any(public_bytes(key) is None for key in listed):
            form = "expected ed25519: and 32 bytes in base64, or a list of these"
            problems.append(f"{client}: {form}")
        else:
            keys[client] = tuple(listed)
    problems += _shared_keys(keys)
    if problems:
        what = f"{path} cannot be used as a list of trusted keys:"
        raise TrustError(what, problems=problems, fix=fix)
    return TrustedKeys(keys, str(path))


def _shared_keys(keys: Mapping[str, Sequence[str]]) -> list[str]:
    owners: dict[str, str] = {}
    problems = []
    for client, listed in keys.items():
        for key in listed:
            owner = owners.setdefault(key, client)
            if owner != client:
                why = "a signature would not say who signed"
                problems.append(f"{owner} and {client} have the same key: {why}")
    return problems


def can_verify() -> bool:
    """Whether signatures can be made and checked here: cryptography is installed."""
    try:
        import_ed25519()
    except TrustError:
        return False
    return True


def import_ed25519() -> Any:
    """The module of cryptography for Ed25519.

    Raises:
        TrustError: saying what to install, if cryptography is missing.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        fix = "pip install 'attar[sign]'"
        raise TrustError("Signatures need the package cryptography.", fix=fix) from None
    return ed25519


def public_text(private: Ed25519PrivateKey) -> str:
    """The public key of a private one, ``"ed25519:…"``."""
    return _PREFIX + base64.b64encode(private.public_key().public_bytes_raw()).decode()


def public_bytes(key: object) -> bytes | None:
    """The 32 bytes of a public key; None for anything that is no key."""
    if not isinstance(key, str) or not key.startswith(_PREFIX):
        return None
    raw = decode_base64(key.removeprefix(_PREFIX))
    return raw if raw is not None and len(raw) == 32 else None


def decode_base64(text: str) -> bytes | None:
    """The bytes; None for text that is not base64 in its one canonical spelling.

    The last letter has several spellings of the same bytes, which would compare as other keys.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode() == text else None
