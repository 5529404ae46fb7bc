"""What `attar network init` writes: a folder for the server and one for each partner.

server/    network.json, the app, certificate authority and server certificate, and the public keys
           of the partners
<partner>/ network.json, ca.crt, and node.key, unless the partner made a key of its own
"""

import datetime
import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attar.errors import RunError, SettingsError
from attar.inbox.names import NAME, NAME_RULE, parse_address
from attar.internal.files import write_atomic

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

RESERVED = frozenset({"server"})
DAYS = 825  # that certificates are valid
FLOWER = "1.41.0"  # the version that the app asks for


@dataclass(frozen=True)
class ServerKit:
    """What the server's folder says: its address, and the names of all partners."""

    host: str
    port: int
    partners: tuple[str, ...]


@dataclass(frozen=True)
class PartnerKit:
    """What a partner's folder says: the server's address, and the partner's name."""

    host: str
    port: int
    partner: str


def parse_partners(words: Sequence[str]) -> dict[str, Path | None]:
    """The partners by name, each with its public key file, or None where a key is to be made.

    Args:
        words: ``berlin``, or ``berlin=berlin.pub`` for a partner that made its own key.

    Raises:
        SettingsError: A name cannot be used, or a file is missing; the error names all.
    """
    partners: dict[str, Path | None] = {}
    problems = []
    for word in words:
        name, _, key = word.partition("=")
        if not NAME.fullmatch(name) or name.lower() in RESERVED:
            problems.append(f"{name!r}: expected {NAME_RULE} and not 'server'")
        elif name.lower() in {other.lower() for other in partners}:
            problems.append(f"{name}: named twice")
        elif key and not Path(key).is_file():
            problems.append(f"{name}: there is no file {key}")
        else:
            partners[name] = Path(key) if key else None
    if problems or not partners:
        raise SettingsError(
            "These partners cannot take part:", problems=problems or ["none is named"]
        )
    return partners


def write_kits(home: Path, address: str, names: Sequence[str]) -> ServerKit:
    """Write the folders of server and partners.

    Args:
        home: A new or empty folder for all of them.
        address: The server as the partners reach it.
        names: The partners, as ``parse_partners`` takes them.

    Returns:
        What the server's folder says.

    Raises:
        RunError: ``home`` is not empty: keys are never overwritten.
        SettingsError: The address or a partner cannot be used.
    """
    host, port = parse_address(address)
    partners = parse_partners(names)
    if home.exists() and any(home.iterdir()):
        raise RunError(
            f"{home} is not empty.",
            fix="name another folder, or delete this one: keys are never overwritten",
        )
    public = {name: _public_key(path) for name, path in partners.items() if path is not None}
    server = home / "server"
    authority, certificate, key, authority_key = _make_certificates(host)
    _write_secret(server / "ca.key", authority_key)
    _write_secret(server / "server.key", key)
    write_atomic(server / "ca.crt", authority)
    write_atomic(server / "server.crt", certificate)
    for name in partners:
        if name not in public:
            private = _new_key()
            _write_secret(home / name / "node.key", _private_bytes(private))
            public[name] = _public_bytes(private)
        write_atomic(server / "keys" / f"{name}.pub", public[name])
        write_atomic(home / name / "ca.crt", authority)
        write_atomic(home / name / "network.json", _json(PartnerKit(host, port, name)))
    for file, content in make_app_files().items():
        write_atomic(server / "app" / file, content)
    kit = ServerKit(host, port, tuple(partners))
    write_atomic(server / "network.json", _json(kit))
    return kit


def read_server_kit(folder: Path) -> ServerKit:
    """Read the server's folder; a RunError where it is none."""
    fields = _read(folder, {"host", "port", "partners"}, "the server's", "server")
    return ServerKit(fields["host"], fields["port"], tuple(fields["partners"]))


def read_partner_kit(folder: Path) -> PartnerKit:
    """Read a partner's folder; a RunError where it is none, or a file is missing."""
    fields = _read(folder, {"host", "port", "partner"}, "a partner's", "PARTNER")
    missing = [name for name in ("ca.crt", "node.key") if not (folder / name).is_file()]
    if missing:
        raise RunError(
            f"{folder} has no {' and no '.join(missing)}.",
            fix="copy the whole folder that `attar network init` wrote; a key of your own goes "
            "there as node.key",
        )
    return PartnerKit(fields["host"], fields["port"], fields["partner"])


