"""The values of flags as data."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attar.blocks.images import procedural_images
from attar.cli.flags import Device as Device
from attar.cli.flags import Json as Json
from attar.cli.flags import RequireSignatures as RequireSignatures
from attar.cli.flags import Seed as Seed
from attar.cli.flags import Track as Track
from attar.cli.flags import Trusted as Trusted
from attar.cli.output import console
from attar.core import Images
from attar.data.dataset import Dataset
from attar.data.images import SUFFIXES, ImageFile, read_images
from attar.data.partition_file import PartitionFile, read_partition
from attar.data.sources import load_data, load_unlabelled, parse_source, parse_whole_option
from attar.data.streams import ImageStream, open_stream, stream_split
from attar.errors import DataError, SettingsError
from attar.nets import to_shape
from attar.nets.registry import Shape
from attar.seeds import rng
from attar.training import ClientData, client_names, make_client, parse_clients, server_images

SKETCH_BATCH = 500
OTHER_SUFFIXES = (".pt", ".pth", ".safetensors", ".onnx", ".zip")
# option of sketches -> its default and the most it may be
_SKETCH_OPTIONS = {"number": (12_000, 1_000_000), "size": (32, 1024), "channels": (3, 16)}
_FIX_OF: dict[type[OSError], str] = {
    FileNotFoundError: "check the path: there is no such file",
    PermissionError: "make the file readable for you, for example with chmod u+r, or by its owner",
}


def parse_device(name: str, *, here: bool = True) -> str:
    """A device by name.

    Args:
        name: "cpu", "cuda", "cuda:1" and so on, or "mps"; "auto" is a CUDA device where there is
            one, else the CPU.
        here: Whether this machine must have the device. A plan may be for another one.

    Returns:
        The name as torch takes it.

    Raises:
        SettingsError: There is no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda", "mps"):
        raise SettingsError(
            f"There is no device {name!r}.", fix="use cpu, cuda, cuda:1 …, mps or auto"
        )
    if here and kind == "cuda" and not torch.cuda.is_available():
        raise SettingsError("This machine has no CUDA device.", fix="use --device cpu")
    if here and kind == "mps" and not torch.backends.mps.is_available():
        raise SettingsError(
            "PyTorch finds no Apple GPU here.",
            fix="use --device cpu; an Apple GPU needs a Mac with Apple silicon and macOS 14",
        )
    return name


def load_source(source: str, *, quiet: bool) -> Dataset:
    """The data of a source such as ``fashion-mini``, with a progress bar unless ``quiet``."""
    with console.fetching(quiet=quiet) as progress:
        return load_data(source, progress)


def load_partition(path: Path, *, quiet: bool) -> tuple[PartitionFile, Dataset]:
    """A partition file and the data that it was made for."""
    file = read_partition(path)
    dataset = load_source(file.source, quiet=quiet)
    file.check(dataset.train.labels)
    return file, dataset


def load_clients(
    data: str | None, partition: Path | None, client: str, *, quiet: bool
) -> list[tuple[int, ClientData]]:
    """The clients that ``--data``, ``--partition`` and ``--client`` name, with their images.

    Args:
        data: A data source that belongs to one client.
        partition: A partition file, in place of ``data``.
        client: Numbers in the partition or "all"; with ``data`` the client's name.
        quiet: Whether to show no progress.

    Returns:
        Each client with its place in the federation, which decides its net.

    Raises:
        DataError: Neither or both sources are given, or a client holds no image.
    """
    clients, _ = load_clients_and_tests(data, partition, client, quiet=quiet)
    return clients


def load_clients_and_tests(
    data: str | None, partition: Path | None, client: str, *, quiet: bool
) -> tuple[list[tuple[int, ClientData]], ClientData]:
    """Do what ``load_clients`` does, and return the test images of the source beside it."""
    check_one_source(data, partition)
    if data is not None:
        dataset = load_source(data, quiet=quiet)
        name = "client" if client == "all" else client
        clients = [(0, make_client(name, dataset.train, dataset.classes))]
    else:
        assert partition is not None
        dataset, shares = _load_shares(partition, client, quiet=quiet)
        clients = [
            (place, make_client(name, dataset.train.take(indices), dataset.classes))
            for place, name, indices in shares
        ]
    return clients, make_client("test", dataset.test, dataset.classes)


def load_streams(
    data: str | None, partition: Path | None, client: str, *, quiet: bool
) -> dict[str, ImageStream]:
    """The images of the clients that ``load_clients`` would name, read one by one.

    Raises:
        DataError: Neither or both sources are given, or a client holds no image.
    """
    check_one_source(data, partition)
    if data is not None:
        with console.fetching(quiet=quiet) as progress:
            return {"client" if client == "all" else client: open_stream(data, progress)}
    assert partition is not None
    dataset, shares = _load_shares(partition, client, quiet=quiet)
    return {
        name: stream_split(dataset.train.take(indices), dataset.classes, f"{partition}: {name}")
        for _, name, indices in shares
    }


