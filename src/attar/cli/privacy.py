"""``attar privacy``: what an upload gives away about the images that it was made from."""

from dataclasses import dataclass, replace
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, Any

import torch
from tyro.conf import Positional, arg

from attar.cli.arguments import (
    Device,
    Json,
    Seed,
    load_clients_and_tests,
    load_source,
    parse_device,
)
from attar.cli.output import console
from attar.errors import DataError, SettingsError
from attar.internal.files import write_atomic
from attar.privacy import (
    PASSES,
    SHADOWS,
    Audit,
    Dossier,
    Pair,
    PrivacyCheck,
    Rate,
    check_decoder,
    check_program,
    describe_check,
    dossier_page,
    draw_pairs,
    make_dossier,
)
from attar.training import (
    SUMS,
    ClientData,
    make_client,
    read_metadata,
    trained_on_other_images,
)
from attar.uploads import load_private, public_text, receive, sign_page

TITLES = {
    "closest": "Closest pairs",
    "singled-out": "Nearest to training images that stand apart",
}


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """The flags of ``attar privacy``."""

    file: Positional[Path]
    data: Annotated[str | None, arg(help="The data source that the upload was made from.")] = None
    partition: Annotated[Path | None, arg(help="A partition file instead of --data.")] = None
    client: Annotated[
        str | None, arg(help="Its number in the partition; the upload's own name unless given.")
    ] = None
    non_members: Annotated[
        str | None,
        arg(
            help="A source of images like these that the upload was not made from, all of which "
            "are used: 1,000 for 1 % false alarms, 10,000 for 0.1 %. The test images of --data "
            "unless given."
        ),
    ] = None
    shadows: Annotated[
        int, arg(help="Nets that are trained to attack a classifier (LiRA); 0 for none.")
    ] = SHADOWS
    passes: Annotated[
        int, arg(help="Images that these nets go through at most, all epochs together.")
    ] = PASSES
    samples: Annotated[
        int,
        arg(
            help="Of a decoder: how many synthetic images to look at, in the proportions of the "
            "labels."
        ),
    ] = 1000
    of_each: Annotated[
        int, arg(help="Of a decoder: how many of each class at least, however few its images.")
    ] = 50
    pairs: Annotated[int, arg(help="Of a decoder: how many pairs to show.")] = 8
    inception: Annotated[
        Path | None,
        arg(
            help="For FID: a TorchScript file that maps images (N, 3, 299, 299) in [-1, 1] to "
            "features (N, F). "
            "A small classifier is trained on the spot unless given. The file is a program and is "
            "run: name its hash, too."
        ),
    ] = None
    inception_sha256: Annotated[
        str | None, arg(help="The hash of the file of --inception; without it, it is not run.")
    ] = None
    sign: Annotated[
        Path | None, arg(help="A private key (`attar keygen`) that signs the page.")
    ] = None
    pictures: Annotated[
        bool, arg(help="Show training images on the page; --no-pictures for a page to hand on.")
    ] = True
    out: Annotated[
        Path | None,
        arg(
            help="Where the page, pictures and the record go; a folder of the client's name in "
            "privacy/ unless given."
        ),
    ] = None
    seed: Seed = 0
    device: Device = "auto"
    json: Json = False


def privacy(options: PrivacyOptions) -> None:
    """Attack an upload before it is sent, and write what it gives away as a page.

    The attacks: recognise training images, reconstruct them, find copies of them. The epsilon of
    differential privacy is recomputed.
    """
    file = options.file
    _check_options(options)
    if options.sign is not None:
        load_private(options.sign)  # a key that cannot sign is an error before any work
    (received,) = receive([file])
    upload = received.upload
    owner, tests = _load_images(options, upload.client)
    others, source = _load_others(options, tests)
    if SUMS not in upload.parts and trained_on_other_images(file, owner):
        raise DataError(
            f"{file} was trained on other images than these, says the note beside it.",
            fix="name the data that it was trained on: against others every upload looks harmless",
        )
    folder = Path("privacy") / upload.client if options.out is None else options.out
    record: dict[str, Any] = {
        "file": str(file),
        "client": upload.client,
        "seed": options.seed,
    }
    check = None
    if "decoder" in upload.parts:
        check = check_decoder(
            upload,
            owner,
            samples=options.samples,
            of_each=options.of_each,
            pairs=options.pairs,
            inception=options.inception,
            seed=options.seed,
            device=parse_device(options.device),
        )
        record |= describe_check(check)
        if options.pictures:
            _write_pictures(check, folder)
    with console.progress("shadow nets", quiet=options.json) as watch:
        audit = Audit(
            shadows=options.shadows,
            passes=options.passes,
            seed=options.seed,
            device=parse_device(options.device),
            watch=watch,
        )
        dossier = make_dossier(
            received,
            owner,
            others,
            source=source,
            metadata=read_metadata(file),
            check=check,
            audit=audit,
        )
    page = _write_page(dossier, folder, options)
    record |= dossier.as_json() | {"page": str(page)}
    write_atomic(folder / "privacy.json", to_json(record, indent=2) + "\n")
    console.emit(
        {**record, "out": str(folder)},
        lambda: _show(dossier, check, folder, page),
        json=options.json,
    )


