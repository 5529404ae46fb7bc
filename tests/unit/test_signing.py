"""Signatures: what a good one proves, and every way in which one is not good."""

import base64
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attar.errors import NeedsError, TrustError
from attar.testing import tiny_upload
from attar.uploads import (
    admit,
    encode,
    generate_key,
    read_trusted,
    receive,
    sign,
    signing,
    write_bundle,
)
from attar.uploads.keys import TrustedKeys
from attar.uploads.signing import find_signer, signature_path, verify


@pytest.fixture
def berlin(tmp_path):
    """A signed upload, its key, and the list that trusts it."""
    write_bundle(tmp_path / "berlin.attar", tiny_upload("berlin"))
    key = generate_key(tmp_path / "berlin.key", "berlin")
    (one,) = receive([tmp_path / "berlin.attar"])
    sign(one, tmp_path / "berlin.key")
    return tmp_path, one, key


def status_of(one, trusted=None):
    return find_signer(one, trusted).status


def test_find_signer_trusts_a_good_signature(berlin):
    home, one, key = berlin
    trusted = read_trusted(home / "berlin.pub")
    assert find_signer(one, trusted) == signing.Signer("trusted", key)
    uploads, admission = admit([one], trusted=trusted, require_signatures=True)
    assert [upload.client for upload in uploads] == ["berlin"]
    assert admission.describe_signers()["berlin"]["standing"] == "trusted"
    assert status_of(one) == "valid", "without a list the key may be anybody's"


def test_find_signer_of_a_changed_file_sealed_anew(berlin):
    home, one, _ = berlin
    part = one.upload.parts["classifier"]
    other = {name: tensor + 1 for name, tensor in part.state.items()}
    write_bundle(one.path, replace(one.upload, parts={"classifier": replace(part, state=other)}))
    (tampered,) = receive([one.path])
    signer = find_signer(tampered, read_trusted(home / "berlin.pub"))
    assert signer.status == "bad"
    assert "changed or exchanged" in signer.reason
    with pytest.raises(TrustError, match="berlin: signature bad"):
        admit([tampered])
    text = json.loads(signature_path(one.path).read_text())
    signature_path(one.path).write_text(json.dumps({**text, "sha256": tampered.sha256}))
    assert "does not match its key" in find_signer(tampered, None).reason


def test_find_signer_of_another_clients_signature(berlin):
    home, one, _ = berlin
    write_bundle(home / "oslo.attar", tiny_upload("oslo"))
    signature_path(home / "oslo.attar").write_bytes(signature_path(one.path).read_bytes())
    (oslo,) = receive([home / "oslo.attar"])
    assert "signs an upload of 'berlin'" in find_signer(oslo, None).reason
    renamed = json.loads(signature_path(one.path).read_text()) | {
        "client": "oslo",
        "sha256": oslo.sha256,
    }
    signature_path(oslo.path).write_text(json.dumps(renamed))
    assert "does not match its key" in find_signer(oslo, None).reason


def test_find_signer_distinguishes_other_and_unknown_keys(berlin):
    home, one, _ = berlin
    generate_key(home / "oslo.key", "oslo")
    sign(one, home / "oslo.key")
    (home / "keys.toml").write_text(
        (home / "berlin.pub").read_text() + (home / "oslo.pub").read_text()
    )
    both, first = read_trusted(home / "keys.toml"), read_trusted(home / "berlin.pub")
    assert status_of(one, both) == "another client's key"
    assert "key of oslo" in find_signer(one, both).reason
    assert status_of(one, first) == "unknown key"
    for trusted in (both, first):
        with pytest.raises(TrustError, match="berlin: signature"):
            admit([one], trusted=trusted)


def test_admit_missing_signatures(berlin):
    home, one, _ = berlin
    signature_path(one.path).unlink()
    write_bundle(home / "oslo.attar", tiny_upload("oslo"))
    received = receive([one.path, home / "oslo.attar"])
    trusted = read_trusted(home / "berlin.pub")
    assert {status_of(item, trusted) for item in received} == {"unsigned"}
    admit(received)
    with pytest.raises(TrustError) as stripped:
        admit(received, trusted=trusted)
    assert len(stripped.value.problems) == 1, "berlin is listed and must sign, oslo is not"
    assert "lists a key for it" in stripped.value.problems[0]
    with pytest.raises(TrustError) as required:
        admit(received, trusted=trusted, require_signatures=True)
    assert len(required.value.problems) == 2
    uploads, admission = admit(received, trusted=trusted, exclude=["berlin"])
    assert [upload.client for upload in uploads] == ["oslo"]
    assert admission.excluded == ("berlin",)
    with pytest.raises(TrustError, match="proves nothing without a list"):
        admit(received, require_signatures=True)


def test_admit_excludes_only_who_sent(berlin):
    _, one, _ = berlin
    with pytest.raises(NeedsError, match="no upload of paris"):
        admit([one], exclude=["paris"])
    with pytest.raises(NeedsError, match="removes all"):
        admit([one], exclude=["berlin"])


def test_read_trusted_several_keys_of_one_client(berlin):
    home, one, key = berlin
    new = generate_key(home / "new.key", "berlin")
    (home / "keys.toml").write_text(f'"berlin" = ["{new}", "{key}"]\n')
    assert status_of(one, read_trusted(home / "keys.toml")) == "trusted"
    sign(one, home / "new.key")
    assert status_of(one, read_trusted(home / "keys.toml")) == "trusted"


# --- keys -----------------------------------------------------------------------------------------


