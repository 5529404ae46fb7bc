"""``attar ...`` in a process of its own, with its peak of memory and its time."""

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass

SECONDS = 120


@dataclass(frozen=True)
class Measured:
    """How a command went.

    Attributes:
        status: Its exit status; negative where a signal ended it.
        out: Its standard output.
        err: Its standard error.
        peak: The most memory that it had, in bytes.
        seconds: From its start to its end.
    """

    status: int
    out: str
    err: str
    peak: int
    seconds: float


def run_measured(*arguments, cwd, memory=None):
    """Run ``attar``; with ``memory`` it is refused more bytes of address space."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    begun = time.monotonic()
    # In files, so that waiting for the process cannot wait for a full pipe.
    out, err = cwd / "measured.out", cwd / "measured.err"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "attar", *map(str, arguments)],
            cwd=cwd,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=limit if memory else None,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    scale = 1 if sys.platform == "darwin" else 1024
    return Measured(
        process.returncode,
        out.read_text(),
        err.read_text(),
        usage.ru_maxrss * scale,
        time.monotonic() - begun,
    )
