"""``attar pack``: pack a classifier of one's own, from PyTorch or ONNX, into an upload."""

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
    parse_numbers,
    parse_per_channel,
    parse_whole_numbers,
)
from attar.cli.output import console, tables
from attar.core import Upload
from attar.errors import RunError, SettingsError
from attar.nets import Shape
from attar.packing import load_net
from attar.packing.onnx import PackedOnnx, pack_onnx
from attar.packing.onnx.layout import Layout
from attar.packing.pack import pack as pack_net
from attar.privacy import describe_upload
from attar.training import StatisticsFlags, add_statistics, make_client
from attar.uploads import read_bundle, write_bundle

NO_STATISTICS = StatisticsFlags()


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The flags of ``attar pack``."""

    out: Annotated[Path, arg(aliases=["-o"], help="The upload, a .attar file.")]
    module: Annotated[
        str | None, arg(help="package.module:factory, your own code that makes the net.")
    ] = None
    weights: Annotated[
        Path | None, arg(help="Its weights: safetensors, or a state dict of torch.save.")
    ] = None
    onnx: Annotated[
        Path | None,
        arg(help="In place of --module and --weights: an ONNX file, from TensorFlow or others."),
    ] = None
    output: Annotated[
        str | None, arg(help="With --onnx: the result to take, if there are several.")
    ] = None
    layout: Annotated[
        Layout | None,
        arg(help="With --onnx: where the channels of its images are; by their shape unless given."),
    ] = None
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
    """Pack your own classifier, from PyTorch or ONNX, into an upload, as data: the server rebuilds
    it without running your code.
    """
    _check_origin(options)
    shape = None
    if options.onnx is None or options.sample_shape is not None or options.size is not None:
        shape = parse_image_shape(options.sample_shape, options.size, options.mean)
    statistics = options.statistics.settings()
    _check_out(options)
    if (statistics is None) != (options.data is None):
        raise SettingsError(
            "--statistics and --data require each other: statistics are measured on your images.",
            fix="give both --statistics and --data, or neither",
        )
    upload, packed = _make_upload(options, shape)
    if statistics is not None and options.data is not None:
        source = load_source(options.data, quiet=options.json)
        owner = make_client(upload.client, source.train, source.classes)
        upload = add_statistics(upload, owner, statistics)
    size = write_bundle(options.out, upload)
    read_bundle(options.out)

    def show() -> None:
        tables.show_packed(upload, size, options.out)
        if packed is not None:
            _show_compared(packed)
        if statistics is not None:
            tables.show_missing_statistics([upload])

    record = {**describe_upload(upload, size), "file": str(options.out)}
    if packed is not None:
        record["largest_difference"] = packed.largest_difference
        record["notes"] = list(packed.notes)
    console.emit(record, show, json=options.json)


def _check_origin(options: PackOptions) -> None:
    """Refuse two nets at once, none, and half of one."""
    code = options.module is not None or options.weights is not None
    if options.onnx is not None and code:
        raise SettingsError(
            "--onnx stands in place of --module and --weights.", fix="leave one or the other out"
        )
    if options.onnx is None and (options.module is None or options.weights is None):
        raise SettingsError(
            "No net is named.",
            fix="--module package.module:factory with --weights FILE, or --onnx FILE",
        )
    if options.onnx is None and (options.output is not None or options.layout is not None):
        raise SettingsError(
            "--output and --layout are about an ONNX file.", fix="leave them out, or give --onnx"
        )


def _show_compared(packed: PackedOnnx) -> None:
    for note in packed.notes:
        console.say(note)
    console.say(
        f"Compared with onnxruntime on {packed.images_compared} random images: logits differ by "
        f"at most {packed.largest_difference:.1e}"
    )


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


def _make_upload(options: PackOptions, shape: Shape | None) -> tuple[Upload, PackedOnnx | None]:
    """The upload, and what became of an ONNX file."""
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
    examples = options.examples or (1 if label_counts is None else sum(label_counts))
    if options.onnx is not None:
        packed = pack_onnx(
            options.onnx,
            input_shape=shape,
            layout=options.layout,
            output=options.output,
            classes=classes,
            mean=None if options.mean is None else parse_numbers(options.mean, "--mean"),
            std=None if options.std is None else parse_numbers(options.std, "--std"),
            client=options.client_name,
            num_examples=examples,
            label_counts=label_counts,
        )
        return packed.upload, packed
    assert shape is not None, "parsed, since there is no ONNX file"
    assert options.module is not None, "checked by _check_origin"
    assert options.weights is not None, "checked by _check_origin"
    mean = None if options.mean is None else parse_means(options.mean, shape[0])
    std = None if options.std is None else parse_per_channel(options.std, "--std", shape[0])
    sys.path.insert(0, str(Path.cwd()))  # where people keep their own modules
    upload = pack_net(
        load_net(options.module, options.weights),
        input_shape=shape,
        classes=classes,
        mean=mean,
        std=std,
        client=options.client_name,
        num_examples=examples,
        label_counts=label_counts,
    )
    return upload, None
