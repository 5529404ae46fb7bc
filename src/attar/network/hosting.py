"""Start, watch and stop Flower's own programs, as processes of `attar network`.

SuperLink keeps its state in memory on purpose. What matters is in the inbox; a new SuperLink
registers the same keys again, has no half-delivered messages of the last one, and asks those who
are missing.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attar.errors import RunError
from attar.inbox.folder import Entry, Inbox, Journal, hash_file
from attar.internal.files import write_atomic
from attar.network.kit import PartnerKit, ServerKit
from attar.network.link import KEYS
from attar.network.node import REFUSED, another_app
from attar.network.plan import Plan

START_SECONDS = 90.0  # that SuperLink and its app may take to start
POLL_SECONDS = 0.5
STARTS = 20  # of SuperLink in one round; where it ends more often somebody has to look why
RESTART_SECONDS = 3.0  # before a node that ended is started again
SILENT_SECONDS = 20.0  # without connection, before that is reported
MOST_LOG = 20_000  # bytes of a log that are read
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONNECTED = "SuperNode ID"  # Flower writes it once a node is connected

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # so that a log can be read while the program runs


class Program:
    """A running program of Flower; its whole process tree is ended together.

    Attributes:
        log: The file of its output.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._begins = output.tell()
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def stop(self, patience: float = 5.0) -> None:
        """End the program and its children, by force after ``patience`` seconds.

        Flower's helpers have sessions of their own, so they are found by their parents.
        """
        family = [self.pid, *find_descendants(self.pid)]
        _send_signal([self.pid], signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        _send_signal(family, signal.SIGKILL)
        self._process.wait()

    def output(self) -> str:
        """What it has written, without colours; only the end of a long log."""
        with self.log.open("rb") as file:
            file.seek(max(self._begins, self.log.stat().st_size - MOST_LOG))
            return COLOUR.sub("", file.read().decode(errors="replace"))

    def last_output(self) -> str:
        """The last lines that it has written."""
        return "\n".join(self.output().strip().splitlines()[-12:])


def find_descendants(pid: int) -> list[int]:
    """Process ids of the children of a process, their children, and so on."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = {
        int(child): int(parent) for child, parent in (line.split() for line in listed.splitlines())
    }
    family = [pid]
    for member in family:
        family += [
            child for child, parent in parents.items() if parent == member and child not in family
        ]
    return family[1:]


def _send_signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _environment(home: Path) -> dict[str, str]:
    """Flower finds its helpers on PATH and keeps its files in FLWR_HOME; it reports to nobody."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, **UNBUFFERED, "PATH": path, "FLWR_HOME": str(home)}


@dataclass(frozen=True)
class RoundStatus:
    """The state of a round.

    Attributes:
        entries: Lines of the journal since the last status.
        arrived: The files that arrived in time, by partner.
        closed: Whether later uploads are late.
        finished: Whether the round is over.
    """

    entries: tuple[Entry, ...]
    arrived: Mapping[str, Path]
    closed: bool
    finished: bool


def run_round(folder: Path, kit: ServerKit, plan: Plan) -> Generator[RoundStatus, None, None]:
    """Run a round: start SuperLink and the app, and start again what ends before the round does.

    Args:
        folder: The server's folder.
        kit: What it says.
        plan: Of the round.

    Yields:
        The state of the round, every ``POLL_SECONDS``.

    Raises:
        RunError: The port is in use, or a program does not start or ends too often.
    """
    folder = folder.resolve()
    plan.write(folder / "plan.json")
    inbox = Inbox(plan.inbox)
    journal = Journal(inbox.path / "journal.jsonl")
    begun = len(journal.read())
    yielded = begun  # lines of the journal
    _check_port(kit.port)
    link: Program | None = None
    try:
        for _ in range(STARTS):
            this_start = len(journal.read())
            collector = None
            link = _start_round(folder, kit)
            open_by = time.monotonic() + START_SECONDS
            while link.status() is None:
                entries = journal.read()
                since = entries[begun:]
                opened = [entry for entry in entries[this_start:] if entry.event == "open"]
                collector = opened[-1].details["pid"] if opened else None
                closed = any(entry.event == "closed" for entry in since)
                finished = any(entry.event == "finished" for entry in since)
                yield RoundStatus(tuple(entries[yielded:]), inbox.files(), closed, finished)
                yielded = len(entries)
                if finished:
                    return
                if collector is not None and not _alive(collector):
                    break
                if collector is None and time.monotonic() > open_by:
                    raise RunError(
                        "The app that collects uploads did not start.",
                        problems=[link.last_output()],
                        fix=f"see {link.log}",
                    )
                time.sleep(POLL_SECONDS)
            journal.write(
                "restart",
                why="SuperLink ended" if link.status() is not None else "the collecting app ended",
            )
            if collector is not None:  # it does not end with a SuperLink that was killed
                _send_signal([collector], signal.SIGKILL)
            link.stop()
            time.sleep(1.0)
        raise RunError(
            f"SuperLink ended {STARTS} times.",
            problems=[link.last_output()] if link else [],
            fix=f"see {folder / 'superlink.log'}",
        )
    finally:
        if link is not None:
            link.stop()


def _start_round(folder: Path, kit: ServerKit) -> Program:
    home = folder / "flower"
    connection = (
        '[superlink]\ndefault = "round"\n\n[superlink.round]\n'
        f'address = "127.0.0.1:{kit.port}"\nroot-certificates = '
        f"{json.dumps(str(folder / 'ca.crt'))}\n"
    )
    write_atomic(home / "config.toml", connection)
    environment = {**_environment(home), KEYS: str(folder / "keys")}
    command = [
        sys.executable, "-m", "attar.network.link", "--host", "0.0.0.0", "--port", str(kit.port),
        "--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt"),
        "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    link = Program(command, folder / "superlink.log", environment)
    try:
        _wait_for_port(link, kit.port)
        for name in kit.partners:
            key = str(folder / "keys" / f"{name}.pub")
            _flwr(
                ["supernode", "register", key, "round", "--name", name],
                environment,
                f"register the key of {name}",
            )
        plan = _setting("plan", folder / "plan.json")
        _flwr(
            ["run", str(folder / "app"), "round", "--run-config", plan],
            environment,
            "start the run",
        )
    except BaseException:
        link.stop()
        raise
    return link


def _setting(name: str, path: Path) -> str:
    """One setting in Flower's notation, which cannot express a quotation mark."""
    if '"' in str(path) or "\\" in str(path):
        raise RunError(
            f"Flower does not accept the path {path}.",
            fix="move the folder to a path without quotation marks",
        )
    return f'{name}="{path}"'


def _wait_for_port(link: Program, port: int) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends:
        if link.status() is not None:
            raise RunError(
                "SuperLink did not start.", problems=[link.last_output()], fix=f"see {link.log}"
            )
        if _port_answers(port):
            return
        time.sleep(0.2)
    raise RunError(
        f"SuperLink did not answer within {START_SECONDS:.0f} s.",
        problems=[link.last_output()],
        fix=f"see {link.log}",
    )


def _flwr(arguments: Sequence[str], environment: Mapping[str, str], purpose: str) -> None:
    command = [str(Path(sys.executable).parent / "flwr"), *arguments]
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=START_SECONDS
    )
    if done.returncode != 0:
        raise RunError(
            f"Flower could not {purpose}.", problems=[(done.stderr or done.stdout).strip()[-1000:]]
        )