def make_app_files() -> Mapping[str, bytes | str]:
    """The files of the Flower app: it only names code of attar, which all sides have installed."""
    return {
        "pyproject.toml": _APP_PROJECT,
        "README.md": "# attar round\n\nOne round of uploads. The code is in the package attar "
        "(`attar.network`).\n",
        "LICENSE": _LICENSE,
        "attar_round/__init__.py": '"""One round of uploads."""\n',
        "attar_round/server_app.py": 'from attar.network.server import app\n\n__all__ = ["app"]\n',
        "attar_round/client_app.py": 'from attar.network.client import app\n\n__all__ = ["app"]\n',
    }


_APP_PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "attar-round"
version = "1.0.0"
description = "One round of uploads"
license = "Apache-2.0"
dependencies = ["flwr=={FLOWER}", "attar"]

[tool.hatch.build.targets.wheel]
packages = ["attar_round"]

[tool.flwr.app]
publisher = "attar"

[tool.flwr.app.components]
serverapp = "attar_round.server_app:app"
clientapp = "attar_round.client_app:app"

[tool.flwr.app.config]
plan = ""
"""

_LICENSE = """Copyright the attar authors

Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
Distributed on an "AS IS" basis, without warranties or conditions of any kind, either express or \
implied.
"""


def _read(folder: Path, keys: set[str], whose: str, example: str) -> dict[str, Any]:
    path = folder / "network.json"
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError):
        fields = None
    if not isinstance(fields, dict) or set(fields) != keys:
        raise RunError(
            f"{folder} is not {whose} folder of a network.",
            fix=f"name the folder {example} that `attar network init` wrote",
        )
    return fields


def _json(kit: ServerKit | PartnerKit) -> str:
    return json.dumps(asdict(kit), indent=2) + "\n"


def _write_secret(path: Path, data: bytes) -> None:
    """Write a file that others can never read, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _private_bytes(key: "EllipticCurvePrivateKey", *, ssh: bool = True) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    layout = form.PrivateFormat.OpenSSH if ssh else form.PrivateFormat.PKCS8
    return key.private_bytes(form.Encoding.PEM, layout, form.NoEncryption())


def _public_bytes(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH) + b"\n"


def _public_key(path: Path) -> bytes:
    """The public key that a partner made: on a NIST curve, as Flower takes it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        data = path.read_bytes()
        key = form.load_ssh_public_key(data)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        key = None
        reason = f" ({error})"
    else:
        reason = ""
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SettingsError(
            f"{path} is not a public key on a NIST curve{reason}.",
            fix="the partner makes one by: ssh-keygen -t ecdsa -b 384 -N '' -f node.key   and "
            "sends node.key.pub",
        )
    return data


def _make_certificates(host: str) -> tuple[bytes, bytes, bytes, bytes]:
    """CA certificate, server certificate, server key, CA key, all PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks differ
    ends = begins + datetime.timedelta(days=DAYS)
    authority_key = _new_key()
    key = _new_key()

    def name_of(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])

    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def start_certificate(name: str, public: object) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name_of(name))
            .issuer_name(name_of("attar network"))
            .public_key(public)  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id),
                critical=False,
            )
        )

    def usage(*, signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs,
            crl_sign=signs,
            encipher_only=False,
            decipher_only=False,
        )

    authority = (
        start_certificate("attar network", authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    # The server's own processes reach it by loopback, whatever its name is.
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    try:
        address = x509.IPAddress(ipaddress.ip_address(host))
        names += [address] if address not in names else []
    except ValueError:
        names += [x509.DNSName(host)] if host != "localhost" else []
    server = (
        start_certificate(host, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    pem = form.Encoding.PEM
    return (
        authority.public_bytes(pem),
        server.public_bytes(pem),
        _private_bytes(key, ssh=False),
        _private_bytes(authority_key, ssh=False),
    )
