"""``attar network``: collect uploads over Flower."""

from collections.abc import Mapping
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from attar.cli.output import console
from attar.cli.output.round import check_round, show_round
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
