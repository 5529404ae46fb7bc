"""Two benches in one folder: the second waits for what the first is doing, and neither fails."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from attar.bench.locks import hold, identify
from attar.errors import OutOfTime

pytestmark = pytest.mark.hostile

RECIPE = """
title = "two at once"
source = "nowhere"
seeds = [0, 1]

[federation]
data = "fashion-mini"
rule = "iid"
clients = 2
net = "mlp:hidden=8,layers=1"
training = { epochs = 1 }

[methods.ensemble]
method = "ensemble"

[methods.fedavg]
method = "fedavg"
"""


def test_hold_waits_until_the_lock_is_free(tmp_path):
    lock = tmp_path / "folder" / "x.lock"
    lock.parent.mkdir()
    lock.write_text(f"{identify(os.getppid())}\n")
    threading.Timer(0.6, lock.unlink).start()
    begun = time.monotonic()
    with hold(lock) as waited:
        assert waited
        assert time.monotonic() - begun >= 0.5
        assert lock.read_text().strip() == identify(os.getpid())
    assert not lock.exists()
    with hold(lock) as waited:
        assert not waited


def test_hold_waits_no_longer_than_the_deadline(tmp_path):
    lock = tmp_path / "x.lock"
    lock.write_text(f"{identify(os.getppid())}\n")
    with pytest.raises(OutOfTime, match=f"Process {os.getppid()}"), hold(lock, time.time() - 1):
        pass
    assert lock.exists()


@pytest.mark.parametrize("held", ["", "nonsense", "1 another-machine 1", "999999999 x 1"])
def test_hold_takes_the_lock_of_a_dead_process(tmp_path, held):
    lock = tmp_path / "x.lock"
    lock.write_text(held)
    with hold(lock) as waited:
        assert not waited
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_benches_in_one_folder(tmp_path):
    recipe = tmp_path / "two.toml"
    recipe.write_text(RECIPE)
    words = [sys.executable, "-m", "attar", "bench", "two.toml", "--out", "out", "--json"]
    words += ["--engine", "processes", "--device", "cpu"]
    both = [
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=500) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    for out, _ in told:
        assert json.loads(out)["failed"] in ({}, 0, [])
    records = [
        json.loads(path.read_text()) for path in (tmp_path / "out" / "records").glob("*.json")
    ]
    assert len(records) == 4
    assert {record["ending"] for record in records} == {"finished"}
