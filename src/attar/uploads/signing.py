"""Who sent an upload: Ed25519 keys, detached signatures, and what a signature proves.

``berlin.attar`` is signed by ``berlin.attar.sig`` beside it, a few lines of JSON. Signed are the
client's name and the sha256 over the whole file, so every byte of header, manifest and weights
is covered, and a signature cannot be put beside another client's file. The upload itself does
not change.

Needs ``cryptography`` (``pip install 'attar[sign]'``), which is imported only when a key is made,
used or checked.
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
from attar.uploads.bundle import Received
from attar.uploads.manifest import is_client_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "attar-signature/1"
MAX_SIGNATURE = 4096  # bytes of a .sig file; it needs about 350
MAX_KEY = 16_384  # bytes of a private key file
MAX_TRUSTED = 2**20  # bytes of a list of trusted keys
_PREFIX = "ed25519:"
_KEYS = {"format", "client", "sha256", "key", "signature"}

SignatureStatus = Literal[
    "trusted",  # signed by a key that the server lists for this client
    "valid",  # signed by some key, and the server has no list of keys
    "unsigned",
    "unknown key",
    "another client's key",
    "bad",
    "not checked",  # signed, and cryptography is not installed
]


@dataclass(frozen=True)
class Signer:
    """What is known about the sender of one upload.

    Attributes:
        status: what the signature proves.
        key: the public key that the signature names; None without a readable signature.
        reason: why it is bad, or whose key it is; None where the status says it all.
    """

    status: SignatureStatus
    key: str | None = None
    reason: str | None = None

    @property
    def summary(self) -> str:
        """Status, key and reason in one cell of a table."""
        by = "" if self.key is None else f" {shorten(self.key)}"
        return f"{self.status}{by}" + (f": {self.reason}" if self.reason else "")

    def as_json(self) -> dict[str, str | None]:
        """The entries of the record of a fusion."""
        return {"standing": self.status, "key": self.key, "reason": self.reason}


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


def signature_path(upload: Path) -> Path:
    """Where the signature of an upload file is stored: ``.sig`` appended to its name."""
    return upload.with_name(f"{upload.name}.sig")


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
    ed25519 = _import_ed25519()  # first of all: its error says what to install
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
    public = _public_text(private)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomic(path, pem, mode=0o600)
    write_atomic(public_path, f'"{client}" = "{public}"\n')
    return public


def sign(received: Received, key: Path) -> Path:
    """Sign an upload file.

    Args:
        received: the file, read and checked.
        key: the file with the private key.

    Returns:
        The ``.sig`` file that was written beside the upload.

    Raises:
        TrustError: if the key cannot be read.
    """
    text = signature_text(received.upload.client, received.sha256, load_private(key))
    path = signature_path(received.path)
    write_atomic(path, text)
    return path


def signature_text(client: str, sha256: str, private: Ed25519PrivateKey) -> str:
    """Write the content of a ``.sig`` file.

    Args:
        client: the client's name in the upload.
        sha256: the hash that the upload states, in hex.
        private: the client's key.

    Returns:
        JSON text, which may also travel in other ways than as a file.
    """
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
    """Read a private key from a PEM file without a password.

    Raises:
        TrustError: if it cannot be read, or is a key of another kind.
    """
    _import_ed25519()
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
        elif not listed or any(_public_bytes(key) is None for key in listed):
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


def find_signer(received: Received, trusted: TrustedKeys | None) -> Signer:
    """Find out who signed an upload file, from the ``.sig`` file beside it.

    Args:
        received: the upload.
        trusted: the server's keys; None if it has no list.

    Returns:
        What the signature proves. A missing, unreadable or wrong one is a status, not an error.
    """
    path = signature_path(received.path)
    try:
        if path.exists() and not path.is_file():
            return Signer("bad", reason="its .sig is not a plain file")
        with path.open("rb") as file:
            text = file.read(MAX_SIGNATURE + 1)
    except FileNotFoundError:
        return Signer("unsigned")
    except OSError as error:
        return Signer("bad", reason=f"its .sig cannot be read ({error.strerror})")
    return verify(text, received.upload.client, received.sha256, trusted)


def verify(text: bytes, client: str, sha256: str, trusted: TrustedKeys | None) -> Signer:
    """Check the text of a signature against an upload.

    Args:
        text: the content of a ``.sig`` file, from an untrusted sender.
        client: the client's name in the upload.
        sha256: the hash of the upload's file, in hex.
        trusted: the server's keys; None if it has no list.

    Returns:
        What the signature proves about the upload.
    """
    try:
        entries = _read_entries(text)
    except ValueError as error:
        return Signer("bad", reason=str(error))
    key = entries["key"]
    if trusted is None and not can_verify():
        return Signer("not checked", key, "pip install 'attar[sign]'")
    if entries["client"] != client:
        return Signer("bad", key, f"it signs an upload of {entries['client']!r}")
    if entries["sha256"] != sha256:
        reason = "it signs another file: this one was changed or exchanged after it was signed"
        return Signer("bad", key, reason)
    if not _verify_bytes(key, entries["signature"], _message(client, sha256)):
        return Signer("bad", key, "the signature does not match its key")
    if trusted is None:
        return Signer("valid", key, "there is no list of keys to compare with")
    if key in trusted.keys.get(client, ()):
        return Signer("trusted", key)
    if owners := trusted.owners(key):
        return Signer("another client's key", key, f"it is the key of {', '.join(owners)}")
    return Signer("unknown key", key, f"{trusted.source} does not list it")


def find_signers(
    received: Sequence[Received], trusted: TrustedKeys | None, *, require: bool = False
) -> dict[str, Signer]:
    """Find out who signed each upload.

    Args:
        received: the uploads.
        trusted: the server's keys; None if it has no list.
        require: whether ``check_signers`` will require signatures.

    Returns:
        Client -> signer, whatever it is worth.

    Raises:
        TrustError: if signatures are required without a list of keys, or a list is given and
            cryptography is missing.
    """
    if require and trusted is None:
        raise TrustError(
            "A required signature proves nothing without a list of keys.",
            fix="name one with --trusted keys.toml",
        )
    if trusted is not None:
        _import_ed25519()
    return {one.upload.client: find_signer(one, trusted) for one in received}


def signer_problems(
    signers: Mapping[str, Signer], trusted: TrustedKeys | None, *, require: bool
) -> list[str]:
    """List the uploads that must not be used because of their signatures.

    A client on the list has to sign in any case: otherwise, whoever removes a signature could
    send in its name.

    Args:
        signers: client -> signer.
        trusted: the server's keys; None if it has no list.
        require: whether every client has to sign.

    Returns:
        One sentence for each such client.
    """
    problems = []
    for client, signer in signers.items():
        if signer.status == "unsigned":
            if trusted is not None and client in trusted.keys:
                problems.append(f"{client}: not signed, but {trusted.source} lists a key for it")
            elif require:
                problems.append(f"{client}: not signed")
        elif signer.status not in ("trusted", "valid", "not checked"):
            problems.append(f"{client}: signature {signer.summary}")
    return problems


def check_signers(
    signers: Mapping[str, Signer], trusted: TrustedKeys | None, *, require: bool = False
) -> None:
    """Refuse uploads whose signatures are bad or missing; takes what ``signer_problems`` takes.

    Raises:
        TrustError: with every such upload.
    """
    if problems := signer_problems(signers, trusted, require=require):
        raise TrustError(
            "The senders of these uploads could not be verified:",
            problems=problems,
            fix="ask the sender to sign the file again (`attar sign FILE --key KEY`), or leave it "
            "out with --exclude",
        )


def can_verify() -> bool:
    """Whether signatures can be made and checked here: cryptography is installed."""
    try:
        _import_ed25519()
    except TrustError:
        return False
    return True


def _import_ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        fix = "pip install 'attar[sign]'"
        raise TrustError("Signatures need the package cryptography.", fix=fix) from None
    return ed25519


def _message(client: str, sha256: str) -> bytes:
    return f"{FORMAT}\n{client}\n{sha256}\n".encode()  # neither has a line break


def _public_text(private: Ed25519PrivateKey) -> str:
    return _PREFIX + base64.b64encode(private.public_key().public_bytes_raw()).decode()


def _public_bytes(key: object) -> bytes | None:
    if not isinstance(key, str) or not key.startswith(_PREFIX):
        return None
    raw = _decode_base64(key.removeprefix(_PREFIX))
    return raw if raw is not None and len(raw) == 32 else None


def _decode_base64(text: str) -> bytes | None:
    """The bytes; None for text that is not base64 in its one canonical spelling.

    The last letter has several spellings of the same bytes, which would compare as other keys.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode() == text else None


def _read_entries(text: bytes) -> dict[str, str]:
    """The entries of a .sig file; ValueError says what is wrong with it."""
    if len(text) > MAX_SIGNATURE:
        raise ValueError("its .sig is too large")
    try:
        entries = strict_json(text)
    except ValueError:
        raise ValueError("its .sig is damaged") from None
    complete = isinstance(entries, dict) and set(entries) == _KEYS
    if not complete or not all(isinstance(value, str) for value in entries.values()):
        raise ValueError(f"its .sig must have exactly the texts {', '.join(sorted(_KEYS))}")
    if entries["format"] != FORMAT:
        raise ValueError(f"its .sig is not of format {FORMAT}")
    if _public_bytes(entries["key"]) is None:
        raise ValueError("its .sig names no Ed25519 key")
    texts: dict[str, str] = entries
    return texts


def _verify_bytes(key: str, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    public = _public_bytes(key)
    proof = _decode_base64(signature)
    if public is None or proof is None:
        return False
    try:
        _import_ed25519().Ed25519PublicKey.from_public_bytes(public).verify(proof, message)
    except (InvalidSignature, ValueError):
        return False
    return True
