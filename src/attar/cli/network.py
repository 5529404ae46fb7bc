"""``attar network``: collect uploads over Flower."""

from collections.abc import Mapping
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from attar.cli.output import console
from attar.errors import RunError
from attar.internal.text import human_bytes
from attar.network import flags as network_flags
from attar.network import verbs as network_verbs

NetworkVerb = (
    Annotated[network_flags.Init, subcommand("init")]
    | Annotated[network_flags.Server, subcommand("server")]
    | Annotated[network_flags.Client, subcommand("client")]
)


def network(verb: OmitSubcommandPrefixes[OmitArgPrefixes[NetworkVerb]]) -> None:
    """Collect uploads over Flower, where each partner runs the app that the server sends: init,
    server, client. `attar inbox` needs no such trust.
    """
    say = (lambda text: None) if verb.json else console.say
    if isinstance(verb, network_flags.Init):
        folders = network_verbs.init(verb)
        console.emit(folders, lambda: _show_folders(folders), json=verb.json)
    elif isinstance(verb, network_flags.Client):
        delivery = network_verbs.client(verb, say)  # has printed all that people need
        console.emit(delivery, lambda: None, json=verb.json)
    else:
        with console.progress("round", quiet=verb.json) as watch:
            outcome = network_verbs.server(verb, say, watch)
        console.emit(outcome, lambda: show_round(outcome), json=verb.json)
        check_round(outcome)


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
            fix="start the same command again: it asks those who are missing",
        )


def _show_folders(folders: Mapping[str, Any]) -> None:
    """What ``attar network init`` wrote, and who does what with it."""
    server = folders["server"]
    console.say(
        f"Server: keep {server['folder']} and run, in the folder that holds it:"
        f"\n\n    {server['command']}\n"
    )
    for name, partner in folders["partners"].items():
        console.say(
            f"{name}: give them {partner['folder']} ({partner['key']}) by a channel you trust. "
            f"They run, beside that folder:\n"
        )
        console.say(f"    {partner['command']}\n")
    console.say(
        "Each side needs attar[flower]. "
        "Private keys (node.key, server.key, ca.key) must not leave their folder's owner."
    )


def show_round(outcome: Mapping[str, Any]) -> None:
    """Who has arrived, who is missing, and what to do next."""
    rows = [(name, "in time", human_bytes(size)) for name, size in outcome["arrived"].items()]
    rows += [(name, "late", human_bytes(size)) for name, size in outcome["late"].items()]
    rows += [(name, "missing", why) for name, why in outcome["missing"].items()]
    console.show_table("The round", ("partner", "upload", ""), rows)
    console.say(f"Inbox: {outcome['inbox']} (see journal.jsonl for what happened)")
    if outcome["missing"]:
        console.say("The same command again asks those who are missing.")
    if outcome["fuse"] and outcome["fuse_status"] is None:
        console.say("To fuse what arrived:")
        console.show_command(outcome["fuse"])