def _port_answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _check_port(port: int) -> None:
    # The SuperLink of a server that was killed a moment ago may still be ending.
    ends = time.monotonic() + 5.0
    while _port_answers(port):
        if time.monotonic() > ends:
            raise RunError(
                f"Port {port} is in use on this machine.",
                fix="end the program that uses it: perhaps this server runs already",
            )
        time.sleep(0.5)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


@dataclass(frozen=True)
class NodeStatus:
    """The state of a partner's node.

    Attributes:
        delivered: Whether the server has the upload.
        trouble: Why the node is not connected; None where it is, or nothing is known yet.
    """

    delivered: bool
    trouble: str | None = None


def serve_bundle(
    folder: Path, kit: PartnerKit, bundle: Path, train: Sequence[str]
) -> Generator[NodeStatus, None, None]:
    """Run the partner's node until the server's receipt is there; start it again where it ends.

    Args:
        folder: The partner's folder.
        kit: What it says.
        bundle: The upload file; where it is missing it is trained when the server asks.
        train: The arguments of that training.

    Yields:
        The state of the node, every ``POLL_SECONDS``.

    Raises:
        TrustError: The server sends another app than attar's.
    """
    folder = folder.resolve()
    receipt = folder / "receipt.json"
    settings = {"bundle": str(bundle.resolve()), "receipt": str(receipt), "train": list(train)}
    write_atomic(folder / "node.json", json.dumps(settings, indent=2) + "\n")
    node: Program | None = None
    try:
        while True:
            node = _start_node(folder, kit)
            begun = time.monotonic()
            while node.status() is None:
                if _has_receipt(receipt, bundle):
                    yield NodeStatus(delivered=True)
                    return
                silent = time.monotonic() - begun > SILENT_SECONDS
                silent = silent and CONNECTED not in node.output()
                trouble = f"no answer from {kit.host}:{kit.port}" if silent else None
                yield NodeStatus(delivered=False, trouble=trouble)
                time.sleep(POLL_SECONDS)
            if node.status() == REFUSED:
                raise another_app()
            trouble = find_reason(node.output())
            node.stop()
            yield NodeStatus(delivered=False, trouble=trouble)
            time.sleep(RESTART_SECONDS)
    finally:
        if node is not None:
            node.stop()


def find_reason(output: str) -> str:
    """Why a node ended: the reason among Flower's lines, or the last of them."""
    named = re.search(r"Failed to initialize the connection to the SuperLink\.\s*(.+)", output)
    if named:
        return named[1].strip()
    lines = output.strip().splitlines()
    return lines[-1].strip() if lines else "no reason given"


def _start_node(folder: Path, kit: PartnerKit) -> Program:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "attar.network.node", "--superlink", f"{kit.host}:{kit.port}",
        "--root-certificates", str(folder / "ca.crt"),
        "--auth-supernode-private-key", str(folder / "node.key"),
        "--host", "127.0.0.1", "--port", str(port),
        "--node-config", _setting("settings", folder / "node.json"),
    ]  # fmt: skip
    return Program(command, folder / "supernode.log", _environment(folder / "flower"))


def _has_receipt(receipt: Path, bundle: Path) -> bool:
    """Whether the server has the file as it is now."""
    if not receipt.exists() or not bundle.exists():
        return False
    try:
        return bool(json.loads(receipt.read_text())["sha256"] == hash_file(bundle))
    except (ValueError, KeyError, TypeError):
        return False
