"""``attar inbox``: collect uploads over plain HTTPS."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from attar.cli.output import console
from attar.cli.output.round import check_round, show_round
from attar.inbox import flags as inbox_flags
from attar.inbox import verbs as inbox_verbs
from attar.internal.text import human_bytes

InboxVerb = (
    Annotated[inbox_flags.Invite, subcommand("invite")]
    | Annotated[inbox_flags.Serve, subcommand("serve")]
    | Annotated[inbox_flags.Send, subcommand("send")]
)


def inbox(verb: OmitSubcommandPrefixes[OmitArgPrefixes[InboxVerb]]) -> None:
    """Collect uploads over plain HTTPS, from partners who need an invitation and nothing else:
    invite, serve, send.
    """
    say = (lambda text: None) if verb.json else console.say
    if isinstance(verb, inbox_flags.Invite):
        invited = inbox_verbs.invite(verb)
        console.emit(invited, lambda: _show_invitation(invited), json=verb.json)
    elif isinstance(verb, inbox_flags.Send):
        with console.progress("sending", quiet=verb.json) as watch:
            sent = inbox_verbs.send(verb, say, watch)
        console.emit(sent, lambda: _show_receipt(sent), json=verb.json)
    else:
        with console.progress("inbox", quiet=verb.json or verb.minutes is None) as watch:
            outcome = inbox_verbs.serve(verb, say, watch)
        console.emit(outcome, lambda: show_round(outcome), json=verb.json)
        check_round(outcome)


def _show_invitation(invited: Mapping[str, Any]) -> None:
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(invited["expires"]))
    name = invited["partner"]
    console.say(
        f"{invited['invitation']} invites {name} to send one upload, until {until}. Give it to "
        f"{name} by a channel that nobody else can read. {name} runs:"
    )
    console.show_command(invited["command"])
    console.say("\nHere, to receive it:")
    console.show_command(invited["serve"])


def _show_receipt(sent: Mapping[str, Any]) -> None:
    console.say(
        f"{sent['partner']}: the server has accepted {sent['file']} ({human_bytes(sent['bytes'])})."
    )
