"""Who sent an upload: Ed25519 keys, detached signatures, and what a signature is worth.

``berlin.attar`` is signed by ``berlin.attar.sig`` beside it, a few lines of JSON. What is signed
is the client's name and the sha256 that seals the file, so every byte of header, manifest and
weights is covered, and a signature cannot be put beside another client's file. The upload's own
format does not change.

Needs ``cryptography`` (``pip install 'attar[sign]'``), which is imported when a key is made,
used or checked, and not before.
"""

from __future__ import annotations

import base64
import binascii
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attar.errors import TrustError
from attar.internal.files import write_atomic
from attar.internal.strict_json import strict_json
from attar.uploads.bundle import Received, is_client_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "attar-signature/1"
MAX_SIGNATURE = 4096  # bytes of a .sig file; it needs about 350
MAX_KEY = 16_384
MAX_TRUSTED = 2**20
_PREFIX = "ed25519:"
_KEYS = {"format", "client", "sha256", "key", "signature"}

Standing = Literal[
    "trusted",  # signed by a key that the server lists for this very client
    "valid",  # signed by some key, and the server has no list to look it up in
    "unsigned",
    "unknown key",
    "another client's key",
    "bad",
    "not checked",  # signed, and cryptography is not installed
]


@dataclass(frozen=True)
class Signer:
    """What is known about the sender of one upload."""

    standing: Standing
    key: str | None = None  # the public key that the signature names
    reason: str | None = None  # why it is bad, or whose key it is

    @property
    def words(self) -> str:
        """In one cell of a table."""
        by = "" if self.key is None else f" {short(self.key)}"
        return f"{self.standing}{by}" + (f": {self.reason}" if self.reason else "")

    def as_json(self) -> dict[str, str | None]:
        return {"standing": self.standing, "key": self.key, "reason": self.reason}


@dataclass(frozen=True)
class TrustedKeys:
    """The server's allow-list: the public keys of each client."""

    keys: Mapping[str, tuple[str, ...]]
    source: str

    def owners(self, key: str) -> list[str]:
        return [client for client, own in self.keys.items() if key in own]


def short(key: str) -> str:
    """Enough of a key to tell it from others."""
    return f"{key[: len(_PREFIX) + 12]}…"


def signature_path(upload: Path) -> Path:
    return upload.with_name(f"{upload.name}.sig")


def generate_key(path: Path, client: str) -> str:
    """Write a new private key (mode 600) and, beside it, ``.pub``: the line for the server's
    allow-list. Returns the public key.
    """
    ed25519 = _ed25519()  # says what to install before anything is imported from it
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    problems = [
        f"{place} is there already" for place in (path, path.with_suffix(".pub")) if place.exists()
    ]
    if path.suffix == ".pub":
        problems.append(f"{path} is what the public half would be called")
    if not is_client_name(client):
        problems.append(
            f"{client!r} cannot be a client's name: letters, digits, spaces or . _ @ + -, at most 64"
        )
    if problems:
        raise TrustError(
            "No key was made:",
            problems=problems,
            fix="name another file; a lost private key cannot be made again",
        )
    private = ed25519.Ed25519PrivateKey.generate()
    public = _public_text(private)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomic(path, pem, mode=0o600)
    write_atomic(path.with_suffix(".pub"), f'"{client}" = "{public}"\n')
    return str(public)


def sign(received: Received, key: Path) -> Path:
    """Write the signature of an upload file beside it; returns where."""
    text = signature_text(received.upload.client, received.sha256, load_private(key))
    place = signature_path(received.path)
    write_atomic(place, text)
    return place


def signature_text(client: str, sha256: str, private: Ed25519PrivateKey) -> str:
    """The content of a ``.sig`` file: text that may also travel by other ways than files."""
    signature = base64.b64encode(private.sign(_message(client, sha256))).decode()
    entries = {
        "format": FORMAT,
        "client": client,
        "sha256": sha256,
        "key": _public_text(private),
        "signature": signature,
    }
    return json.dumps(entries, indent=1) + "\n"