def check_one_source(data: str | None, partition: Path | None) -> None:
    """Raise a DataError unless exactly one of the two is given."""
    if data is not None and partition is not None:
        raise DataError("Both --data and --partition are given.", fix="leave one of them out")
    if data is None and partition is None:
        raise DataError(
            "No training images are named.", fix="give --data SOURCE or --partition FILE"
        )


def _load_shares(
    path: Path, client: str, *, quiet: bool
) -> tuple[Dataset, list[tuple[int, str, NDArray[np.int64]]]]:
    """The data of a partition, and place, name and images of each client that is named."""
    file, dataset = load_partition(path, quiet=quiet)
    shares = file.partition.clients
    names = client_names(len(shares))
    places = parse_clients(client, names, str(path))
    if client == "all":
        places = [place for place in places if len(shares[place])]
    if empty := [names[place] for place in places if not len(shares[place])]:
        raise DataError(
            f"{', '.join(empty)} holds no image in {path}: there is nothing to train on."
        )
    return dataset, [(place, names[place], shares[place]) for place in places]


def upload_paths(out: Path, names: Sequence[str]) -> dict[str, Path]:
    """Where the upload of each client goes: ``out`` itself, or a file in it.

    Raises:
        SettingsError: ``out`` ends like another kind of file.
        DataError: It is one file, and there are several clients.
    """
    if out.suffix in OTHER_SUFFIXES:
        raise SettingsError(
            f"--out {out}: an upload ends in .attar.",
            fix=f"--out {out.with_suffix('.attar')}, or a folder",
        )
    if out.suffix != ".attar":
        return {name: out / f"{name}.attar" for name in names}
    if len(names) > 1:
        raise DataError(
            f"{out} is one file, but {len(names)} clients train.",
            fix="name a folder with --out, or one --client",
        )
    return dict.fromkeys(names, out)


def load_public_images(text: str, *, quiet: bool, labelled: bool = False) -> Images:
    """Images for the server.

    Args:
        text: A partition file, whose held-out images they are; a data source, for its training
            images; ``images:DIR``, for all images in a folder; or sketches that a program draws:
            ``sketches?number=12000&size=32``.
        quiet: Whether to show no progress.
        labelled: Whether the labels come along.

    Raises:
        DataError: There are no such images, or they have no labels.
    """
    name, _ = parse_source(text)
    if labelled and (name == "sketches" or name.startswith("images:")):
        raise DataError(
            f"{text!r} has no labels.",
            fix="leave --public-labels out, or name a source that has them",
        )
    if name == "sketches":
        return _draw_sketches(text)
    if name.startswith("images:"):
        with console.fetching(quiet=quiet) as progress:
            pixels = torch.from_numpy(load_unlabelled(text, progress))
        return Images(pixels.permute(0, 3, 1, 2).contiguous(), None, text)
    if text.endswith(".json"):
        file, dataset = load_partition(Path(text), quiet=quiet)
        if not len(file.partition.held_out):
            raise DataError(
                f"{text} holds no images back for the server.",
                fix="make it with `attar partition --hold-out 0.2`",
            )
        return server_images(
            dataset.train.take(file.partition.held_out),
            f"{file.source}, held out before the split",
            labelled=labelled,
        )
    return server_images(load_source(text, quiet=quiet).train, text, labelled=labelled)


def _draw_sketches(text: str) -> Images:
    _, options = parse_source(text)
    if unknown := [key for key in options if key not in _SKETCH_OPTIONS]:
        raise DataError(
            f"{text!r} has unknown options:",
            problems=unknown,
            fix=f"known are {', '.join(_SKETCH_OPTIONS)}",
        )
    number, size, channels = (
        parse_whole_option(text, options, key, most, default)
        for key, (default, most) in _SKETCH_OPTIONS.items()
    )
    draws = rng(0, "sketches")
    batches = []
    for start in range(0, number, SKETCH_BATCH):
        shape = (channels, size, size)
        images = procedural_images(min(SKETCH_BATCH, number - start), shape, draws)
        batches.append((images * 255).round().to(torch.uint8))
    return Images(torch.cat(batches), None, f"{number} sketches, drawn by a program")


