"""``attar privacy``: what a decoder gives away about its training images."""

from collections.abc import Sequence
from json import dumps as to_json
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from attar.cli.arguments import Device, Json, Seed, load_clients, parse_device
from attar.cli.output import console
from attar.errors import DataError, SettingsError
from attar.internal.files import write_atomic
from attar.privacy import (
    Pair,
    PrivacyCheck,
    check_decoder,
    check_program,
    describe_check,
    draw_pairs,
)
from attar.training import ClientData, trained_on_other_images
from attar.uploads import read_bundle

TITLES = {
    "closest": "Closest pairs",
    "singled-out": "Nearest to training images that stand apart",
}


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
            help="For FID: a TorchScript file that maps images (N, 3, 299, 299) in [-1, 1] to "
            "features (N, F). "
            "A small classifier is trained on the spot unless given. The file is a program and is "
            "run: name its hash, too."
        ),
    ] = None,
    inception_sha256: Annotated[
        str | None, arg(help="The hash of the file of --inception; without it, it is not run.")
    ] = None,
    out: Annotated[
        Path | None,
        arg(
            help="Where the pictures and the record go; a folder of the client's name in "
            "privacy/ unless given."
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare a decoder's synthetic images with the nearest images that it was trained on, before
    it is sent.
    """
    if samples < 2 or of_each < 0 or pairs < 1:
        raise SettingsError(
            "There are too few images to compare.",
            fix="--samples from 2, --of-each from 0, --pairs from 1",
        )
    if inception is not None:
        check_program(inception, inception_sha256)
    upload = read_bundle(file)
    owner = _single_client(load_clients(data, partition, client or upload.client, quiet=json))
    if trained_on_other_images(file, owner):
        raise DataError(
            f"{file} was trained on other images than these, says the note beside it.",
            fix="name the data that it was trained on: against others every decoder looks harmless",
        )
    check = check_decoder(
        upload,
        owner,
        samples=samples,
        of_each=of_each,
        pairs=pairs,
        inception=inception,
        seed=seed,
        device=parse_device(device),
    )
    folder = Path("privacy") / upload.client if out is None else out
    record = {"file": str(file), "client": upload.client, "seed": seed, **describe_check(check)}
    _write_pictures(check, folder)
    write_atomic(folder / "privacy.json", to_json(record, indent=2) + "\n")
    console.emit({**record, "out": str(folder)}, lambda: _show(check, folder), json=json)


def _single_client(clients: Sequence[tuple[int, ClientData]]) -> ClientData:
    if len(clients) != 1:
        raise DataError(
            f"{len(clients)} clients are named.",
            fix="name one --client: whose images was the decoder trained on?",
        )
    return clients[0][1]


def _write_pictures(check: PrivacyCheck, folder: Path) -> None:
    for name, pairs in _sheets(check).items():
        write_atomic(folder / f"{name}.png", draw_pairs(TITLES[name], pairs))


def _sheets(check: PrivacyCheck) -> dict[str, tuple[Pair, ...]]:
    return {"closest": check.closest, "singled-out": check.singled_out}


def _show(check: PrivacyCheck, folder: Path) -> None:
    """Print the answer, then what it rests on."""
    answer = [
        ("may it be sent?", check.answer),
        ("why", check.verdict),
        ("what to do", check.advice),
    ]
    if check.quality:
        answer.append(("quality", check.quality))
    console.show_pairs("Privacy", answer)
    console.say()
    columns = (
        "synthetic as",
        "nearest training image is",
        "distance",
        "against its next neighbour",
    )
    for name, pairs in _sheets(check).items():
        cells = [
            (pair.label, pair.real_label, f"{pair.distance:.4f}", f"{pair.relative:.2f}")
            for pair in pairs
        ]
        console.show_table(TITLES[name], columns, cells, right=columns[2:])
    console.show_pairs("What was compared", _summary(check, folder))


def _summary(check: PrivacyCheck, folder: Path) -> list[tuple[str, str]]:
    share = f"{100 * check.nearer_than_neighbours:.1f} % of the synthetic images"
    return [
        ("compared", f"{check.samples:,} synthetic with {check.images:,} training images"),
        ("of a class", f"{min(check.drawn.values()):,} synthetic at least, whatever its share"),
        (
            "median distance",
            f"{check.median_distance:.4f}; "
            f"between training images {check.median_real_distance:.4f}",
        ),
        (
            "nearer",
            f"{share} lie nearer to a training image than any other does, as blurred pictures do",
        ),
        (
            "FID",
            f"{check.fid:.2f}; of noise {check.fid_noise:.2f}, "
            f"between halves of the training images {check.fid_real:.2f}",
        ),
        ("features", check.features),
        ("pictures", f"{folder / 'closest.png'}, {folder / 'singled-out.png'}"),
    ]
