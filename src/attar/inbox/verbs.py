"""What `attar inbox invite`, `serve` and `send` do.

Lines for people go to a function; ``attar.cli.inbox`` prints them.
"""

import asyncio
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attar.errors import SettingsError, Stopped
from attar.inbox import require_inbox
from attar.inbox.flags import Invite, Send, Serve
from attar.inbox.folder import Entry, Inbox, Journal
from attar.inbox.fusing import check_fusing, make_fuse_command, start_fusion
from attar.inbox.invitation import read_invitation
from attar.inbox.register import Register
from attar.inbox.sending import send_file
from attar.internal.files import write_atomic
from attar.internal.text import human_bytes
from attar.running import ProgressReport, Watch

Say = Callable[[str], None]


def invite(flags: Invite) -> dict[str, Any]:
    """Write an invitation; returns where it is and what the partner does with it."""
    require_inbox()
    invitation = Register(flags.folder).invite(flags.name, flags.address, flags.days)
    out = flags.out or Path(f"{flags.name}.invitation")
    write_atomic(out, invitation.to_text(), mode=0o600)
    return {
        "partner": flags.name,
        "invitation": str(out),
        "url": invitation.url,
        "expires": round(invitation.expires),
        "command": f"attar inbox send {flags.name}.attar {out.name}",
        "serve": f"attar inbox serve {flags.folder}",
    }


def serve(flags: Serve, say: Say, watch: Watch) -> dict[str, Any]:
    """Receive uploads, and fuse what arrived where the flags ask for that.

    Args:
        flags: Of ``attar inbox serve``.
        say: Called with lines for people.
        watch: Called with the number of uploads that are here.

    Returns:
        Who arrived, who is missing and why, and the command that fuses.
    """
    require_inbox()
    from attar.inbox.service import Limits
    from attar.inbox.serving import Terms, serve_inbox

    check_fusing(flags)  # an error in the settings is reported before anybody sends
    _check_numbers(flags)
    register = Register(flags.folder.resolve())
    _, port = register.address()
    inbox = Inbox(register.path)
    journal = Journal(register.path / "journal.jsonl")
    first = len(journal.read())
    deadline = None if flags.minutes is None else time.time() + 60 * flags.minutes

    def tell(entry: Entry) -> None:
        if line := describe_event(entry, len(register.guests())):
            say(line)

    def look(files: Mapping[str, Path]) -> None:
        watch(_progress(len(files), flags.wait_for or len(register.guests()), deadline))

    reason = asyncio.run(
        serve_inbox(
            register,
            Terms(flags.wait_for, deadline),
            listen=(flags.listen, flags.port or port),
            limits=Limits(file=round(flags.most * 1e6)),
            tell=tell,
            look=look,
        )
    )
    arrived = inbox.files()
    missing = [name for name in register.guests() if name not in arrived]
    tell(journal.write("closed", reason=reason, arrived=sorted(arrived), missing=missing))
    if reason == "stopped":
        raise Stopped(
            f"Stopped by Ctrl-C. What arrived is in {inbox.path}.",
            fix="run the same command again: what was sent so far is not sent again",
        )
    command = make_fuse_command(flags, arrived) if arrived else None
    fusion = None
    if flags.fuse is not None and command is not None:
        fusion = start_fusion(command, flags.out, say, quiet=flags.json)
    entries = journal.read()[first:]
    return {
        "closed": reason,
        "arrived": {name: path.stat().st_size for name, path in arrived.items()},
        "late": {},
        "missing": {name: explain_missing(name, entries) for name in missing},
        "inbox": str(inbox.path),
        "fuse": None if command is None else shlex.join(["attar", *command]),
        "fuse_status": None if fusion is None else fusion.wait(),
    }


def send(flags: Send, say: Say, watch: Watch) -> dict[str, Any]:
    """Send one upload; returns what the server has accepted."""
    receipt = send_file(
        flags.file, read_invitation(flags.invitation), minutes=flags.minutes, say=say, watch=watch
    )
    return {
        "partner": receipt.partner,
        "file": str(flags.file),
        "bytes": receipt.size,
        "sha256": receipt.sha256,
        "accepted": True,
    }


def _check_numbers(flags: Serve) -> None:
    problems = []
    if flags.wait_for is not None and flags.wait_for < 1:
        problems.append(f"--wait-for {flags.wait_for}: expected 1 or more")
    if flags.minutes is not None and flags.minutes <= 0:
        problems.append(f"--minutes {flags.minutes:g}: expected more than 0")
    if not 0 < flags.most <= Serve.most:
        problems.append(f"--most {flags.most:g}: expected more than 0, at most {Serve.most:g} MB")
    if flags.port is not None and not 1 <= flags.port <= 65535:
        problems.append(f"--port {flags.port}: expected 1 to 65535")
    if problems:
        raise SettingsError("The inbox cannot be served:", problems=problems)


def _progress(here: int, of: int, deadline: float | None) -> ProgressReport:
    return ProgressReport(
        phase="arrived",
        step=here,
        steps=of,
        done=min(1.0, here / of) if of else 0.0,
        seconds_left=None if deadline is None else max(0.0, deadline - time.time()),
        metrics={},
    )


def describe_event(entry: Entry, invited: int) -> str | None:
    """A line of the journal for people.

    Args:
        entry: Of the journal.
        invited: The number of partners.

    Returns:
        The line; None for events that people need not see.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(entry.time))
    who, details = entry.partner, entry.details
    size = human_bytes(details["bytes"]) if "bytes" in details else ""
    lines: dict[str, Callable[[], str]] = {
        "open": lambda: f"open, {details['here']} of {details['invited']} are here",
        "sending": lambda: (
            f"{who} goes on at {human_bytes(details['offset'])} of {size}"
            if details["offset"]
            else f"{who} sends {size}"
        ),
        "broken off": lambda: (
            f"{who} broke off at {human_bytes(details['offset'])} of {size}: {details['why']}"
        ),
        "arrived": lambda: f"{who} arrived: {size} ({details['here']} of {invited})",
        "refused": lambda: f"{who} sent what cannot be used: {details['why']}",
        "failed": lambda: f"{who}: {details['why']}",
        "strangers": lambda: f"{details['requests']} requests without an invitation were refused",
        "closed": lambda: (
            f"closed ({_REASONS[details['reason']]}): {len(details['arrived'])} of {invited} are "
            "here"
        ),
    }
    return f"{clock}  {lines[entry.event]()}" if entry.event in lines else None


_REASONS = {
    "complete": "everybody is here",
    "quorum": "enough are here",
    "deadline": "time is over",
    "stopped": "Ctrl-C",
}


def explain_missing(name: str, entries: Sequence[Entry]) -> str:
    """Why a partner's upload is missing: the last event of the journal about them."""
    mine = [entry for entry in entries if entry.partner == name]
    if not mine:
        return "never connected"
    last = mine[-1]
    if last.event in ("refused", "failed"):
        return f"{last.event}: {last.details['why']}"
    if last.event == "broken off":
        size = human_bytes(last.details["bytes"])
        return f"broke off at {human_bytes(last.details['offset'])} of {size}"
    return "was sending"
