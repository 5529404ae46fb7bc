"""Packed records: appended and never rewritten, read like files of their own, nothing lost when
a process is killed.
"""

import json
import lzma
import shutil
import subprocess

import pytest

from attar.bench import archive, records
from attar.bench.archive import append_lines, cut_damage, read_lines
from attar.bench.finished import find_finished
from attar.bench.grid import cells_of
from attar.bench.parse import parse_recipe
from attar.bench.records import (
    FAILED,
    FINISHED,
    pack_records,
    packed_file,
    read_records,
    write_record,
)
from attar.cli import main
from attar.errors import RunError


def record(name, recipe="paper/table1", ending=FINISHED, **more):
    return {
        "format": records.FORMAT,
        "name": name,
        "key": name,
        "recipe": recipe,
        "ending": ending,
        **more,
    }


def names(folder):
    return [found["name"] for found in read_records(folder)]


def killed(*words, **flags):
    raise KeyboardInterrupt


def own_files(out):
    return sorted(path.stem for path in (out / "records").glob("*.json"))


# --- the file -------------------------------------------------------------------------------------


def test_append_lines_keeps_bytes_before(tmp_path):
    file = tmp_path / "r.jsonl.xz"
    append_lines(file, ["1", '"é\\u2028"'])
    before = file.read_bytes()
    append_lines(file, ["3"])
    assert file.read_bytes().startswith(before)
    assert read_lines(file) == ["1", '"é\\u2028"', "3"]
    assert lzma.decompress(file.read_bytes()).decode().splitlines() == read_lines(file)
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl.xz"]


def test_read_lines_of_joined_files(tmp_path):
    first, second, both = (tmp_path / f"{name}.jsonl.xz" for name in ("first", "second", "both"))
    append_lines(first, ["1"])
    append_lines(second, ["2"])
    both.write_bytes(first.read_bytes() + second.read_bytes())
    assert read_lines(both) == ["1", "2"]


@pytest.mark.skipif(shutil.which("xz") is None, reason="xz is not installed")
def test_append_lines_is_read_by_xz(tmp_path):
    file = tmp_path / "r.jsonl.xz"
    append_lines(file, ["1"])
    append_lines(file, ["2"])
    assert (
        subprocess.run(["xz", "-dc", file], capture_output=True, text=True, check=True).stdout
        == "1\n2\n"
    )


@pytest.mark.parametrize("damage", ["torn", "changed", "text"])
def test_cut_damage(tmp_path, damage):
    file = tmp_path / "r.jsonl.xz"
    append_lines(file, ["1", "2"])
    whole = file.read_bytes()
    append_lines(file, ["3"])
    end = file.read_bytes()[len(whole) :]
    broken = {
        "torn": end[:-5],
        "changed": end[:30] + bytes([end[30] ^ 255]) + end[31:],
        "text": b'{"name": 3}\n',
    }[damage]
    file.write_bytes(whole + broken)
    for attempt in (read_lines, lambda path: append_lines(path, ["4"])):
        with pytest.raises(RunError) as raised:
            attempt(file)
        assert f"{file} is damaged: the 2 records before byte {len(whole)} can be read" in str(
            raised.value
        )
        assert f"{len(broken)} bytes after it" in str(raised.value)
        assert "attar report FOLDER --pack" in str(raised.value)
    assert file.read_bytes() == whole + broken, "nothing is lost by trying"
    assert "2 records" in cut_damage(file)
    assert file.read_bytes() == whole
    assert (tmp_path / "r.jsonl.xz.damaged").read_bytes() == broken
    assert cut_damage(file) is None
    append_lines(file, ["4"])
    assert read_lines(file) == ["1", "2", "4"]


