"""What `attar network init`, `server` and `client` do, told line by line to a callable;
`cli/network.py` prints.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from attar.errors import BundleError, RunError, SettingsError, Stopped
from attar.internal.text import human_bytes
from attar.methods import find_method
from attar.network import require_flower
from attar.network.flags import Client, Init, Server
from attar.network.hosting import NodeSight, hold_round, serve_bundle
from attar.network.inbox import Entry, Inbox, Journal
from attar.network.kit import read_partner_kit, read_server_kit, write_kits
from attar.network.plan import Plan
from attar.running import ProgressReport, Watch
from attar.settings import configure, pairs
from attar.uploads import read_bundle

Say = Callable[[str], None]


def init(flags: Init) -> dict[str, Any]:
    """Write the folders; the commands for each."""
    require_flower()
    kit = write_kits(flags.out, flags.address, flags.partners)
    return {
        "server": {
            "folder": str(flags.out / "server"),
            "command": "attar network server server --minutes 60",
        },
        "partners": {
            name: {
                "folder": str(flags.out / name),
                "command": f"attar network client {name} --bundle {name}.attar",
                "key": "node.key"
                if (flags.out / name / "node.key").exists()
                else "the partner's own, to be put there as node.key",
            }
            for name in kit.partners
        },
    }


def server(flags: Server, say: Say, watch: Watch) -> dict[str, Any]:
    """Hold one round; what came of it."""
    require_flower()
    kit = read_server_kit(flags.folder)
    if flags.minutes <= 0 or flags.late < 0:
        raise SettingsError(
            "There is no time for a round.", fix="--minutes above 0, --late 0 or more"
        )
    if flags.fuse is not None:
        configure(
            find_method(flags.fuse), pairs(flags.settings), of=f"method {flags.fuse}"
        )  # a slip shall not wait an hour
    inbox = Inbox((flags.inbox or flags.folder / "inbox").resolve())
    begun = time.time()
    deadline = begun + 60 * flags.minutes
    quorum = len(kit.partners) if flags.quorum is None else flags.quorum
    plan = Plan(kit.partners, quorum, deadline, 60 * flags.late, str(inbox.path))
    journal = Journal(inbox.path / "journal.jsonl")
    first = len(journal.read())
    fusion: subprocess.Popen[bytes] | None = None
    command: list[str] | None = None
    closed = False
    try:
        with closing(hold_round(flags.folder, kit, plan)) as sights:
            for sight in sights:
                for entry in sight.entries:
                    if line := tell(entry, len(plan.partners)):
                        say(line)
                if not sight.closed:
                    there, left = len(sight.arrived), max(0.0, plan.deadline - time.time())
                    watch(
                        ProgressReport(
                            "arrived",
                            there,
                            len(plan.partners),
                            there / len(plan.partners),
                            left,
                            {},
                        )
                    )
                elif not closed:
                    closed = True
                    if plan.missing(sight.arrived) and not sight.finished and flags.late > 0:
                        say(
                            f"Late uploads are still taken for {flags.late:g} min. Ctrl-C ends that."
                        )
                    if sight.arrived:
                        command = fuse_command(flags, sight.arrived)
                        fusion = (
                            None
                            if flags.fuse is None
                            else start_fusion(command, flags.out, say, quiet=flags.json)
                        )
    except KeyboardInterrupt:
        if closed:
            return _outcome(
                plan,
                inbox,
                journal.read()[first:],
                command,
                None if fusion is None else fusion.wait(),
            )
        fix = "run the same command again: it asks those who are missing"
        raise Stopped(f"Stopped by Ctrl-C. What arrived is in {inbox.path}.", fix=fix) from None
    status = None if fusion is None else fusion.wait()
    return _outcome(plan, inbox, journal.read()[first:], command, status)


def _outcome(
    plan: Plan, inbox: Inbox, entries: list[Entry], command: list[str] | None, status: int | None
) -> dict[str, Any]:
    arrived, late = inbox.files(), inbox.late_files()
    closed = next((entry.details["reason"] for entry in entries if entry.event == "closed"), None)
    missing = [name for name in plan.missing(arrived) if name not in late]
    return {
        "closed": closed,
        "arrived": {
            name: arrived[name].stat().st_size for name in plan.partners if name in arrived
        },
        "late": {name: late[name].stat().st_size for name in plan.partners if name in late},
        "missing": {name: why_missing(name, entries) for name in missing},
        "inbox": str(inbox.path),
        "fuse": None if command is None else shlex.join(["attar", *command]),
        "fuse_status": status,
    }


def why_missing(name: str, entries: list[Entry]) -> str:
    """The last that was heard of a partner."""
    mine = [
        entry
        for entry in entries
        if entry.partner == name and entry.event in ("asked", "failed", "refused")
    ]
    if not mine:
        return "never connected"
    last = mine[-1] if mine[-1].event != "asked" or len(mine) == 1 else mine[-2]
    if last.event == "asked":
        return "was asked and has not answered"
    return f"{last.event}: {last.details['why']}"


def tell(entry: Entry, of: int) -> str | None:
    """A line of the journal for people; None for what only the journal needs."""
    clock = time.strftime("%H:%M:%S", time.localtime(entry.time))
    details = entry.details
    size = human_bytes(details["bytes"]) if "bytes" in details else ""
    lines = {
        "open": lambda: f"open, {details['here']} of {of} are here",
        "asked": lambda: f"{entry.partner} is connected and was asked",
        "arrived": lambda: (
            f"{entry.partner} arrived: {size} in {details['seconds']:.0f} s ({details['here']} of {of})"
        ),
        "late": lambda: f"{entry.partner} arrived late: {size}, kept in {details['file']}",
        "again": lambda: f"{entry.partner} sent another file: kept in {details['file']}, not used",
        "refused": lambda: f"{entry.partner} sent what cannot be used: {details['why']}",
        "failed": lambda: f"{entry.partner} failed: {details['why']}",
        "restart": lambda: f"{details['why']}: started again, nothing that arrived is lost",
        "closed": lambda: (
            f"closed ({_REASONS[details['reason']]}): {len(details['arrived'])} of {of} are here"
        ),
    }
    return f"{clock}  {lines[entry.event]()}" if entry.event in lines else None


_REASONS = {
    "complete": "everybody is here",
    "quorum": "the quorum is here",
    "deadline": "time is over",
}


def fuse_command(flags: Server, arrived: Mapping[str, Path]) -> list[str]:
    """The uploads by name, not by pattern: what arrives later shall not change a fusion that is
    resumed.
    """
    files = [str(path) for path in arrived.values()]
    command = ["fuse", *files, "--method", flags.fuse or "ensemble", "--out", str(flags.out)]
    command += ["--student", flags.student] if flags.student else []
    return command + [word for setting in flags.settings for word in ("--set", setting)]


def start_fusion(
    command: list[str], out: Path, say: Say, *, quiet: bool = False
) -> subprocess.Popen[bytes] | None:
    """Fuse in a process of its own, or go on with a fusion that was interrupted."""
    if (out / "record.json").exists():
        say(f"{out} holds a finished fusion: nothing is fused again.")
        return None
    words = [sys.executable, "-m", "attar", *command, "--resume"]
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL if quiet else None
    )


def client(flags: Client, say: Say) -> dict[str, Any]:
    """Serve one bundle until the server has it."""
    require_flower()
    kit = read_partner_kit(flags.folder)
    train = training_words(flags.train, kit.partner)
    if flags.bundle.exists():
        _check_own(flags.bundle, kit.partner)
    elif not train:
        raise BundleError(
            f"There is no upload file {flags.bundle}.",
            fix="make it with `attar train`, or add --train 'attar train --data … --net …'",
        )
    (flags.folder / "receipt.json").unlink(missing_ok=True)
    say(
        f"{kit.partner}: connecting to {kit.host}:{kit.port}. Ctrl-C ends it; log: {flags.folder / 'supernode.log'}"
    )
    with closing(serve_bundle(flags.folder, kit, flags.bundle, train)) as sights:
        _until_delivered(flags, sights, say)
    size = flags.bundle.stat().st_size
    say(f"{kit.partner}: the server has {flags.bundle} ({human_bytes(size)}) on its disk.")
    return {"partner": kit.partner, "bundle": str(flags.bundle), "bytes": size, "delivered": True}


def training_words(text: str, partner: str) -> list[str]:
    """``attar train --data … --net …`` as its flags, under the partner's name; where it is
    written to is not for it to say.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"--train {text!r} cannot be read ({error}).") from None
    if not words:
        return []
    flags = words[2:]
    given = {word.split("=")[0] for word in flags}
    if words[:2] != ["attar", "train"] or "--out" in given:
        raise SettingsError(
            f"--train {text!r} is not a training.",
            fix="--train 'attar train --data … --net …', without --out: that is --bundle",
        )
    return flags if "--client" in given else [*flags, "--client", partner]


def _until_delivered(flags: Client, sights: Iterable[NodeSight], say: Say) -> None:
    begun, told = time.monotonic(), ""
    for sight in sights:
        if sight.delivered:
            return
        if sight.trouble is not None and sight.trouble != told:
            told = sight.trouble
            say(f"Not connected: {sight.trouble}. Still trying.")
        if flags.minutes is not None and time.monotonic() - begun > 60 * flags.minutes:
            raise RunError(
                f"The server has not taken {flags.bundle} within {flags.minutes:g} minutes.",
                fix=f"see {flags.folder / 'supernode.log'}; ask the server whether its round is open and your key registered",
            )


def _check_own(bundle: Path, partner: str) -> None:
    upload = read_bundle(bundle)
    if upload.client != partner:
        raise BundleError(
            f"{bundle} calls its client {upload.client!r}, but this is the folder of {partner}.",
            fix=f"train it with --client {partner}: the server takes nothing else from this key",
        )
