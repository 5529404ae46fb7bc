"""Processes of one test that talk to each other on this machine, and a connection that breaks."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from attar.network.hosting import find_descendants

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class World:
    """Processes of one test; none outlives it."""

    def __init__(self, home):
        self.home, self.started = home, []

    def attar(self, *words, name):
        return self.start([sys.executable, "-m", "attar", *map(str, words)], name)

    def start(self, command, name):
        with (self.home / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                command, cwd=self.home, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip
        self.started.append(process)
        return process

    def said(self, name):
        path = self.home / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def kill(self, process, number=signal.SIGKILL):
        for pid in [process.pid, *find_descendants(process.pid)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def end(self):
        for process in self.started:
            self.kill(process, signal.SIGCONT)
            self.kill(process)
            process.wait(20)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.end()


def until(what, seconds, why):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if found := what():
            return found
        time.sleep(0.1)
    pytest.fail(why() if callable(why) else why)


class Line:
    """A connection to the server that stops in the middle: after so many bytes nothing more goes
    through.
    """

    def __init__(self, port, limit):
        self.server, self.limit, self.passed, self.ends = port, limit, 0, []
        self.broken = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.server))
            self.ends += [near, far]
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, one, other, counted):
        try:
            while data := one.recv(65536):
                self.passed += len(data) if counted else 0
                if self.passed > self.limit:
                    self.broken.set()
                    return
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self):
        self.listener.close()
        for end in self.ends:
            end.close()
