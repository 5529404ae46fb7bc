"""What `attar network init`, `server` and `client` do.

Lines for people go to a function; ``attar.cli.network`` prints them.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from attar.errors import BundleError, RunError, SettingsError, Stopped
from attar.inbox.folder import Entry, Inbox, Journal
from attar.inbox.fusing import check_fusing, make_fuse_command, start_fusion
from attar.internal.text import human_bytes
from attar.network import require_flower
from attar.network.flags import Client, Init, Server
from attar.network.hosting import NodeStatus, RoundStatus, run_round, serve_bundle
from attar.network.kit import read_partner_kit, read_server_kit, write_kits
from attar.network.plan import Plan
from attar.running import ProgressReport, Watch
from attar.uploads import read_bundle

Say = Callable[[str], None]


def init(flags: Init) -> dict[str, Any]:
    """Write the folders of server and partners; returns the command that each of them runs."""
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
    """Run one round, and fuse what arrived where the flags ask for that.

    Args:
        flags: Of ``attar network server``.
        say: Called with lines for people.
        watch: Called with the progress of the round.

    Returns:
        Who arrived, who is missing and why, and the command that fuses.
    """
    require_flower()
    kit = read_server_kit(flags.folder)
    if flags.minutes <= 0 or flags.late < 0:
        raise SettingsError(
            "There is no time for a round.", fix="--minutes above 0, --late 0 or more"
        )
    check_fusing(flags)  # an error in the settings is reported before the round
    inbox = Inbox((flags.inbox or flags.folder / "inbox").resolve())
    plan = Plan(
        partners=kit.partners,
        quorum=len(kit.partners) if flags.quorum is None else flags.quorum,
        deadline=time.time() + 60 * flags.minutes,
        late_seconds=60 * flags.late,
        inbox=str(inbox.path),
    )
    journal = Journal(inbox.path / "journal.jsonl")
    first = len(journal.read())
    follower = _Follower(flags, plan, say, watch)
    try:
        with closing(run_round(flags.folder, kit, plan)) as statuses:
            for status in statuses:
                follower.follow(status)
    except KeyboardInterrupt:
        if not follower.closed:
            raise Stopped(
                f"Stopped by Ctrl-C. What arrived is in {inbox.path}.",
                fix="run the same command again: it asks those who are missing",
            ) from None
    fuse_status = None if follower.fusion is None else follower.fusion.wait()
    return _outcome(plan, inbox, journal.read()[first:], follower.command, fuse_status)


class _Follower:
    """Reports a round as it goes on, and starts the fusion when it closes.

    Attributes:
        closed: Whether the round is closed.
        command: The command that fuses what arrived.
        fusion: The process that runs it.
    """

    def __init__(self, flags: Server, plan: Plan, say: Say, watch: Watch) -> None:
        self._flags = flags
        self._plan = plan
        self._say = say
        self._watch = watch
        self.closed = False
        self.command: list[str] | None = None
        self.fusion: subprocess.Popen[bytes] | None = None

    def follow(self, status: RoundStatus) -> None:
        """Take in the next state of the round."""
        for entry in status.entries:
            if line := describe_entry(entry, len(self._plan.partners)):
                self._say(line)
        if not status.closed:
            self._show_progress(len(status.arrived))
        elif not self.closed:
            self.closed = True
            self._close(status)

    def _show_progress(self, arrived: int) -> None:
        number = len(self._plan.partners)
        self._watch(
            ProgressReport(
                phase="arrived",
                step=arrived,
                steps=number,
                done=arrived / number,
                seconds_left=max(0.0, self._plan.deadline - time.time()),
                metrics={},
            )
        )

    def _close(self, status: RoundStatus) -> None:
        flags = self._flags
        if self._plan.missing(status.arrived) and not status.finished and flags.late > 0:
            self._say(f"Late uploads are accepted for {flags.late:g} min. Ctrl-C ends that.")
        if status.arrived:
            self.command = make_fuse_command(flags, status.arrived)
            if flags.fuse is not None:
                self.fusion = start_fusion(self.command, flags.out, self._say, quiet=flags.json)


def _outcome(
    plan: Plan, inbox: Inbox, entries: list[Entry], command: list[str] | None, status: int | None
) -> dict[str, Any]:
    """What ``--json`` prints at the end of a round."""
    arrived = inbox.files()
    late = inbox.late_files()
    closed = next((entry.details["reason"] for entry in entries if entry.event == "closed"), None)
    missing = [name for name in plan.missing(arrived) if name not in late]
    return {
        "closed": closed,
        "arrived": _sizes(plan, arrived),
        "late": _sizes(plan, late),
        "missing": {name: explain_missing(name, entries) for name in missing},
        "inbox": str(inbox.path),
        "fuse": None if command is None else shlex.join(["attar", *command]),
        "fuse_status": status,
    }


def _sizes(plan: Plan, files: Mapping[str, Path]) -> dict[str, int]:
    """Bytes of the files, in the order of the partners."""
    return {name: files[name].stat().st_size for name in plan.partners if name in files}


def explain_missing(name: str, entries: list[Entry]) -> str:
    """Why a partner's upload is missing: the last event of the journal about them."""
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