def _check_options(options: PrivacyOptions) -> None:
    if options.samples < 2 or options.of_each < 0 or options.pairs < 1:
        raise SettingsError(
            "There are too few images to compare.",
            fix="--samples from 2, --of-each from 0, --pairs from 1",
        )
    if options.inception is not None:
        check_program(options.inception, options.inception_sha256)
    if options.shadows < 0 or options.passes < 1:
        raise SettingsError(
            "Shadow nets cannot be trained like this.", fix="--shadows from 0, --passes from 1"
        )


def _load_images(options: PrivacyOptions, client: str) -> tuple[ClientData, ClientData]:
    """The client's images, and the test images of their source."""
    clients, tests = load_clients_and_tests(
        options.data, options.partition, options.client or client, quiet=options.json
    )
    if len(clients) != 1:
        raise DataError(
            f"{len(clients)} clients are named.",
            fix="name one --client: whose images was the upload made from?",
        )
    return clients[0][1], tests


def _load_others(options: PrivacyOptions, tests: ClientData) -> tuple[ClientData, str]:
    """Images that the upload was not made from, and where they are from."""
    if options.non_members is None:
        return tests, f"the test images of {options.data or options.partition}"
    source = load_source(options.non_members, quiet=options.json)
    parts = [make_client("others", part, source.classes) for part in (source.train, source.test)]
    return (
        replace(
            parts[0],
            pixels=torch.cat([part.pixels for part in parts]),
            labels=torch.cat([part.labels for part in parts]),
        ),
        options.non_members,
    )


def _write_page(dossier: Dossier, folder: Path, options: PrivacyOptions) -> Path:
    page = folder / "dossier.html"
    signer = None if options.sign is None else public_text(load_private(options.sign))
    text = dossier_page(dossier, signed_by=signer, pictures=options.pictures)
    write_atomic(page, text)
    if options.sign is not None:
        sign_page(page, dossier.client, options.sign)
    return page


def _write_pictures(check: PrivacyCheck, folder: Path) -> None:
    for name, pairs in _sheets(check).items():
        write_atomic(folder / f"{name}.png", draw_pairs(TITLES[name], pairs))


def _sheets(check: PrivacyCheck) -> dict[str, tuple[Pair, ...]]:
    return {"closest": check.closest, "singled-out": check.singled_out}


def _show(dossier: Dossier, check: PrivacyCheck | None, folder: Path, page: Path) -> None:
    """Print the answer, then what it rests on."""
    answer = [
        ("may it be sent?", dossier.answer),
        ("why", dossier.verdict),
        ("what to do", dossier.advice),
    ]
    if check is not None and check.quality:
        answer.append(("quality", check.quality))
    console.show_pairs("Privacy", answer)
    console.say()
    if check is not None:
        _show_decoder(check, folder)
    rows = [
        (
            found.subject,
            attack.name,
            f"{attack.auc:.3f}",
            *(_found(rate) for rate in attack.rates),
        )
        for found in dossier.findings
        for attack in found.attacks
    ]
    if rows:
        columns = ("attack on", "by", "AUC", "found at 1 %", "found at 0.1 %")
        console.show_table("Recognised training images", columns, rows, right=columns[2:])
    console.show_pairs(
        "What was found", [(found.title, found.sentence) for found in dossier.findings]
    )
    console.say(f"The page to keep: {page}")


def _found(rate: Rate) -> str:
    if rate.others < rate.needed:
        return "cannot tell"
    low, high = rate.interval
    return f"{100 * rate.share:.2f} % ({100 * low:.2f} to {100 * high:.2f})"


def _show_decoder(check: PrivacyCheck, folder: Path) -> None:
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