def test_generate_key_mode_and_no_overwriting(berlin):
    home, _, _ = berlin
    assert stat.S_IMODE((home / "berlin.key").stat().st_mode) == 0o600
    before = (home / "berlin.key").read_bytes()
    for place in ("berlin.key", "berlin.pub"):
        with pytest.raises(TrustError, match=r"exists already|reserved"):
            generate_key(home / place, "berlin")
    assert (home / "berlin.key").read_bytes() == before
    with pytest.raises(TrustError, match="client's name"):
        generate_key(home / "x.key", "../x")
    assert not (home / "x.key").exists()


def test_generate_key_leaves_nothing_after_a_crash(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        generate_key(tmp_path / "berlin.key", "berlin")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not a private key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "not a private key"),
        (b"\x80\x04\x95", "not a private key"),
        (None, "cannot be read"),
    ],
)
def test_sign_refuses_other_files_as_keys(berlin, content, told):
    home, one, _ = berlin
    if content is not None:
        (home / "x.key").write_bytes(content)
    with pytest.raises(TrustError, match=told):
        sign(one, home / "x.key")


def test_sign_refuses_keys_of_other_kinds(berlin):
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    home, one, _ = berlin
    for lock, told in (
        (NoEncryption(), "another kind"),
        (BestAvailableEncryption(b"x"), "without a password"),
    ):
        (home / "x.key").write_bytes(
            generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)
        )
        with pytest.raises(TrustError, match=told):
            sign(one, home / "x.key")


GOOD = "ed25519:" + base64.b64encode(bytes(range(32))).decode()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no client"),
        ("[berlin", "not a list of trusted keys"),
        ('"berlin" = 7', "berlin: expected"),
        ('"berlin" = []', "berlin: expected"),
        ('"berlin" = "ed25519:AAAA"', "berlin: expected"),
        (f'"berlin" = "{GOOD[8:]}"', "berlin: expected"),
        (f'"../x" = "{GOOD}"', "cannot be a client's name"),
        (f'"berlin" = "{GOOD}"\n"oslo" = "{GOOD}"', "have the same key"),
        (f'"berlin" = "{GOOD}"\n"berlin" = "{GOOD}"', "not a list of trusted keys"),
        ("#" * 2**21, "too large"),
    ],
)
def test_read_trusted_refuses_bad_lists(tmp_path, text, told):
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(TrustError, match=told):
        read_trusted(tmp_path / "keys.toml")


def test_read_trusted_missing_file(tmp_path):
    with pytest.raises(TrustError, match="cannot be read"):
        read_trusted(tmp_path / "keys.toml")


# --- hostile .sig files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "damaged"),
        (b"[" * 3000, "damaged"),
        (b"{}", "exactly the texts"),
        (b"\xff\xfe{", "damaged"),
        (b"x" * 5000, "too large"),
        (b'{"a": NaN}', "damaged"),
    ],
)
def test_find_signer_of_damaged_signatures(berlin, text, told):
    _, one, _ = berlin
    signature_path(one.path).write_bytes(text)
    assert find_signer(one, None).status == "bad"
    assert told in find_signer(one, None).reason


@pytest.mark.parametrize(
    "change",
    [
        {"format": "attar-signature/2"},
        {"key": 7},
        {"key": "ed25519:AAAA"},
        {"key": "rsa:x"},
        {"signature": "!"},
        {"signature": ""},
        {"signature": base64.b64encode(bytes(64)).decode()},
        {"client": None},
        {"more": "x"},
    ],
    ids=str,
)
def test_find_signer_of_other_entries(berlin, change):
    _, one, _ = berlin
    given = json.loads(signature_path(one.path).read_text())
    signature_path(one.path).write_text(json.dumps(given | change))
    assert status_of(one) == "bad"


def test_find_signer_of_a_folder_or_device(berlin):
    _, one, _ = berlin
    signature_path(one.path).unlink()
    signature_path(one.path).mkdir()
    assert status_of(one) == "bad"
    signature_path(one.path).rmdir()
    os.mkfifo(signature_path(one.path))
    assert status_of(one) == "bad", "and does not wait for a writer"


ONE = encode(tiny_upload("berlin"))


@settings(max_examples=60)
@given(place=st.integers(0, 10_000), pattern=st.integers(1, 255))
def test_verify_trusts_no_flipped_byte(place, pattern):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    text = bytearray(signing.signature_text("berlin", "0" * 64, private).encode())
    key = json.loads(text)["key"]
    trusted = TrustedKeys({"berlin": (key,)}, "keys.toml")
    assert verify(bytes(text), "berlin", "0" * 64, trusted).status == "trusted"
    before = json.loads(text)
    text[place % len(text)] ^= pattern
    try:
        same = json.loads(text) == before  # white space, or another spelling of the same letter
    except ValueError:
        same = False
    assert (verify(bytes(text), "berlin", "0" * 64, trusted).status == "trusted") == same


# --- without the extra ----------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["cryptography"] = None
sys.modules["cryptography.hazmat.primitives.asymmetric"] = None
from pathlib import Path
from attar.uploads import receive
from attar.cli import main
from attar.uploads.keys import TrustedKeys
from attar.uploads.signing import find_signer
(one,) = receive(["berlin.attar"])
assert find_signer(one, None).status == "not checked"
assert main(["inspect", "berlin.attar"]) == 0
assert main(["inspect", "berlin.attar", "--trusted", "berlin.pub"]) == 2
assert main(["keygen", "x.key"]) == 2
assert main(["sign", "berlin.attar", "--key", "berlin.key"]) == 2
assert not Path("x.key").exists()
"""


def test_find_signer_without_cryptography(berlin):
    home, _, _ = berlin
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=home, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("attar[sign]") == 3


def test_import_attar_does_not_import_cryptography():
    code = (
        "import sys, attar, attar.cli; "
        "assert not any(name.startswith('cryptography') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
