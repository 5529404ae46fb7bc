"""Before the command has begun: Ctrl-C while torch is being imported, which takes seconds, and
what must be settled by then.
"""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import attar

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
PLACE, _, NAME = PROJECT["scripts"]["attar"].partition(":")
STARTS = {
    "module": ["-m", "attar"],
    "script": [
        "-c",
        f"import sys; from {PLACE} import {NAME}; sys.exit({NAME}())",
    ],  # what pip writes as bin/attar
}
# In place of torch: says that it is being imported, for as long as it takes. The interrupt comes
# where Python loses exceptions.
SLOW = """
import time
class Lost:
    def __del__(self):
        print("now", flush=True)
        time.sleep(60)
Lost()
"""


@pytest.fixture
def interrupts_are_heard():
    """Also where the tests themselves were started with Ctrl-C ignored, as by ``make test &``: a
    child inherits that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts_are_heard")
@pytest.mark.parametrize("start", STARTS)
def test_main_ctrl_c_during_import(tmp_path, start):
    (tmp_path / "torch.py").write_text(SLOW)
    words = [sys.executable, *STARTS[start], "ls", "nets"]
    settings = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        words, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=50)
    assert (process.returncode, told) == (130, "Stopped.\n")


@pytest.mark.usefixtures("interrupts_are_heard")
def test_main_ctrl_c_in_first_second():
    words = [sys.executable, "-m", "attar", "ls", "nets"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while (
            "torch" not in maps.read_text() and process.poll() is None
        ):  # on a busy machine Python itself may take as long
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=100)
    assert "Traceback" not in told
    assert process.returncode in (130, 0)


def test_package_imports_lazily():
    code = "import sys, attar, attar.__main__; assert 'torch' not in sys.modules; "
    code += "attar.Upload; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    assert all(getattr(attar, name) is not None for name in attar.__all__)
    assert set(attar.__all__) == {*attar._HOME_OF, "__version__"}
    assert set(attar.__all__) <= set(dir(attar))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attar.nothing


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("told", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=str,
)
def test_main_sets_spin_count(tmp_path, start, told, spins):
    (tmp_path / "torch.py").write_text(
        "import os, sys\nprint(os.environ.get('GOMP_SPINCOUNT'))\nsys.exit(0)\n"
    )
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    words = [sys.executable, *STARTS[start], "ls", "nets"]
    done = subprocess.run(
        words,
        env={**plain, **told, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout == f"{spins}\n"
