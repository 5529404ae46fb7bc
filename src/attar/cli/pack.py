"""``attar pack``: pack a PyTorch classifier of one's own into an upload."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, arg

from attar.cli.arguments import (
    Json,
    load_source,
    parse_image_shape,
    parse_means,
    parse_per_channel,
    parse_whole_numbers,
)
from attar.cli.output import console, tables
from attar.core import Upload
from attar.errors import RunError, SettingsError
from attar.packing import load_net
from attar.packing.pack import pack as pack_net
from attar.privacy import describe_upload
from attar.training import StatisticsFlags, add_statistics, make_client
from attar.uploads import read_bundle, write_bundle

NO_STATISTICS = StatisticsFlags()


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The flags of ``attar pack``."""

    module: Annotated[str, arg(help="package.module:factory, your own code that makes the net.")]
    weights: Annotated[Path, arg(help="Its weights: safetensors, or a state dict of torch.save.")]
    out: Annotated[Path, arg(aliases=["-o"], help="The upload, a .attar file.")]
    sample_shape: Annotated[
        str | None, arg(help="Channels, height and width of its images, such as 3,224,224.")
    ] = None
    size: Annotated[
        int | None,
        arg(help="Instead: the side of square images, with as many channels as --mean, or 3."),
    ] = None
    classes: Annotated[
        str | None,
        arg(help="Names in the order of the logits, separated by commas; numbers unless given."),
    ] = None
    mean: Annotated[str | None, arg(help="Per channel, of images in [0, 1]; 0 unless given.")] = (
        None
    )
    std: Annotated[str | None, arg(help="Per channel; 1 unless given.")] = None
    client: Annotated[str | None, arg(help="The client's name; that of --out unless given.")] = None
    examples: Annotated[
        int | None, arg(help="How many it was trained on; the sum of --label-counts, or 1.")
    ] = None
    label_counts: Annotated[
        str | None, arg(help="How many of each class, separated by commas; withheld unless given.")
    ] = None
    data: Annotated[
        str | None, arg(help="Your own labelled images, for --statistics; they stay here.")
    ] = None
    statistics: OmitArgPrefixes[StatisticsFlags] = NO_STATISTICS
    json: Json = False

    @property
    def client_name(self) -> str:
        """The client's name; that of ``--out`` unless given."""
        return self.client or self.out.stem


def pack(options: PackOptions) -> None:
    """Pack your own PyTorch classifier into an upload, as data: the server rebuilds it without
    running your code.
    """
    shape = parse_image_shape(options.sample_shape, options.size, options.mean)
    statistics = options.statistics.settings()
    _check_out(options)
    if (statistics is None) != (options.data is None):
        raise SettingsError(
            "--statistics and --data require each other: statistics are measured on your images.",
            fix="give both --statistics and --data, or neither",
        )
    upload = _make_upload(options, shape)
    if statistics is not None and options.data is not None:
        source = load_source(options.data, quiet=options.json)
        owner = make_client(upload.client, source.train, source.classes)
        upload = add_statistics(upload, owner, statistics)
    size = write_bundle(options.out, upload)
    read_bundle(options.out)

    def show() -> None:
        tables.show_packed(upload, size, options.out)
        if statistics is not None:
            tables.show_missing_statistics([upload])

    record = {**describe_upload(upload, size), "file": str(options.out)}
    console.emit(record, show, json=options.json)


def _check_out(options: PackOptions) -> None:
    """Refuse a wrong ending, and to overwrite the upload of another client."""
    out = options.out
    if out.suffix != ".attar":
        raise SettingsError(
            f"{out}: an upload ends in .attar.",
            fix=f"end it in .attar: -o {out.with_suffix('.attar')}",
        )
    if out.exists() and (owner := read_bundle(out).client) != options.client_name:
        raise RunError(
            f"{out} is an upload of {owner}.",
            fix=f"name another file, or delete it; or is this --client {owner}?",
        )


def _make_upload(options: PackOptions, shape: tuple[int, int, int]) -> Upload:
    sys.path.insert(0, str(Path.cwd()))  # where people keep their own modules
    label_counts = None
    if options.label_counts is not None:
        label_counts = parse_whole_numbers(options.label_counts, "--label-counts")
    if options.examples is not None and options.examples < 1:
        raise SettingsError(
            f"--examples must be at least 1 (got {options.examples}).",
            fix="give the number of training images",
        )
    classes = None
    if options.classes is not None:
        classes = [name.strip() for name in options.classes.split(",")]
    mean = None if options.mean is None else parse_means(options.mean, shape[0])
    std = None if options.std is None else parse_per_channel(options.std, "--std", shape[0])
    return pack_net(
        load_net(options.module, options.weights),
        input_shape=shape,
        classes=classes,
        mean=mean,
        std=std,
        client=options.client_name,
        num_examples=options.examples or (1 if label_counts is None else sum(label_counts)),
        label_counts=label_counts,
    )
