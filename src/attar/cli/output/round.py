"""What a server shows when it has collected uploads."""

from collections.abc import Mapping
from typing import Any

from attar.cli.output import console
from attar.errors import RunError
from attar.internal.text import human_bytes


def check_round(outcome: Mapping[str, Any]) -> None:
    """Raise a RunError where nobody arrived, or the fusion failed."""
    if outcome["fuse_status"]:
        raise RunError(
            "The fusion failed.",
            fix=f"the uploads are in {outcome['inbox']}; try again: {outcome['fuse']}",
        )
    if not outcome["arrived"]:
        raise RunError(
            "No upload arrived in time.",
            fix="start the same command again: it collects from those who are missing",
        )


def show_round(outcome: Mapping[str, Any]) -> None:
    """Who has arrived, who is missing, and what to do next."""
    rows = [(name, "in time", human_bytes(size)) for name, size in outcome["arrived"].items()]
    rows += [(name, "late", human_bytes(size)) for name, size in outcome["late"].items()]
    rows += [(name, "missing", why) for name, why in outcome["missing"].items()]
    console.show_table("The round", ("partner", "upload", ""), rows)
    console.say(f"Inbox: {outcome['inbox']} (see journal.jsonl for what happened)")
    if outcome["missing"]:
        console.say("The same command again collects from those who are missing.")
    if outcome["fuse"] and outcome["fuse_status"] is None:
        console.say("To fuse what arrived:")
        console.show_command(outcome["fuse"])
