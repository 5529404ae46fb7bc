"""The verb that collects uploads over a real network."""

from typing import Annotated

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from attar.cli.app import app
from attar.cli.output import console, tables
from attar.errors import RunError
from attar.network import flags as network_flags
from attar.network import verbs as network_verbs

NetworkVerb = (
    Annotated[network_flags.Init, subcommand("init")]
    | Annotated[network_flags.Server, subcommand("server")]
    | Annotated[network_flags.Client, subcommand("client")]
)


@app.command
def network(verb: OmitSubcommandPrefixes[OmitArgPrefixes[NetworkVerb]]) -> None:
    """Collect uploads over a real network (Flower, TLS, a key for each partner): init, server,
    client.
    """
    say = (lambda text: None) if verb.json else console.say
    if isinstance(verb, network_flags.Init):
        made = network_verbs.init(verb)
        console.show_json(made) if verb.json else tables.show_network(made)
        return
    if isinstance(verb, network_flags.Client):
        sent = network_verbs.client(verb, say)
        if verb.json:
            console.show_json(sent)
        return
    with console.progress("round", quiet=verb.json) as watch:
        outcome = network_verbs.server(verb, say, watch)
    console.show_json(outcome) if verb.json else tables.show_round(outcome)
    if outcome["fuse_status"]:
        raise RunError(
            "The fusion failed.",
            fix=f"the uploads are in {outcome['inbox']}; try again: {outcome['fuse']}",
        )
    if not outcome["arrived"]:
        raise RunError(
            "Nobody's upload arrived in time.",
            fix="start the same command again: it asks those who are missing",
        )
