"""``attar publish``: a model folder on the Hugging Face hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from attar.cli.arguments import Json
from attar.cli.output import console
from attar.deploy import Publication, Published, prepare
from attar.deploy import publish as send
from attar.internal.text import human_bytes


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The flags of ``attar publish``."""

    folder: Positional[Path]
    repository: Positional[str]
    private: Annotated[bool, arg(help="Make a repository that only its owner can read.")] = False
    revision: Annotated[str | None, arg(help="The branch; the main one unless given.")] = None
    license: Annotated[str | None, arg(help="For the card, such as apache-2.0.")] = None
    dataset: Annotated[
        UseAppendAction[tuple[str, ...]], arg(help="A data set of the hub, for the card.")
    ] = ()
    clients: Annotated[
        bool, arg(help="Name the clients and how many images each has in the card.")
    ] = False
    picture: Annotated[
        UseAppendAction[tuple[str, ...]], arg(help="A PNG or SVG of the folder to send along.")
    ] = ()
    card: Annotated[Path | None, arg(help="A text of your own in place of the card.")] = None
    message: Annotated[str, arg(help="Of the commit.")] = "Upload a model of attar"
    dry_run: Annotated[bool, arg(help="Only list what would be sent, and what stays.")] = False
    json: Json = False


def publish(options: PublishOptions) -> None:
    """Send a model folder to the Hugging Face hub: weights, config and a card, and nothing else.

    It lists what is sent before it is sent. The token is taken from the variable HF_TOKEN.
    """
    publication = prepare(
        options.folder,
        options.repository,
        license=options.license,
        datasets=options.dataset,
        clients=options.clients,
        pictures=options.picture,
        card=options.card,
        revision=options.revision,
    )
    if not options.json:
        _show_files(publication)
    published = None
    if not options.dry_run:
        published = send(
            publication,
            private=options.private,
            revision=options.revision,
            message=options.message,
        )
    record = _as_record(publication, published)
    console.emit(record, lambda: _show_end(publication, published), json=options.json)


def _as_record(publication: Publication, published: Published | None) -> dict[str, Any]:
    return {
        "repository": publication.repository,
        "files": publication.sizes(),
        "stays": dict(publication.stays),
        "notes": list(publication.notes),
        "url": None if published is None else published.url,
        "commit": None if published is None else published.commit,
    }


def _show_files(publication: Publication) -> None:
    rows = [
        (name, human_bytes(size), publication.made[name])
        for name, size in publication.sizes().items()
    ]
    console.show_table(
        f"What goes to {publication.repository}", ("file", "size", ""), rows, right=("size",)
    )
    if publication.stays:
        console.show_table("Stays here", ("file", "because it is"), publication.stays)
    for note in publication.notes:
        console.say(note)


def _show_end(publication: Publication, published: Published | None) -> None:
    if published is None:
        console.say("Nothing was sent (--dry-run).")
        return
    console.say(f"Published at {published.url}")
    name = f"hf:{publication.repository}@{published.commit[:12]}"
    console.show_command(f'attar.load_model("{name}")')
