"""What comes from elsewhere: downloads, programs of the user's own, and the packages underneath."""

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from attar.data import catalogue, fetch
from attar.data.fetch import SourceFile
from attar.errors import DataError, RunError
from attar.privacy import check_program
from attar.testing import tiny_decoder
from attar.uploads import write_bundle
from e2e.commands import run

REPOSITORY = Path(__file__).parents[2]


class Answer:
    """What a host sends."""

    def __init__(self):
        self.headers = {}
        self.left = [b"content"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def read(self, _):
        return self.left.pop() if self.left else b""


@pytest.fixture
def hosts(monkeypatch):
    """Answers of hosts by their address; all others fail. Returns what was asked for."""
    asked = []
    answering = set()

    def urlopen(url, timeout):
        asked.append(url)
        if url not in answering:
            raise OSError("no answer")
        return Answer()

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked, answering


def test_fetch_takes_https_where_the_host_has_it(hosts, tmp_path):
    asked, answering = hosts
    answering |= {"https://host/x", "http://host/x"}
    fetch.fetch(SourceFile("x", "http://host/x"), tmp_path)
    assert asked == ["https://host/x"]


def test_fetch_takes_http_with_a_checksum_alone(hosts, tmp_path):
    asked, answering = hosts
    answering.add("http://host/x")
    with pytest.raises(DataError, match="forged file"):
        fetch.fetch(SourceFile("x", "http://host/x"), tmp_path)
    assert asked == ["https://host/x"]
    with pytest.raises(DataError, match="is not the file"):
        fetch.fetch(SourceFile("x", "http://host/x", "sha256:00"), tmp_path)
    sha256 = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    assert fetch.fetch(SourceFile("x", "http://host/x", f"sha256:{sha256}"), tmp_path).exists()


def test_every_file_over_http_has_a_checksum():
    files = [file for source in catalogue.SOURCES.values() for file in source.files]
    plain = [file for file in files if (file.url or "").startswith("http://")]
    assert plain, "these are the ones that the rule is for"
    assert [file.name for file in plain if file.checksum is None] == []


def test_inception_is_not_run_without_its_hash(tmp_path):
    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Program()).save(str(tmp_path / "net.pt"))
    write_bundle(tmp_path / "a.attar", tiny_decoder("a"))
    words = ("privacy", "a.attar", "--data", "fashion-mini", "--inception", "net.pt")
    told = run(*words, cwd=tmp_path, status=2).stderr
    assert "a program" in told
    with pytest.raises(RunError, match="sha256") as caught:
        check_program(tmp_path / "net.pt", None)
    sha256 = caught.value.fix.rpartition(" ")[2]
    check_program(tmp_path / "net.pt", sha256)
    with pytest.raises(RunError, match="not the file with that hash"):
        check_program(tmp_path / "net.pt", "0" * 64)
    with pytest.raises(RunError, match="cannot be read"):
        check_program(tmp_path / "no.pt", None)


def load_lock():
    spec = importlib.util.spec_from_file_location("lock", REPOSITORY / ".ci" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lock_lines_have_hashes():
    def item(name, version, **info):
        return {"metadata": {"name": name, "version": version}, "download_info": info}

    hashed = {"archive_info": {"hashes": {"sha256": "ab"}}}
    report = {
        "install": [
            item("torch", "2", **hashed),
            item("attar", "0", dir_info={}),
            item("A", "1", **hashed),
        ]
    }
    lock = load_lock()
    assert lock.lock_lines(report) == ["A==1 --hash=sha256:ab", "torch==2 --hash=sha256:ab"]
    with pytest.raises(ValueError, match="clone 1 has no sha256"):
        lock.lock_lines({"install": [item("clone", "1", vcs_info={})]})


def test_security_policy_names_what_is_in_scope():
    text = (REPOSITORY / "SECURITY.md").read_text()
    for words in ("## Report a problem", "in scope", "docs/trust.md", "make sbom", "make lock"):
        assert words in text
    rules = (REPOSITORY / "Makefile").read_text()
    for rule in ("sbom", "audit", "lock", "test-hostile"):
        assert f"\n{rule}: $(READY)\n" in rules


@pytest.mark.slow
def test_sbom_lists_what_is_installed(tmp_path):
    pytest.importorskip("cyclonedx_py", reason="make sbom installs it")
    out = tmp_path / "attar.cdx.json"
    words = [
        "environment",
        "--pyproject",
        str(REPOSITORY / "pyproject.toml"),
        "--output-reproducible",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", *words, "--of", "JSON", "-o", out, sys.executable],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    bill = json.loads(out.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "attar"
    parts = {part["name"].lower(): part for part in bill["components"]}
    for name in ("torch", "numpy", "safetensors", "pillow", "rich", "tyro"):
        assert parts[name]["version"]
        assert parts[name]["purl"].startswith(f"pkg:pypi/{name}@")
