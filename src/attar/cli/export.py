"""``attar export``: a model as one file for programs without attar."""

from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import Positional, arg

from attar.cli.arguments import Json, load_source, parse_whole_numbers
from attar.cli.output import console
from attar.deploy import export_onnx, export_torch
from attar.errors import SettingsError
from attar.internal.text import human_bytes
from attar.models import load_deployable
from attar.nets import Shape

Format = Literal["onnx", "torch"]
ENDINGS: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
MOST_COMPARED = 1000  # images of --data
LONGEST_SIDE = 4096  # of images that go in


def export(
    model: Positional[Path],
    /,
    *,
    out: Annotated[Path, arg(aliases=["-o"], help="The file: MODEL.onnx or MODEL.pt2.")],
    format: Annotated[
        Format | None, arg(help="onnx, or torch (torch.export); by the ending unless given.")
    ] = None,
    image_shape: Annotated[
        str | None,
        arg(help="Channels, height and width of the images that go in; the net's unless given."),
    ] = None,
    data: Annotated[
        str | None, arg(help="A data source: the file is compared with the model on it, too.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a model folder or an upload as ONNX or for torch.export.load, preprocessing inside.

    Images go in as floats from 0 to 1, batch x channels x height x width; logits and probabilities
    come out. The file is kept only if its logits are at most 1e-4 from the model's.
    """
    chosen = _parse_format(out, format)
    deployable = load_deployable(model)
    pixels = None
    if data is not None:
        test = load_source(data, quiet=json).test.images[:MOST_COMPARED]
        pixels = torch.from_numpy(test).permute(0, 3, 1, 2)
    shape = None if image_shape is None else _parse_shape(image_shape)
    write = {"onnx": export_onnx, "torch": export_torch}[chosen]
    done = write(deployable, out, image_shape=shape, pixels=pixels)
    record = {
        "model": str(model),
        "file": str(out),
        "format": done.format,
        "bytes": done.bytes,
        "image_shape": list(done.image_shape),
        "classes": list(done.classes),
        "images_compared": done.images_checked,
        "largest_difference": done.largest_difference,
    }

    def show() -> None:
        channels, height, width = done.image_shape
        takes = f"images batch x {channels} x {height} x {width} from 0 to 1"
        console.say(f"{out}: {human_bytes(done.bytes)}, {takes}, {len(done.classes)} classes")
        compared = f"Compared with the model on {done.images_checked:,} images"
        console.say(f"{compared}: logits differ by at most {done.largest_difference:.1e}")

    console.emit(record, show, json=json)


def _parse_shape(text: str) -> Shape:
    """``3,480,640``: channels, height and width."""
    sides = parse_whole_numbers(text, "--image-shape")
    if len(sides) != 3 or min(sides) < 1 or max(sides) > LONGEST_SIDE:
        raise SettingsError(
            f"--image-shape {text}: channels, height and width are expected, each from 1 to "
            f"{LONGEST_SIDE}.",
            fix="for example --image-shape 3,480,640",
        )
    return sides[0], sides[1], sides[2]


def _parse_format(out: Path, format: Format | None) -> Format:
    """The format, from the flag or the ending of the file; both must agree."""
    by_ending = {ending: name for name, ending in ENDINGS.items()}
    found = by_ending.get(out.suffix.lower())
    if found is None or (format is not None and found != format):
        wanted = [ENDINGS[format]] if format is not None else list(ENDINGS.values())
        raise SettingsError(
            f"--out {out} must end in {' or '.join(wanted)}.",
            fix=f"--out {out.with_suffix(wanted[0])}",
        )
    return found