def load_private(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file."""
    _ed25519()  # says what to install before anything is read
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    fix = "name the file that `attar keygen` wrote"
    try:
        with path.open("rb") as file:
            found = load_pem_private_key(file.read(MAX_KEY), password=None)
    except OSError as error:
        raise TrustError(f"The key {path} cannot be read: {error.strerror}.", fix=fix) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TrustError(f"{path} is not a private key without a password.", fix=fix) from None
    if not isinstance(found, Ed25519PrivateKey):
        raise TrustError(f"{path} holds a key of another kind than Ed25519.", fix=fix)
    return found


def read_trusted(path: Path) -> TrustedKeys:
    """An allow-list: a TOML file of lines ``"client" = "ed25519:…"``, or a list of keys for one
    client.
    """
    fix = 'one line per client, as in its .pub file: "berlin" = "ed25519:…"'
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TRUSTED + 1)
        if len(text) > MAX_TRUSTED:
            raise TrustError(f"{path} is too large for a list of keys.", fix=fix)
        given = tomllib.loads(text.decode())
    except OSError as error:
        raise TrustError(
            f"The list of trusted keys {path} cannot be read: {error.strerror}.", fix=fix
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrustError(
            f"{path} is not a list of trusted keys ({str(error)[:120]}).", fix=fix
        ) from None
    problems = [] if given else ["it names nobody"]
    keys: dict[str, tuple[str, ...]] = {}
    for client, value in given.items():
        own = value if isinstance(value, list) else [value]
        wrong = [key for key in own if _public_bytes(key) is None]
        if not is_client_name(client):
            problems.append(f"{client[:80]!r} cannot be a client's name")
        elif not own or wrong:
            problems.append(
                f"{client}: expected ed25519: and 32 bytes in base64, or a list of these"
            )
        else:
            keys[client] = tuple(own)
    owners: dict[str, str] = {}
    for client, listed in keys.items():
        for key in listed:
            if owners.setdefault(key, client) != client:
                problems.append(
                    f"{owners[key]} and {client} have the same key: who signed could not be told"
                )
    if problems:
        raise TrustError(
            f"{path} cannot be used as a list of trusted keys:", problems=problems, fix=fix
        )
    return TrustedKeys(keys, str(path))


def signer_of(received: Received, trusted: TrustedKeys | None) -> Signer:
    """What the ``.sig`` file beside an upload proves."""
    place = signature_path(received.path)
    try:
        if place.exists() and not place.is_file():
            return Signer("bad", reason="its .sig is not a plain file")
        with place.open("rb") as file:
            text = file.read(MAX_SIGNATURE + 1)
    except FileNotFoundError:
        return Signer("unsigned")
    except OSError as error:
        return Signer("bad", reason=f"its .sig cannot be read ({error.strerror})")
    return judged(text, received.upload.client, received.sha256, trusted)


def judged(text: bytes, client: str, sha256: str, trusted: TrustedKeys | None) -> Signer:
    """What a signature's text proves about the upload of ``client`` with this seal."""
    try:
        given = _entries(text)
    except ValueError as error:
        return Signer("bad", reason=str(error))
    key = given["key"]
    if trusted is None and not available():
        return Signer("not checked", key, "pip install 'attar[sign]'")
    if given["client"] != client:
        return Signer("bad", key, f"it signs an upload of {given['client']!r}")
    if given["sha256"] != sha256:
        return Signer(
            "bad",
            key,
            "it signs another file: this one was changed or exchanged after it was signed",
        )
    if not _verifies(key, given["signature"], _message(client, sha256)):
        return Signer("bad", key, "the signature does not fit its key")
    if trusted is None:
        return Signer("valid", key, "there is no list to look it up in")
    if key in trusted.keys.get(client, ()):
        return Signer("trusted", key)
    if owners := trusted.owners(key):
        return Signer("another client's key", key, f"it is the key of {', '.join(owners)}")
    return Signer("unknown key", key, f"{trusted.source} does not list it")


def refusals(
    signers: Mapping[str, Signer], trusted: TrustedKeys | None, *, require: bool
) -> list[str]:
    """Why uploads must not be used. A client on the list has to sign: else whoever strips a
    signature could speak for it.
    """
    problems = []
    for client, signer in signers.items():
        if signer.standing == "unsigned":
            if trusted is not None and client in trusted.keys:
                problems.append(f"{client}: not signed, but {trusted.source} lists a key for it")
            elif require:
                problems.append(f"{client}: not signed")
        elif signer.standing not in ("trusted", "valid", "not checked"):
            problems.append(f"{client}: signature {signer.words}")
    return problems


def signers_of(
    received: Sequence[Received], trusted: TrustedKeys | None, *, require: bool = False
) -> dict[str, Signer]:
    """Every client's signer, as it is."""
    if require and trusted is None:
        raise TrustError(
            "A required signature proves nothing without a list of keys.",
            fix="name one with --trusted keys.toml",
        )
    if trusted is not None:
        _ed25519()
    return {one.upload.client: signer_of(one, trusted) for one in received}


def refuse(
    signers: Mapping[str, Signer], trusted: TrustedKeys | None, *, require: bool = False
) -> None:
    """Raise one TrustError with every upload that must not be used."""
    if problems := refusals(signers, trusted, require=require):
        raise TrustError(
            "The senders of these uploads are not who they should be:",
            problems=problems,
            fix="ask the sender to sign the file again (`attar sign FILE --key KEY`), or leave it out with --exclude",
        )


def available() -> bool:
    """Whether signatures can be made and checked here."""
    try:
        _ed25519()
    except TrustError:
        return False
    return True


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise TrustError(
            "Signatures need the package cryptography.", fix="pip install 'attar[sign]'"
        ) from None
    return ed25519


def _message(client: str, sha256: str) -> bytes:
    return f"{FORMAT}\n{client}\n{sha256}\n".encode()  # neither has a line break


def _public_text(private: Ed25519PrivateKey) -> str:
    return _PREFIX + base64.b64encode(private.public_key().public_bytes_raw()).decode()


def _public_bytes(key: object) -> bytes | None:
    if not isinstance(key, str) or not key.startswith(_PREFIX):
        return None
    raw = _unbase64(key.removeprefix(_PREFIX))
    return raw if raw is not None and len(raw) == 32 else None


def _unbase64(text: str) -> bytes | None:
    """The bytes; None also for their other spellings (of the last letter), which would compare
    as other keys.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode() == text else None


def _entries(text: bytes) -> dict[str, str]:
    """The entries of a .sig file; ValueError says what is wrong with it."""
    if len(text) > MAX_SIGNATURE:
        raise ValueError("its .sig is too large")
    try:
        given = strict_json(text)
    except ValueError:
        raise ValueError("its .sig is damaged") from None
    if (
        not isinstance(given, dict)
        or set(given) != _KEYS
        or not all(isinstance(value, str) for value in given.values())
    ):
        raise ValueError(f"its .sig must have exactly the texts {', '.join(sorted(_KEYS))}")
    if given["format"] != FORMAT:
        raise ValueError(f"its .sig is not of format {FORMAT}")
    if _public_bytes(given["key"]) is None:
        raise ValueError("its .sig names no Ed25519 key")
    return given


def _verifies(key: str, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    public, proof = _public_bytes(key), _unbase64(signature)
    if public is None or proof is None:
        return False
    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(public).verify(proof, message)
    except (InvalidSignature, ValueError):
        return False
    return True
