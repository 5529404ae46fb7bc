"""``attar update``: let clients join or leave a model that was made from sums of features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from attar.cli.arguments import (
    Device,
    Json,
    RequireSignatures,
    Trusted,
    load_source,
    parse_device,
)
from attar.cli.output import console, tables
from attar.core import Upload
from attar.errors import RunError
from attar.fusion import find_files, read_folder
from attar.fusion import update as run_update
from attar.models import Classifier, Evaluation, describe_data, evaluate_on
from attar.running import RunOptions
from attar.uploads import Admission, admit, read_trusted, receive


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """The flags of ``attar update``."""

    folder: Positional[Path]
    add: Annotated[
        UseAppendAction[tuple[Path, ...]], arg(help="The file of a client that joins.")
    ] = ()
    remove: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="A client that leaves: its file; or its name or hash, with --files."),
    ] = ()
    files: Annotated[
        UseAppendAction[tuple[Path, ...]],
        arg(help="A file, or a folder of .attar files, in which names and hashes are looked up."),
    ] = ()
    out: Annotated[Path | None, arg(help="The new model folder; the old one stays.")] = None
    backbone: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="The clients' frozen backbone, if it is not found here by the name they give."),
    ] = ()
    trusted: Trusted = None
    require_signatures: RequireSignatures = False
    data: Annotated[
        str | None, arg(help="A data source whose test part the new model is evaluated on.")
    ] = None
    device: Device = "auto"
    json: Json = False


def update(options: UpdateOptions) -> None:
    """Let clients join or leave a model of sums of features, to the bits of a new fusion."""
    out = options.out
    if out is None:
        raise RunError("Missing output folder.", fix="--out DIR")
    if not options.add and not options.remove:
        raise RunError("Nobody joins or leaves.", fix="--add FILE or --remove FILE")
    old = read_folder(options.folder)
    remove = find_files(old, options.remove, _list_files(options.files))
    trusted = None if options.trusted is None else read_trusted(options.trusted)
    add: list[Upload] = []
    admission = Admission()
    if options.add:
        add, admission = admit(
            receive(options.add), trusted=trusted, require_signatures=options.require_signatures
        )
    device = parse_device(options.device)
    evaluate = None
    evaluated_on = None
    if options.data is not None:
        dataset = load_source(options.data, quiet=options.json)
        evaluated_on = describe_data(len(dataset.test), f"the test part of {options.data}")

        def evaluate(model: Classifier) -> Evaluation:
            return evaluate_on(model, dataset.test, dataset.classes, device=device)

    fused = run_update(
        options.folder,
        add=add,
        remove=remove,
        admission=admission,
        backbones=dict.fromkeys(options.backbone),
        device=device,
        options=RunOptions(out=out, evaluate=evaluate, evaluated_on=evaluated_on),
    )
    console.emit(
        {"out": str(out), **fused.record},
        lambda: tables.show_fused(fused, out, evaluated_on),
        json=options.json,
    )


def _list_files(places: tuple[Path, ...]) -> list[Path]:
    """The files among these, and those in the folders among them."""
    return [
        file
        for place in places
        for file in (sorted(place.glob("*.attar")) if place.is_dir() else [place])
    ]
