"""What the arguments of the command line stand for: data, clients, devices, numbers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from attar.blocks.images import procedural_images
from attar.cli.output import console
from attar.core import Images
from attar.data.dataset import Dataset
from attar.data.images import SUFFIXES, ImageFile, read_images
from attar.data.partition_file import PartitionFile, read_partition
from attar.data.sources import load_data, load_unlabelled, parse_source, parse_whole_option
from attar.errors import DataError, SettingsError
from attar.nets import to_shape
from attar.nets.registry import Shape
from attar.seeds import generator
from attar.training import ClientData, client_names, make_client, parse_clients, server_images

SKETCHED_AT_ONCE = 500
_SKETCHES = {
    "number": (12_000, 1_000_000),
    "size": (32, 1024),
    "channels": (3, 16),
}  # unless given, and at most
_FIX_PICTURE: dict[type[OSError], str] = {
    FileNotFoundError: "check the path: there is no such file",
    PermissionError: "make the file readable for you, for example with chmod u+r, or by its owner",
}


def parse_device(name: str, *, here: bool = True) -> str:
    """``auto`` is the GPU where there is one; ``here=False``: a device of another machine will
    do, for a plan.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(name)
    except RuntimeError:
        raise SettingsError(
            f"There is no device {name!r}.", fix="use cpu, cuda, cuda:1 … or auto"
        ) from None
    if here and wanted.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError("This machine has no CUDA device.", fix="use --device cpu")
    return name


def load_source(source: str, *, quiet: bool) -> Dataset:
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
    """The clients to train, each with its place in the federation (which decides its net)."""
    if data is None and partition is None:
        raise DataError(
            "Say whose images: no data is named.", fix="give --data SOURCE or --partition FILE"
        )
    if data is not None and partition is not None:
        raise DataError(
            "Say whose images: both --data and --partition are given.", fix="leave one of them out"
        )
    if data is not None:
        dataset = load_source(data, quiet=quiet)
        return [
            (
                0,
                make_client(
                    "client" if client == "all" else client, dataset.train, dataset.classes
                ),
            )
        ]
    assert partition is not None
    file, dataset = load_partition(partition, quiet=quiet)
    shares = file.partition.clients
    names = client_names(len(shares))
    places = parse_clients(client, names, str(partition))
    if client == "all":
        places = [place for place in places if len(shares[place])]
    if empty := [names[place] for place in places if not len(shares[place])]:
        raise DataError(
            f"{', '.join(empty)} holds no image in {partition}: there is nothing to train on."
        )
    return [
        (place, make_client(names[place], dataset.train.take(shares[place]), dataset.classes))
        for place in places
    ]


def load_public_images(text: str, *, quiet: bool, labelled: bool = False) -> Images:
    """Images for the server, without labels unless asked for.

    Those that a partition file holds out, a source's training images, all in a folder
    (``images:DIR``), or sketches, nobody's: ``sketches?number=12000&size=32``.
    """
    name, _ = parse_source(text)
    if labelled and (name == "sketches" or name.startswith("images:")):
        raise DataError(
            f"{text!r} has no labels.",
            fix="leave --public-labels out, or name a source that has them",
        )
    if name == "sketches":
        return _sketched(text)
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


def _sketched(text: str) -> Images:
    _, options = parse_source(text)
    if unknown := [key for key in options if key not in _SKETCHES]:
        raise DataError(
            f"{text!r} has unknown options:",
            problems=unknown,
            fix=f"known are {', '.join(_SKETCHES)}",
        )
    number, size, channels = (
        parse_whole_option(text, options, key, most, usual)
        for key, (usual, most) in _SKETCHES.items()
    )
    draws, made = generator(0, "sketches"), []
    for start in range(0, number, SKETCHED_AT_ONCE):
        images = procedural_images(
            min(SKETCHED_AT_ONCE, number - start), (channels, size, size), draws
        )
        made.append((images * 255).round().to(torch.uint8))
    return Images(torch.cat(made), None, f"{number} sketches, drawn by a program")


def read_canonical_images(paths: Sequence[Path], shape: Shape) -> tuple[list[Path], Tensor]:
    """Image files, and those in folders, as canonical images of one shape."""
    if not paths:
        raise DataError(
            "No image is named.", fix="name image files, or folders of them, after the model"
        )
    files: list[Path] = []
    for path in paths:
        files += (
            sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
            if path.is_dir()
            else [path]
        )
    if not files:
        raise DataError(
            f"There is no image in {', '.join(map(str, paths))}.",
            fix=f"images end in {', '.join(SUFFIXES)}",
        )
    images: list[Tensor] = []
    problems: list[str] = []
    fixes: dict[str, None] = {}  # each once, in the order of the problems
    for file in files:
        try:
            pixels = _pixels_of(file)
        except OSError as error:
            problems.append(f"{file}: {error.strerror or error}")
            fixes[_FIX_PICTURE.get(type(error), "see that the file can be read")] = None
        except DataError as error:
            problems += error.problems or [error.what]
            known = file.suffix.lower() in SUFFIXES
            fixes[
                "the file is cut off or damaged: get it again"
                if known
                else f"images end in {', '.join(SUFFIXES)}"
            ] = None
        else:
            images.append(to_shape(pixels.permute(0, 3, 1, 2).float() / 255, shape))
    if problems:
        raise DataError(
            "These images cannot be classified:", problems=problems, fix="; ".join(fixes)
        )
    return files, torch.cat(images)


def _pixels_of(file: Path) -> Tensor:
    """One image (1, H, W, C). An OSError says that the file cannot be read, a DataError that it
    is no whole image.
    """
    data = file.read_bytes()
    return torch.from_numpy(read_images([ImageFile(str(file), lambda: data)], source=str(file)))


def parse_numbers(text: str, flag: str) -> list[float]:
    """``0.5,0.4`` -> numbers."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise SettingsError(f"{flag} {text}: numbers separated by commas are expected.") from None


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
    """Means of the channels of images in [0, 1], which lie there, too."""
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
        raise SettingsError(f"{flag} {text}: whole numbers separated by commas are expected.")
    return [int(number) for number in numbers]


def parse_image_shape(text: str | None, size: int | None, mean: str | None) -> Shape:
    """``3,224,224``, or a size whose channels are as many as the means."""
    if (text is None) == (size is None):
        raise SettingsError(
            "How large are the net's images?", fix="either --sample-shape 3,224,224 or --size 224"
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
    if not text.endswith(".txt"):
        return tuple(name for name in (word.strip() for word in text.split(",")) if name)
    try:
        return tuple(
            name for name in (line.strip() for line in Path(text).read_text().splitlines()) if name
        )
    except UnicodeDecodeError:
        raise SettingsError(
            f"{text} is not a text.", fix="write one class name in each line, as UTF-8"
        ) from None