def test_append_lines_killed_keeps_file(tmp_path, monkeypatch):
    file = tmp_path / "r.jsonl.xz"
    append_lines(file, ["1"])
    before = file.read_bytes()
    monkeypatch.setattr("attar.internal.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        append_lines(file, ["2"])
    assert file.read_bytes() == before


# --- records --------------------------------------------------------------------------------------


def test_read_records_order(tmp_path):
    for number, name in enumerate(("b", "a", "d", "c")):
        write_record(tmp_path, record(name, recipe=f"paper/table{number % 2}", accuracy=number / 7))
    before = read_records(tmp_path)
    packing = pack_records(tmp_path)
    assert packing.records == 4
    assert not packing.damage
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == [
        "paper-table0.jsonl.xz",
        "paper-table1.jsonl.xz",
    ]
    assert read_records(tmp_path) == before
    write_record(tmp_path, record("bb"))
    assert names(tmp_path) == ["a", "b", "bb", "c", "d"]
    pack_records(tmp_path)
    assert names(tmp_path) == ["a", "b", "bb", "c", "d"]
    assert names(tmp_path / "records") == ["a", "b", "bb", "c", "d"]
    assert pack_records(tmp_path) == records.Packing(0, (), ())


def test_pack_records_of_folders_below(tmp_path):
    for out in (tmp_path / "b", tmp_path / "a"):
        write_record(out, record("same", where=out.name))
    (tmp_path / "a" / "other.json").write_text("[]")
    assert [found["where"] for found in read_records(tmp_path)] == ["a", "b"]
    pack_records(tmp_path)
    assert [found["where"] for found in read_records(tmp_path)] == ["a", "b"]
    assert (tmp_path / "a" / "other.json").exists()


def test_pack_records_keeps_failed(tmp_path):
    write_record(tmp_path, record("failed", ending=FAILED, error="no"))
    write_record(tmp_path, record("fine"))
    assert pack_records(tmp_path).records == 1
    assert own_files(tmp_path) == ["failed"]
    assert [found["ending"] for found in read_records(tmp_path)] == [FAILED, FINISHED]


def test_read_records_newest_counts(tmp_path):
    write_record(tmp_path, record("a", accuracy=0.1))
    pack_records(tmp_path)
    write_record(tmp_path, record("a", accuracy=0.2))
    assert [found["accuracy"] for found in read_records(tmp_path)] == [0.2], (
        "a file of its own before a packed line"
    )
    pack_records(tmp_path)
    (file,) = (tmp_path / "records").iterdir()
    assert [json.loads(line)["accuracy"] for line in read_lines(file)] == [0.1, 0.2]
    assert [found["accuracy"] for found in read_records(tmp_path)] == [0.2], (
        "a later line before an earlier one"
    )


def test_pack_records_appends_to_first_file(tmp_path):
    write_record(tmp_path, record("shared", recipe="first", accuracy=0.1))
    pack_records(tmp_path)
    # the same run, asked for by another recipe
    write_record(tmp_path, record("shared", recipe="a", accuracy=0.2))
    assert pack_records(tmp_path).files == (packed_file(tmp_path, "first"),)
    assert [(found["recipe"], found["accuracy"]) for found in read_records(tmp_path)] == [
        ("a", 0.2)
    ]


def test_pack_records_killed_before_removal(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write_record(tmp_path, record(name))
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            pack_records(tmp_path)
    assert own_files(tmp_path) == ["a", "b"]
    assert names(tmp_path) == ["a", "b"]
    packing = pack_records(tmp_path)
    assert packing == records.Packing(2, (), ()), "what is packed already is not appended again"
    assert not own_files(tmp_path)
    assert len(read_lines(packed_file(tmp_path, "paper/table1"))) == 2


def test_pack_records_killed_before_append(tmp_path, monkeypatch):
    write_record(tmp_path, record("a"))
    with monkeypatch.context() as patched:
        patched.setattr(records, "append_lines", killed)
        with pytest.raises(KeyboardInterrupt):
            pack_records(tmp_path)
    assert own_files(tmp_path) == names(tmp_path) == ["a"]


def test_pack_records_keeps_new_record(tmp_path, monkeypatch):
    write_record(tmp_path, record("a", accuracy=0.1))

    def appended(path, lines):
        append_lines(path, lines)
        write_record(tmp_path, record("a", accuracy=0.2))

    with monkeypatch.context() as patched:
        patched.setattr(records, "append_lines", appended)
        assert pack_records(tmp_path).records == 0
    assert [found["accuracy"] for found in read_records(tmp_path)] == [0.2]
    assert own_files(tmp_path) == ["a"]


def test_read_records_while_packing(tmp_path, monkeypatch):
    write_record(tmp_path, record("a"))
    real = records.read_record

    def late(path):
        monkeypatch.setattr(records, "read_record", real)
        pack_records(tmp_path)
        return real(path)

    monkeypatch.setattr(records, "read_record", late)
    assert names(tmp_path) == ["a"]
    assert not own_files(tmp_path)


def test_pack_records_refuses_broken_record(tmp_path):
    write_record(tmp_path, record("a"))
    (tmp_path / "records" / "b.json").write_text('{"format": ')
    for attempt in (read_records, pack_records):
        with pytest.raises(RunError, match=r"b\.json cannot be read"):
            attempt(tmp_path)
    assert own_files(tmp_path) == ["a", "b"]
    (tmp_path / "records" / "b.json").unlink()
    append_lines(packed_file(tmp_path, "x"), ['{"name": "c"}'])
    with pytest.raises(RunError, match=r"x\.jsonl\.xz is no record of attar bench"):
        read_records(tmp_path)


def test_find_finished_of_other_recipe(tmp_path, monkeypatch):
    rows = {
        "methods": {"FedAvg": {"method": "fedavg"}},
        "federation": {"data": "fashion-mini", "clients": 3},
    }
    first, second = (
        parse_recipe({"title": name, "source": "nowhere", **rows}, name)
        for name in ("first", "second")
    )
    (cell,), (same,) = cells_of(first), cells_of(second)
    expected = record(cell.name, recipe="first", versions={}, settings={}) | {"key": cell.key}
    write_record(tmp_path, expected)
    pack_records(tmp_path)
    assert find_finished(tmp_path, cell) == find_finished(tmp_path, same) == expected
    reads = []
    monkeypatch.setattr(
        records, "read_lines", lambda path: reads.append(path) or archive.read_lines(path)
    )
    find_finished(tmp_path, cell)
    assert not reads, "a file that has not changed is not read again"
    write_record(tmp_path, {**expected, "ending": FAILED, "error": "no"})
    assert find_finished(tmp_path, cell) is None, "it ran again since, and failed"


# --- the command ----------------------------------------------------------------------------------


def test_main_report_packs(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    recipe.write_text('title = "t"\nsource = "s"\n[methods.A]\nmethod = "fedavg"\n')
    out = tmp_path / "bench"
    (out / "records").mkdir(parents=True)
    words = [
        "report",
        str(out),
        "-o",
        str(tmp_path / "page.html"),
        "--recipe",
        str(recipe),
        "--pack",
    ]
    assert main(words) == 0
    assert "Records that were packed: 0." in capsys.readouterr().out
    file = packed_file(out, "r")
    file.write_bytes(b"no records")
    assert main(words[:-1]) == 2
    assert "is damaged: the 0 records before byte 0" in " ".join(
        capsys.readouterr().err.replace("│", " ").split()
    )
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["packed"] == 0
    assert "r.jsonl.xz was damaged" in printed.err.replace("\n", "")
    assert file.with_name("r.jsonl.xz.damaged").read_bytes() == b"no records"