def describe_entry(entry: Entry, of: int) -> str | None:
    """A line of the journal for people.

    Args:
        entry: Of the journal.
        of: The number of partners.

    Returns:
        The line; None for events that people need not see.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(entry.time))
    details = entry.details
    size = human_bytes(details["bytes"]) if "bytes" in details else ""
    lines = {
        "open": lambda: f"open, {details['here']} of {of} are here",
        "asked": lambda: f"{entry.partner} is connected and was asked",
        "arrived": lambda: (
            f"{entry.partner} arrived: {size} in {details['seconds']:.0f} s ({details['here']} "
            f"of {of})"
        ),
        "late": lambda: f"{entry.partner} arrived late: {size}, stored in {details['file']}",
        "again": lambda: (
            f"{entry.partner} sent another file: stored in {details['file']}, not used"
        ),
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


def client(flags: Client, say: Say) -> dict[str, Any]:
    """Send one upload: stay connected until the server has it.

    Args:
        flags: Of ``attar network client``.
        say: Called with lines for people.

    Returns:
        What was delivered.
    """
    require_flower()
    kit = read_partner_kit(flags.folder)
    train = parse_training(flags.train, kit.partner)
    if flags.bundle.exists():
        _check_owner(flags.bundle, kit.partner)
    elif not train:
        raise BundleError(
            f"There is no upload file {flags.bundle}.",
            fix="make it with `attar train`, or add --train 'attar train --data … --net …'",
        )
    (flags.folder / "receipt.json").unlink(missing_ok=True)
    say(
        f"{kit.partner}: connecting to {kit.host}:{kit.port}. This machine will run the app that "
        "the server sends, if it is attar's own. "
        f"Ctrl-C ends it; log: {flags.folder / 'supernode.log'}"
    )
    with closing(serve_bundle(flags.folder, kit, flags.bundle, train)) as statuses:
        _wait_for_delivery(flags, statuses, say)
    size = flags.bundle.stat().st_size
    say(f"{kit.partner}: the server has {flags.bundle} ({human_bytes(size)}) on its disk.")
    return {"partner": kit.partner, "bundle": str(flags.bundle), "bytes": size, "delivered": True}


def parse_training(text: str, partner: str) -> list[str]:
    """``attar train --data … --net …`` as its flags, with the partner's name.

    Raises:
        SettingsError: It is another command, or it names the file that it writes.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"--train {text!r} cannot be read ({error}).") from None
    if not words:
        return []
    flags = words[2:]
    named = {word.split("=")[0] for word in flags}
    if words[:2] != ["attar", "train"] or "--out" in named:
        raise SettingsError(
            f"--train {text!r} is not a training.",
            fix="--train 'attar train --data … --net …', without --out: that is --bundle",
        )
    return flags if "--client" in named else [*flags, "--client", partner]


def _wait_for_delivery(flags: Client, statuses: Iterable[NodeStatus], say: Say) -> None:
    begun = time.monotonic()
    reported = ""
    for status in statuses:
        if status.delivered:
            return
        if status.trouble is not None and status.trouble != reported:
            reported = status.trouble
            say(f"Not connected: {status.trouble}. Still trying.")
        if flags.minutes is not None and time.monotonic() - begun > 60 * flags.minutes:
            raise RunError(
                f"The server has not received {flags.bundle} within {flags.minutes:g} minutes.",
                fix=f"see {flags.folder / 'supernode.log'}; "
                "ask the server whether its round is open and your key registered",
            )


def _check_owner(bundle: Path, partner: str) -> None:
    upload = read_bundle(bundle)
    if upload.client != partner:
        raise BundleError(
            f"{bundle} is an upload of {upload.client!r}, but this is the folder of {partner}.",
            fix=f"train it with --client {partner}: the server accepts nothing else with this key",
        )
