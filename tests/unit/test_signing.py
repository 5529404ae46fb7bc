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
from attar.uploads.signing import judged, signature_path, signer_of


@pytest.fixture
def berlin(tmp_path):
    """A signed upload, its key, and the list that trusts it."""
    write_bundle(tmp_path / "berlin.attar", tiny_upload("berlin"))
    key = generate_key(tmp_path / "berlin.key", "berlin")
    (one,) = receive([tmp_path / "berlin.attar"])
    sign(one, tmp_path / "berlin.key")
    return tmp_path, one, key


def standing(one, trusted=None):
    return signer_of(one, trusted).standing


def test_a_good_signature_is_trusted(berlin):
    home, one, key = berlin
    trusted = read_trusted(home / "berlin.pub")
    assert signer_of(one, trusted) == signing.Signer("trusted", key)
    uploads, admission = admit([one], trusted=trusted, require_signatures=True)
    assert [upload.client for upload in uploads] == ["berlin"]
    assert admission.describe_signers()["berlin"]["standing"] == "trusted"
    assert standing(one) == "valid", "without a list the key may be anybody's"


def test_any_changed_file_is_refused_even_if_it_is_sealed_anew(berlin):
    home, one, _ = berlin
    part = one.upload.parts["classifier"]
    other = {name: tensor + 1 for name, tensor in part.state.items()}
    write_bundle(one.path, replace(one.upload, parts={"classifier": replace(part, state=other)}))
    (tampered,) = receive([one.path])
    signer = signer_of(tampered, read_trusted(home / "berlin.pub"))
    assert signer.standing == "bad"
    assert "changed or exchanged" in signer.reason
    with pytest.raises(TrustError, match="berlin: signature bad"):
        admit([tampered])
    text = json.loads(signature_path(one.path).read_text())
    signature_path(one.path).write_text(json.dumps({**text, "sha256": tampered.sha256}))
    assert "does not fit its key" in signer_of(tampered, None).reason


def test_a_signature_belongs_to_one_client(berlin):
    home, one, _ = berlin
    write_bundle(home / "oslo.attar", tiny_upload("oslo"))
    signature_path(home / "oslo.attar").write_bytes(signature_path(one.path).read_bytes())
    (oslo,) = receive([home / "oslo.attar"])
    assert "signs an upload of 'berlin'" in signer_of(oslo, None).reason
    renamed = json.loads(signature_path(one.path).read_text()) | {
        "client": "oslo",
        "sha256": oslo.sha256,
    }
    signature_path(oslo.path).write_text(json.dumps(renamed))
    assert "does not fit its key" in signer_of(oslo, None).reason


def test_the_key_of_another_client_and_an_unknown_key_are_told_apart(berlin):
    home, one, _ = berlin
    generate_key(home / "oslo.key", "oslo")
    sign(one, home / "oslo.key")
    (home / "keys.toml").write_text(
        (home / "berlin.pub").read_text() + (home / "oslo.pub").read_text()
    )
    both, first = read_trusted(home / "keys.toml"), read_trusted(home / "berlin.pub")
    assert standing(one, both) == "another client's key"
    assert "key of oslo" in signer_of(one, both).reason
    assert standing(one, first) == "unknown key"
    for trusted in (both, first):
        with pytest.raises(TrustError, match="berlin: signature"):
            admit([one], trusted=trusted)


def test_missing_signatures(berlin):
    home, one, _ = berlin
    signature_path(one.path).unlink()
    write_bundle(home / "oslo.attar", tiny_upload("oslo"))
    received = receive([one.path, home / "oslo.attar"])
    trusted = read_trusted(home / "berlin.pub")
    assert {standing(item, trusted) for item in received} == {"unsigned"}
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


def test_who_is_not_there_cannot_be_excluded(berlin):
    _, one, _ = berlin
    with pytest.raises(NeedsError, match="no upload of paris"):
        admit([one], exclude=["paris"])
    with pytest.raises(NeedsError, match="nothing left"):
        admit([one], exclude=["berlin"])


def test_several_keys_of_one_client(berlin):
    home, one, key = berlin
    new = generate_key(home / "new.key", "berlin")
    (home / "keys.toml").write_text(f'"berlin" = ["{new}", "{key}"]\n')
    assert standing(one, read_trusted(home / "keys.toml")) == "trusted"
    sign(one, home / "new.key")
    assert standing(one, read_trusted(home / "keys.toml")) == "trusted"


