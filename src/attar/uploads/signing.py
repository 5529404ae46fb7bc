"""Who sent an upload: detached Ed25519 signatures, and what they prove.

``berlin.attar`` is signed by ``berlin.attar.sig`` beside it, a few lines of JSON. Signed are the
client's name and the sha256 over the whole file, so every byte of header, manifest and weights
is covered, and a signature cannot be put beside another client's file. The upload itself does
not change. Keys are in ``keys.py``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attar.errors import TrustError
from attar.internal.files import write_atomic
from attar.internal.strict_json import strict_json
from attar.uploads.bundle import Received
from attar.uploads.keys import (
    TrustedKeys,
    can_verify,
    decode_base64,
    import_ed25519,
    load_private,
    public_bytes,
    public_text,
    shorten,
)
from attar.uploads.manifest import client_looks

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "attar-signature/1"
MAX_SIGNATURE = 4096  # bytes of a .sig file; it needs about 350
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


def signature_path(upload: Path) -> Path:
    """Where the signature of an upload file is stored: ``.sig`` appended to its name."""
    return upload.with_name(f"{upload.name}.sig")


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


def sign_page(path: Path, client: str, key: Path) -> Path:
    """Sign a file that belongs to an upload, such as its privacy dossier.

    Args:
        path: the file.
        client: the client's name in the upload.
        key: the file with the private key.

    Returns:
        The ``.sig`` file that was written beside it.

    Raises:
        TrustError: if the key cannot be read.
    """
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    signature = signature_path(path)
    write_atomic(signature, signature_text(client, sha256, load_private(key)))
    return signature


def verify_page(path: Path, client: str, trusted: TrustedKeys | None) -> Signer:
    """Find out who signed a file that belongs to an upload; see ``sign_page``.

    Args:
        path: the file.
        client: the client's name in the upload.
        trusted: the server's keys; None if it has no list.
    """
    try:
        text = signature_path(path).read_bytes()
    except OSError:
        return Signer("unsigned")
    return verify(text, client, hashlib.sha256(path.read_bytes()).hexdigest(), trusted)


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
        "key": public_text(private),
        "signature": signature,
    }
    return json.dumps(entries, indent=1) + "\n"


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
        import_ed25519()
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
        if trusted is not None and (twin := _listed_twin(client, trusted)):
            problems.append(f"{client}: looks like {twin}, whose key {trusted.source} lists")
        elif signer.status == "unsigned":
            if trusted is not None and client in trusted.keys:
                problems.append(f"{client}: not signed, but {trusted.source} lists a key for it")
            elif require:
                problems.append(f"{client}: not signed")
        elif signer.status not in ("trusted", "valid", "not checked"):
            problems.append(f"{client}: signature {signer.summary}")
    return problems


def _listed_twin(client: str, trusted: TrustedKeys) -> str | None:
    """A listed client whose name looks like that of one who is not listed."""
    if client in trusted.keys:
        return None
    looks = client_looks(client)
    return next((name for name in trusted.keys if client_looks(name) & looks), None)


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


def _message(client: str, sha256: str) -> bytes:
    return f"{FORMAT}\n{client}\n{sha256}\n".encode()  # neither has a line break


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
    if public_bytes(entries["key"]) is None:
        raise ValueError("its .sig names no Ed25519 key")
    texts: dict[str, str] = entries
    return texts


def _verify_bytes(key: str, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    public = public_bytes(key)
    proof = decode_base64(signature)
    if public is None or proof is None:
        return False
    try:
        import_ed25519().Ed25519PublicKey.from_public_bytes(public).verify(proof, message)
    except (InvalidSignature, ValueError):
        return False
    return True
