"""``attar sign``: sign upload files."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from attar.cli.arguments import Json
from attar.cli.output import console
from attar.uploads import receive
from attar.uploads import sign as write_signature


def sign(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    key: Annotated[Path, arg(help="The private key (`attar keygen`).")],
    json: Json = False,
) -> None:
    """Sign upload files: write a .sig file beside each, to be sent with it."""
    signatures = [(received, write_signature(received, key)) for received in receive(files)]
    record = [
        {"client": received.upload.client, "sha256": received.sha256, "file": str(signature)}
        for received, signature in signatures
    ]

    def show() -> None:
        for received, signature in signatures:
            console.say(f"{received.upload.client}: {signature}")

    console.emit(record, show, json=json)