# --- keys -----------------------------------------------------------------------------------------


def test_a_private_key_is_for_its_owner_alone_and_is_never_overwritten(berlin):
    home, _, _ = berlin
    assert stat.S_IMODE((home / "berlin.key").stat().st_mode) == 0o600
    before = (home / "berlin.key").read_bytes()
    for place in ("berlin.key", "berlin.pub"):
        with pytest.raises(TrustError, match=r"is there already|would be called"):
            generate_key(home / place, "berlin")
    assert (home / "berlin.key").read_bytes() == before
    with pytest.raises(TrustError, match="client's name"):
        generate_key(home / "x.key", "../x")
    assert not (home / "x.key").exists()


def test_a_crash_while_a_key_is_written_leaves_nothing(tmp_path, monkeypatch):
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
def test_other_files_are_no_keys(berlin, content, told):
    home, one, _ = berlin
    if content is not None:
        (home / "x.key").write_bytes(content)
    with pytest.raises(TrustError, match=told):
        sign(one, home / "x.key")


def test_keys_of_other_kinds_are_refused(berlin):
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
        ("", "names nobody"),
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
def test_lists_that_cannot_be_used(tmp_path, text, told):
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(TrustError, match=told):
        read_trusted(tmp_path / "keys.toml")


def test_a_missing_list_is_said(tmp_path):
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
def test_a_sig_that_is_none_is_bad(berlin, text, told):
    _, one, _ = berlin
    signature_path(one.path).write_bytes(text)
    assert signer_of(one, None).standing == "bad"
    assert told in signer_of(one, None).reason


@pytest.mark.parametrize(
    "change",
    [{"format": "attar-signature/2"}, {"key": 7}, {"key": "ed25519:AAAA"}, {"key": "rsa:x"}, {"signature": "!"},
     {"signature": ""}, {"signature": base64.b64encode(bytes(64)).decode()}, {"client": None}, {"more": "x"}],
    ids=str,
)  # fmt: skip
def test_a_sig_with_other_entries_is_bad(berlin, change):
    _, one, _ = berlin
    given = json.loads(signature_path(one.path).read_text())
    signature_path(one.path).write_text(json.dumps(given | change))
    assert standing(one) == "bad"


def test_a_folder_or_device_instead_of_a_sig_is_bad(berlin):
    _, one, _ = berlin
    signature_path(one.path).unlink()
    signature_path(one.path).mkdir()
    assert standing(one) == "bad"
    signature_path(one.path).rmdir()
    os.mkfifo(signature_path(one.path))
    assert standing(one) == "bad", "and does not wait for a writer"


ONE = encode(tiny_upload("berlin"))


@settings(max_examples=60)
@given(place=st.integers(0, 10_000), pattern=st.integers(1, 255))
def test_no_flipped_byte_of_a_signature_is_trusted(place, pattern):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    text = bytearray(signing.signature_text("berlin", "0" * 64, private).encode())
    key = json.loads(text)["key"]
    trusted = signing.TrustedKeys({"berlin": (key,)}, "keys.toml")
    assert judged(bytes(text), "berlin", "0" * 64, trusted).standing == "trusted"
    before = json.loads(text)
    text[place % len(text)] ^= pattern
    try:
        same = json.loads(text) == before  # white space, or another spelling of the same letter
    except ValueError:
        same = False
    assert (judged(bytes(text), "berlin", "0" * 64, trusted).standing == "trusted") == same


# --- without the extra ----------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["cryptography"] = None
sys.modules["cryptography.hazmat.primitives.asymmetric"] = None
from pathlib import Path
from attar.uploads.bundle import receive
from attar.cli import main
from attar.uploads.signing import signer_of
(one,) = receive(["berlin.attar"])
assert signer_of(one, None).standing == "not checked"
assert main(["inspect", "berlin.attar"]) == 0
assert main(["inspect", "berlin.attar", "--trusted", "berlin.pub"]) == 2
assert main(["keygen", "x.key"]) == 2
assert main(["sign", "berlin.attar", "--key", "berlin.key"]) == 2
assert not Path("x.key").exists()
"""


def test_without_cryptography_everything_else_works_and_the_message_says_what_to_install(berlin):
    home, _, _ = berlin
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=home, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("attar[sign]") == 3


def test_nothing_of_cryptography_is_imported_before_it_is_needed():
    code = "import sys, attar, attar.cli; assert not any(name.startswith('cryptography') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
