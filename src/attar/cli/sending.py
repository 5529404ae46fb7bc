"""Before an upload is sent: what its decoder gives away, and whose it is."""

from collections.abc import Sequence
from json import dumps as to_json
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from attar.cli.app import Device, Json, Seed, app
from attar.cli.arguments import load_clients, parse_device
from attar.cli.output import console, tables
from attar.errors import DataError, SettingsError
from attar.internal.files import write_atomic
from attar.models import draw_sheet
from attar.privacy import check_decoder, describe_check
from attar.training import ClientData, trained_on_other_images
from attar.uploads import generate_key, read_bundle, receive
from attar.uploads import sign as write_signature


@app.command
def privacy(
    file: Positional[Path],
    /,
    *,
    data: Annotated[
        str | None, arg(help="The data source that the decoder was trained on.")
    ] = None,
    partition: Annotated[Path | None, arg(help="A partition file instead of --data.")] = None,
    client: Annotated[
        str | None, arg(help="Its number in the partition; the upload's own name unless given.")
    ] = None,
    samples: Annotated[
        int, arg(help="How many synthetic images to look at, in the proportions of the labels.")
    ] = 1000,
    of_each: Annotated[
        int, arg(help="How many of each class at least, however few its images.")
    ] = 50,
    pairs: Annotated[int, arg(help="How many pairs to show.")] = 8,
    inception: Annotated[
        Path | None,
        arg(
            help="For FID: a TorchScript file that maps images (N, 3, 299, 299) in [-1, 1] to features (N, F). "
            "A small classifier is trained on the spot unless given."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        arg(
            help="Where the pictures and the record go; a folder of the client's name in privacy/ unless given."
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Before a decoder is sent: its synthetic images beside the nearest images that it was
    trained on.
    """
    if samples < 2 or of_each < 0 or pairs < 1:
        raise SettingsError(
            "There is nothing to look at.", fix="--samples from 2, --of-each from 0, --pairs from 1"
        )
    upload = read_bundle(file)
    owner = _one_client(load_clients(data, partition, client or upload.client, quiet=json))
    if trained_on_other_images(file, owner):
        raise DataError(
            f"{file} was trained on other images than these, says the note beside it.",
            fix="name the data that it was trained on: against others every decoder looks harmless",
        )
    found = check_decoder(
        upload,
        owner,
        samples=samples,
        of_each=of_each,
        pairs=pairs,
        inception=inception,
        seed=seed,
        device=parse_device(device),
    )
    place = Path("privacy") / upload.client if out is None else out
    for name, some in (("closest", found.closest), ("singled-out", found.singled_out)):
        write_atomic(
            place / f"{name}.png", draw_sheet(torch.stack([pair.pictures for pair in some]))
        )
    record = {"file": str(file), "client": upload.client, "seed": seed, **describe_check(found)}
    write_atomic(place / "privacy.json", to_json(record, indent=2) + "\n")
    if json:
        console.show_json({**record, "out": str(place)})
        return
    tables.show_privacy(found, place)


def _one_client(clients: Sequence[tuple[int, ClientData]]) -> ClientData:
    if len(clients) != 1:
        raise DataError(
            f"{len(clients)} clients are named.",
            fix="name one --client: whose images was the decoder trained on?",
        )
    return clients[0][1]


@app.command
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
    public = generate_key(key, name)
    if json:
        console.show_json(
            {
                "client": name,
                "private": str(key),
                "public": str(key.with_suffix(".pub")),
                "key": public,
            }
        )
        return
    console.say(f"{key} is the private key of {name}: it stays here.")
    console.say(
        f"{key.with_suffix('.pub')} is for the server's list (--trusted), by a way that nobody else can write on."
    )


@app.command
def sign(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    key: Annotated[Path, arg(help="The private key (`attar keygen`).")],
    json: Json = False,
) -> None:
    """Sign upload files: a .sig beside each, which travels with it."""
    written = [(one, write_signature(one, key)) for one in receive(files)]
    if json:
        console.show_json(
            [
                {"client": one.upload.client, "sha256": one.sha256, "file": str(place)}
                for one, place in written
            ]
        )
        return
    for one, place in written:
        console.say(f"{one.upload.client}: {place}")
