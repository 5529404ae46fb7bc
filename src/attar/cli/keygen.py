"""``attar keygen``: make a key that signs uploads."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from attar.cli.arguments import Json
from attar.cli.output import console
from attar.uploads import generate_key


def keygen(
    key: Positional[Path],
    /,
    *,
    client: Annotated[
        str | None, arg(help="Whose key it is; the file's name without its ending unless given.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a private key that signs uploads, and the line for the server's list of trusted keys."""
    name = key.stem if client is None else client
    line = generate_key(key, name)
    public = key.with_suffix(".pub")

    def show() -> None:
        console.say(f"{key} is the private key of {name}: never send it to anybody.")
        console.say(
            f"{public} is for the server's list (--trusted): send it by a channel that nobody else "
            "can write to."
        )

    record = {"client": name, "private": str(key), "public": str(public), "key": line}
    console.emit(record, show, json=json)