def read_canonical_images(paths: Sequence[Path], shape: Shape) -> tuple[list[Path], Tensor]:
    """Image files as canonical images of one shape.

    Args:
        paths: Image files, and folders that are searched for them.
        shape: Channels, height and width to convert to.

    Returns:
        The files, and their images (N, *shape) in [0, 1].

    Raises:
        DataError: There is no image, or some cannot be read; the error names each.
    """
    files = _find_images(paths)
    images: list[Tensor] = []
    problems: list[str] = []
    fixes: dict[str, None] = {}  # each once, in the order of the problems
    for file in files:
        try:
            pixels = _read_pixels(file)
        except OSError as error:
            problems.append(f"{file}: {error.strerror or error}")
            fixes[_FIX_OF.get(type(error), "see that the file can be read")] = None
        except DataError as error:
            problems += error.problems or [error.what]
            if file.suffix.lower() in SUFFIXES:
                fixes["the file is cut off or damaged: get it again"] = None
            else:
                fixes[f"images end in {', '.join(SUFFIXES)}"] = None
        else:
            images.append(to_shape(pixels.permute(0, 3, 1, 2).float() / 255, shape))
    if problems:
        raise DataError(
            "These images cannot be classified:", problems=problems, fix="; ".join(fixes)
        )
    return files, torch.cat(images)


def _find_images(paths: Sequence[Path]) -> list[Path]:
    if not paths:
        raise DataError(
            "No image is named.", fix="name image files, or folders of them, after the model"
        )
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        else:
            files.append(path)
    if not files:
        raise DataError(
            f"There is no image in {', '.join(map(str, paths))}.",
            fix=f"images end in {', '.join(SUFFIXES)}",
        )
    return files


def _read_pixels(file: Path) -> Tensor:
    """One image (1, H, W, C).

    Raises:
        OSError: The file cannot be read.
        DataError: It is no whole image.
    """
    data = file.read_bytes()
    return torch.from_numpy(read_images([ImageFile(str(file), lambda: data)], source=str(file)))


def parse_numbers(text: str, flag: str) -> list[float]:
    """``0.5,0.4`` -> numbers; ``flag`` is named in errors."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise SettingsError(f"{flag} {text}: expected numbers separated by commas.") from None


def parse_per_channel(text: str, flag: str, channels: int) -> list[float]:
    """One number for each channel, or one for all."""
    numbers = parse_numbers(text, flag)
    if len(numbers) not in (1, channels):
        raise SettingsError(
            f"{flag} {text}: the images have {channels} channels.",
            fix="give one number for each, or one for all",
        )
    return numbers * channels if len(numbers) == 1 else numbers


def parse_means(text: str, channels: int) -> list[float]:
    """The mean of each channel of images in [0, 1]."""
    means = parse_per_channel(text, "--mean", channels)
    if any(not 0 <= mean <= 1 for mean in means):
        raise SettingsError(
            f"--mean {text}: images are in [0, 1], and so are their means.",
            fix="divide --mean and --std by 255",
        )
    return means


def parse_whole_numbers(text: str, flag: str) -> list[int]:
    """``5,0,7`` -> whole numbers."""
    numbers = parse_numbers(text, flag)
    if not all(number.is_integer() for number in numbers):
        raise SettingsError(f"{flag} {text}: expected whole numbers separated by commas.")
    return [int(number) for number in numbers]


def parse_image_shape(text: str | None, size: int | None, mean: str | None) -> Shape:
    """The shape of a net's images.

    Args:
        text: ``3,224,224``: channels, height and width.
        size: In place of ``text``: height and width.
        mean: The means of the channels; with ``size`` they say how many channels there are, 3
            where it is None.

    Raises:
        SettingsError: Neither or both are given, or they name no shape.
    """
    if (text is None) == (size is None):
        raise SettingsError(
            "The shape of the net's images must be given once.",
            fix="either --sample-shape 3,224,224 or --size 224",
        )
    sides = [3 if mean is None else len(mean.split(",")), size or 0, size or 0]
    if text is not None:
        sides = [int(side) for side in parse_numbers(text, "--sample-shape")]
    if len(sides) != 3 or min(sides) < 1:
        raise SettingsError(
            "An image has channels, height and width, each at least 1.",
            fix="for example --sample-shape 3,224,224",
        )
    return sides[0], sides[1], sides[2]


def parse_classes(text: str) -> tuple[str, ...]:
    """``cat,dog,bird``, or a .txt file with a name in each line (for names that have commas)."""
    try:
        words = Path(text).read_text().splitlines() if text.endswith(".txt") else text.split(",")
    except UnicodeDecodeError:
        raise SettingsError(
            f"{text} is not a text file.", fix="write one class name in each line, as UTF-8"
        ) from None
    return tuple(name for name in (word.strip() for word in words) if name)
