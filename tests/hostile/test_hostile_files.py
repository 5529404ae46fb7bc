"""Files as files: larger than what they hold, changed while they are read, many at once."""

import gzip
import json
import os
import struct
import zipfile

import pytest
from measured import run_measured

from attar.data import archive
from attar.data.archive import open_archive, read_member
from attar.data.npz import read_npz
from attar.errors import BundleError, DataError, SettingsError, TrustError
from attar.testing import tiny_upload
from attar.uploads import (
    check_inspected,
    encode,
    read_bundle,
    read_bundles,
    reading,
    receive,
    write_bundle,
)
from e2e.commands import run
from forge import pack, unpack
from fuzz.corpus import peak

pytestmark = pytest.mark.hostile

GIB = 2**30
MIB = 2**20
GOOD = encode(tiny_upload("good", "lenet5"))


def sparse(path, start, size=3 * GIB):
    """A file of a few bytes that says it is large: the rest is a hole on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


def header_without(size):
    header, _, _ = unpack(GOOD)
    return pack(json.dumps(header), b"")[:size]


STARTS = {
    "zeros": (b"", "damaged"),
    "another format": (b"\x7fELF\x02\x01\x01", "larger than"),
    "a pickle": (b"\x80\x04\x95", "pickle"),
    "a header that is cut": (len(GOOD).to_bytes(8, "little") + b"{", "damaged"),
    "a good header, padded": (header_without(None), "cut off or padded"),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_file_of_3_gib_is_refused_by_its_first_bytes(tmp_path, name):
    start, words = STARTS[name]
    path = sparse(tmp_path / "evil.attar", start)
    read_bundle_of_nothing(tmp_path)
    before = peak(anew=True)
    with pytest.raises(BundleError, match=words):
        read_bundle(path)
    assert peak() - before < 64 * MIB


def read_bundle_of_nothing(folder):
    """Load what reading needs, so that it is not counted."""
    (folder / "good.attar").write_bytes(GOOD)
    read_bundle(folder / "good.attar")


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.attar"
    path.write_bytes(GOOD)
    honest = reading.read_header

    def change(*arguments):
        with path.open("r+b") as file:
            file.seek(len(GOOD) - 4)
            file.write(b"\x00\x00\x00\x00")
        return honest(*arguments)

    monkeypatch.setattr(reading, "read_header", change)
    with pytest.raises(BundleError, match="changed while it was read"):
        read_bundle(path)


def test_a_file_that_is_exchanged_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """What was read is of the first file, whose entry in the folder is gone: that shows, too."""
    path, other = tmp_path / "x.attar", tmp_path / "y.attar"
    path.write_bytes(GOOD)
    other.write_bytes(encode(tiny_upload("other", "resnet20")))
    honest = reading.read_header

    def exchange(*arguments):
        os.replace(other, path) if other.exists() else None
        return honest(*arguments)

    monkeypatch.setattr(reading, "read_header", exchange)
    with pytest.raises(BundleError, match="changed while it was read"):
        read_bundle(path)
    assert read_bundle(path).client == "other"


def test_weights_in_a_file_that_was_exchanged_are_not_used(tmp_path):
    path = tmp_path / "x.attar"
    path.write_bytes(GOOD)
    (upload,) = read_bundles([path], resident=False)
    status = path.stat()
    with path.open("r+b") as file:  # the same inode and size
        file.seek(len(GOOD) - 4)
        file.write(b"\x00\x00\x80\x3f")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # and the time put back
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    with pytest.raises(BundleError, match="changed while it was in use"):
        upload.parts["classifier"].state["head.weight"]


def test_weights_in_a_file_are_those_that_were_checked(tmp_path, monkeypatch):
    """A file that is exchanged after it was checked, before its stamp was taken."""
    path = tmp_path / "x.attar"
    path.write_bytes(GOOD)
    honest = reading._read_content

    def exchange(file):
        read = honest(file)
        path.with_suffix(".new").write_bytes(encode(tiny_upload("evil", "lenet5")))
        os.replace(path.with_suffix(".new"), path)
        return read

    monkeypatch.setattr(reading, "_read_content", exchange)
    (upload,) = read_bundles([path], resident=False)
    with pytest.raises(BundleError, match="changed while it was in use"):
        upload.parts["classifier"].state["head.weight"]


def test_fuse_refuses_files_that_changed_since_they_were_inspected(tmp_path):
    for client in ("a", "b"):
        write_bundle(tmp_path / f"{client}.attar", tiny_upload(client, "lenet5"))
    seen = tmp_path / "seen.json"
    seen.write_text(run("inspect", "a.attar", "b.attar", "--json", cwd=tmp_path).stdout)
    check_inspected(receive([tmp_path / "a.attar"]), seen)
    write_bundle(tmp_path / "a.attar", tiny_upload("a", "resnet20"))
    with pytest.raises(TrustError, match="not the file of a that was inspected"):
        check_inspected(receive([tmp_path / "a.attar"]), seen)
    told = run(
        "fuse",
        "a.attar",
        "b.attar",
        "--inspected",
        "seen.json",
        "--out",
        "x",
        cwd=tmp_path,
        status=2,
    )
    assert "a.attar: not the file of a" in told.stderr
    assert "b.attar" not in told.stderr
    write_bundle(tmp_path / "c.attar", tiny_upload("c", "lenet5"))
    with pytest.raises(TrustError, match="does not list client c"):
        check_inspected(receive([tmp_path / "c.attar"]), seen)
    for text in ("[1]", "{", '{"a": 1}', "[{}]"):
        seen.write_text(text)
        with pytest.raises(SettingsError, match="is not what"):
            check_inspected([], seen)


@pytest.mark.parametrize("kind", ["fifo", "folder", "zero", "loop", "null"])
def test_what_is_no_plain_file_is_refused(tmp_path, kind):
    path = tmp_path / "x.attar"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(BundleError):
        read_bundle(path)


@pytest.mark.slow
def test_inspect_of_many_files_keeps_no_weights(tmp_path):
    """Each file holds 5 MB of weights: 60 more of them hold 300 MB."""
    for number in range(80):
        write_bundle(
            tmp_path / f"{number:03d}.attar", tiny_upload(f"c-{number}", "mlp:hidden=1000")
        )
    files = sorted(path.name for path in tmp_path.glob("*.attar"))
    more = sum((tmp_path / file).stat().st_size for file in files[20:])
    assert more > 250 * MIB
    few = run_measured("inspect", *files[:20], "--json", cwd=tmp_path)
    many = run_measured("inspect", *files, "--json", cwd=tmp_path)
    assert (few.status, many.status) == (0, 0), many.err
    assert many.peak - few.peak < more / 2
    assert len(json.loads(many.out)) == 80


# --- archives of data -----------------------------------------------------------------------------


def bomb(path, name, announced):
    """A zip file whose member announces many bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, bytes(1000))
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", announced)
    path.write_bytes(data)
    return path


def test_zip_with_a_member_of_5_gib_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "LARGEST", GIB)
    with pytest.raises(DataError, match="unpacks to more than 1 GiB"):
        open_archive(bomb(tmp_path / "x.zip", "a", 2 * GIB))
    with pytest.raises(DataError, match="unpacks to more than 1 GiB"):
        read_npz(bomb(tmp_path / "x.npz", "x.npy", 2 * GIB), "x")


def test_zip_is_not_read_beyond_what_it_announces(tmp_path):
    path = bomb(tmp_path / "x.zip", "a", 10)
    with pytest.raises(DataError):
        read_member(open_archive(path), "a")


def test_gzip_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(archive, "LARGEST", MIB)
    before = peak(anew=True)
    with pytest.raises(OSError, match="unpacks to more than"):
        archive.decompress(gzip.compress(bytes(64 * MIB)))
    assert peak() - before < 128 * MIB
    assert archive.decompress(gzip.compress(b"x" * 100)) == b"x" * 100
