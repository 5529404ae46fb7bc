"""What `attar network server` and `attar network client` start, watch and stop: Flower's own
programs, as processes.

SuperLink keeps its state in memory on purpose. What matters is in the inbox; a SuperLink that
starts afresh registers the same keys again, holds no half-delivered messages of the last one,
and asks those who are missing.
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
from attar.internal.files import write_atomic
from attar.network.inbox import Entry, Inbox, Journal, file_digest
from attar.network.kit import PartnerKit, ServerKit
from attar.network.plan import Plan

START_SECONDS = 90.0
LOOK_SECONDS = 0.5
STARTS = 20  # of SuperLink in one round; a machine that kills it more often needs a person
AGAIN_SECONDS = 3.0
SILENT_SECONDS = 20.0
MOST_LOG = 20_000
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONNECTED = "SuperNode ID"  # what Flower writes once a node is taken in

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
PROMPT = {"PYTHONUNBUFFERED": "1"}  # a log is of use while things happen


class Program:
    """One of Flower's programs: its output in a file, its whole tree ended together."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command, self.log = list(command), log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._begins = output.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stop(self, patience: float = 5.0) -> None:
        """Ask, then insist; Flower's helpers live in sessions of their own, so they are found by
        descent.
        """
        family = [self.pid, *descendants(self.pid)]
        _signal([self.pid], signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        _signal(family, signal.SIGKILL)
        self._process.wait()

    def words(self) -> str:
        """What it has written since it was started, without colours; of much, the end."""
        with self.log.open("rb") as file:
            file.seek(max(self._begins, self.log.stat().st_size - MOST_LOG))
            return COLOUR.sub("", file.read().decode(errors="replace"))

    def last_words(self) -> str:
        return "\n".join(self.words().strip().splitlines()[-12:])


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = {
        int(child): int(parent) for child, parent in (line.split() for line in listed.splitlines())
    }
    found = [pid]
    for known in found:
        found += [
            child for child, parent in parents.items() if parent == known and child not in found
        ]
    return found[1:]


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _environment(home: Path) -> dict[str, str]:
    """Flower finds its helpers on PATH and keeps its files in FLWR_HOME; it reports to nobody."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, **PROMPT, "PATH": path, "FLWR_HOME": str(home)}


@dataclass(frozen=True)
class Sight:
    """What there is to tell: new lines of the journal, and how the round stands."""

    entries: tuple[Entry, ...]
    arrived: Mapping[str, Path]
    closed: bool
    finished: bool


def hold_round(folder: Path, kit: ServerKit, plan: Plan) -> Generator[Sight, None, None]:
    """Start SuperLink and the run, and look twice a second; what dies is started again; the end
    stops everything.
    """
    folder = folder.resolve()
    plan.write(folder / "plan.json")
    inbox = Inbox(plan.inbox)
    journal = Journal(inbox.path / "journal.jsonl")
    told = begun = len(journal.read())
    _refuse_taken_port(kit.port)
    link: Program | None = None
    try:
        for _ in range(STARTS):
            this_start, collector = len(journal.read()), None
            link = _start_round(folder, kit)
            open_by = time.monotonic() + START_SECONDS
            while link.status() is None:
                entries = journal.read()
                since = entries[begun:]
                opened = [entry for entry in entries[this_start:] if entry.event == "open"]
                collector = opened[-1].details["pid"] if opened else None
                closed = any(entry.event == "closed" for entry in since)
                finished = any(entry.event == "finished" for entry in since)
                yield Sight(tuple(entries[told:]), inbox.files(), closed, finished)
                told = len(entries)
                if finished:
                    return
                if collector is not None and not _alive(collector):
                    break
                if collector is None and time.monotonic() > open_by:
                    words = [link.last_words()]
                    raise RunError(
                        "The app that collects uploads did not start.",
                        problems=words,
                        fix=f"see {link.log}",
                    )
                time.sleep(LOOK_SECONDS)
            journal.write(
                "restart",
                why="SuperLink ended" if link.status() is not None else "the collecting app ended",
            )
            if collector is not None:
                _signal(
                    [collector], signal.SIGKILL
                )  # it does not end with a SuperLink that was killed
            link.stop()
            time.sleep(1.0)
        raise RunError(
            f"SuperLink ended {STARTS} times.",
            problems=[link.last_words()] if link else [],
            fix=f"see {folder / 'superlink.log'}",
        )
    finally:
        if link is not None:
            link.stop()


def _start_round(folder: Path, kit: ServerKit) -> Program:
    home = folder / "flower"
    connection = (
        '[superlink]\ndefault = "round"\n\n[superlink.round]\n'
        f'address = "127.0.0.1:{kit.port}"\nroot-certificates = {json.dumps(str(folder / "ca.crt"))}\n'
    )
    write_atomic(home / "config.toml", connection)
    environment = _environment(home)
    command = [
        sys.executable, "-m", "attar.network.link", "--host", "0.0.0.0", "--port", str(kit.port),
        "--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt"),
        "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth", "--disable-runtime-dependency-installation",
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
    """One setting in Flower's notation, which has no way to write a quotation mark."""
    if '"' in str(path) or "\\" in str(path):
        raise RunError(
            f"Flower cannot be told the path {path}.",
            fix="move the folder to a path without quotation marks",
        )
    return f'{name}="{path}"'


def _wait_for_port(link: Program, port: int) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends:
        if link.status() is not None:
            raise RunError(
                "SuperLink did not start.", problems=[link.last_words()], fix=f"see {link.log}"
            )
        if _port_taken(port):
            return
        time.sleep(0.2)
    raise RunError(
        f"SuperLink did not answer within {START_SECONDS:.0f} s.",
        problems=[link.last_words()],
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


def _port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _refuse_taken_port(port: int) -> None:
    ends = (
        time.monotonic() + 5.0
    )  # the SuperLink of a server that was killed a moment ago is about to end
    while _port_taken(port):
        if time.monotonic() > ends:
            raise RunError(
                f"Port {port} is taken on this machine.",
                fix="end what listens there: perhaps this server runs already",
            )
        time.sleep(0.5)


def _alive(pid: int) -> bool:
    """Running, and not only waiting for its parent to notice its end."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


@dataclass(frozen=True)
class NodeSight:
    """How a partner's node stands."""

    delivered: bool
    trouble: str | None = None


def serve_bundle(
    folder: Path, kit: PartnerKit, bundle: Path, train: Sequence[str]
) -> Generator[NodeSight, None, None]:
    """Start the SuperNode and look twice a second until the server's receipt is there; a node
    that ends is started again.
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
                    yield NodeSight(delivered=True)
                    return
                silent = time.monotonic() - begun > SILENT_SECONDS and CONNECTED not in node.words()
                yield NodeSight(
                    delivered=False,
                    trouble=f"no answer from {kit.host}:{kit.port}" if silent else None,
                )
                time.sleep(LOOK_SECONDS)
            trouble = why_it_ended(node.words())
            node.stop()
            yield NodeSight(delivered=False, trouble=trouble)
            time.sleep(AGAIN_SECONDS)
    finally:
        if node is not None:
            node.stop()


def why_it_ended(words: str) -> str:
    """The reason among Flower's many lines; the last of them where there is none."""
    named = re.search(r"Failed to initialize the connection to the SuperLink\.\s*(.+)", words)
    if named:
        return named[1].strip()
    lines = words.strip().splitlines()
    return lines[-1].strip() if lines else "no reason given"


def _start_node(folder: Path, kit: PartnerKit) -> Program:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "attar.network.node", "--superlink", f"{kit.host}:{kit.port}",
        "--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "node.key"),
        "--host", "127.0.0.1", "--port", str(port),
        "--node-config", _setting("settings", folder / "node.json"),
    ]  # fmt: skip
    return Program(command, folder / "supernode.log", _environment(folder / "flower"))


def _has_receipt(receipt: Path, bundle: Path) -> bool:
    """A receipt counts only for the file as it is now."""
    if not receipt.exists() or not bundle.exists():
        return False
    try:
        return bool(json.loads(receipt.read_text())["sha256"] == file_digest(bundle))
    except (ValueError, KeyError, TypeError):
        return False
