"""What the command line's words stand for: sources, clients, models, devices."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from attar.blocks.images.augment import Augment
from attar.blocks.images.procedural import sketches
from attar.cli.output import console
from attar.core import Deployable, Images, ModelSpec, Part, to_shape
from attar.data.dataset import Dataset
from attar.data.images import SUFFIXES, Picture, read_images
from attar.data.partition_file import PartitionFile, read_partition
from attar.data.sources import load_data, load_unlabelled, parse_source, whole_option
from attar.errors import DataError, RunError, SettingsError
from attar.models.folder import load_description
from attar.models.huggingface import PREFIX, checkpoint, spec_called
from attar.nets.registry import Shape
from attar.seeds import generator
from attar.training.classifier import group_clients
from attar.training.clients import ClientData
from attar.training.cvae import Preset, group_cvaes
from attar.training.from_partition import as_client, client_names, server_images
from attar.training.groups import muster
from attar.training.loop import LocalStack
from attar.training.mutual import KNOWLEDGE
from attar.training.objectives import Mutual, Objective
from attar.training.optimisers import Optimiser
from attar.training.options import LocalTraining, Normalise, Schedule
from attar.training.resident import Visit
from attar.training.stacking import Stack
from attar.training.statistics import StatisticsSettings
from attar.uploads.bundle import read_bundle

SKETCHED_AT_ONCE = 500
_SKETCHES = {"number": (12_000, 1_000_000), "size": (32, 1024), "channels": (3, 16)}  # unless given, and at most
_FIX_PICTURE: dict[type[OSError], str] = {
    FileNotFoundError: "check the path: there is no such file",
    PermissionError: "make the file readable for you, for example with chmod u+r, or by its owner",
}
NETS_UNLESS_GIVEN = {None: "lenet5", "classifier": "lenet5", "cvae": "cvae-small"}


@dataclass(frozen=True)
class TrainingFlags:
    """``LocalTraining`` as flags: what is left out is the default of the kind of net (a CVAE's are FedMHO's Table 3)."""

    epochs: int | None = None  # 30; of a CVAE 40, or 30 to 50 by --preset
    batch_size: int | None = None  # 128; of a CVAE 64
    optimiser: Optimiser | None = None  # sgd; of a CVAE adam
    lr: float | None = None  # 0.01; of a CVAE 0.05, 0.003 or 0.001 by --preset and size
    momentum: float | None = None  # of sgd: 0.9
    weight_decay: float | None = None  # 0
    schedule: Schedule | None = None  # constant; step: a tenth after 1/2 and again after 3/4 of the epochs
    sam: float | None = None  # radius rho of sharpness-aware minimisation; 0 = off
    clip: float | None = None  # largest gradient norm of a client
    augment: Augment | None = None  # none
    normalise: Normalise | None = None  # centred: images reach a fresh classifier in [-1, 1]; plain: in [0, 1], as they are
    init: Literal["shared", "separate"] | None = None  # shared
    validation: float | None = None  # share of each client's images kept back to report its accuracy: 0
    stack: Stack | None = None  # auto
    compile_blocks: bool = False  # of a transformer, by torch.compile: a slower start and, on a GPU, faster steps

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}


@dataclass(frozen=True)
class StatisticsFlags:
    """Statistics of features as flags: nothing of them is sent unless the client says so."""

    statistics: bool = False  # send, for each class held, the mean of the features, their spread and the own distances
    statistics_dimensions: int = 64  # wider features are projected to so many
    statistics_epsilon: float | None = None  # of differential privacy: noise is added to them; needs --statistics-clip
    statistics_delta: float = 1e-5
    statistics_clip: float | None = None  # the longest feature that is let through

    def settings(self) -> StatisticsSettings | None:
        """How they are measured; None where they stay at home."""
        if not self.statistics:
            if self != StatisticsFlags():
                raise SettingsError(
                    "There are no statistics to protect.", fix="send them with --statistics, or leave its flags out"
                )
            return None
        return StatisticsSettings(
            self.statistics_dimensions,
            epsilon=self.statistics_epsilon,
            delta=self.statistics_delta,
            clip=self.statistics_clip,
        )


def stacks_called(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    flags: TrainingFlags,
    *,
    preset: Preset,
    seed: int,
    device: str,
    initial: Part | None,
    knowledge: ModelSpec | None = None,
) -> list[LocalStack]:
    """The trainings of these clients: each net says by its kind whether it classifies or is an autoencoder.

    With ``knowledge`` a classifier stays at home, and this network is trained beside it and sent; ``initial`` is then its start.
    """
    weak = [(client, spec) for client, spec in zip(clients, specs, strict=True) if spec.kind == "cvae"]
    strong = [(client, spec) for client, spec in zip(clients, specs, strict=True) if spec.kind != "cvae"]
    if weak and knowledge is not None:
        raise SettingsError("A CVAE has no knowledge network beside it.", fix="leave --knowledge out, or train classifiers")
    if weak and initial is not None:
        raise SettingsError("A CVAE starts from no given model: only decoders travel.", fix="leave --start out")
    stacks: list[LocalStack] = []
    if strong:
        training = LocalTraining(**flags.given())
        chosen = [client for client, _ in strong], [spec for _, spec in strong]
        if knowledge is not None:
            crews = muster(
                *chosen,
                training,
                Objective(mutual=Mutual(knowledge)),
                seats=len(strong),
                seed=seed,
                device=device,
                initial=initial,
            )
            received = {} if initial is None else {KNOWLEDGE: initial}
            return stacks + [crew.stack([client.name for client in crew.clients], Visit(received=received)) for crew in crews]
        stacks += group_clients(*chosen, training, seed=seed, device=device, initial=initial)
    if weak:
        chosen = [client for client, _ in weak], [spec for _, spec in weak]
        stacks += group_cvaes(*chosen, flags.given(), preset=preset, seed=seed, device=device)
    return stacks


def specs_called(names: str | None, kind: Literal["classifier", "cvae"] | None) -> list[ModelSpec]:
    """The nets that are named, all of the kind that is asked for; its usual one where none is named."""
    specs = nets_called(names or NETS_UNLESS_GIVEN[kind])
    if wrong := [f"{spec} is a {spec.kind}" for spec in specs if spec.kind != (kind or spec.kind) or spec.kind == "decoder"]:
        raise SettingsError(f"Nets that cannot be trained as {kind or 'classifier or cvae'}:", problems=wrong)
    return specs


def device_called(name: str, *, here: bool = True) -> str:
    """``auto`` is the GPU where there is one; ``here=False``: a device of another machine will do, for a plan."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"There is no device {name!r}.", fix="use cpu, cuda, cuda:1 … or auto") from None
    if here and wanted.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError("This machine has no CUDA device.", fix="use --device cpu")
    return name


def nets_called(names: str) -> list[ModelSpec]:
    """``lenet5,mlp:hidden=64,layers=1`` -> two specs: a piece with = that names no net belongs to the net before it."""
    pieces: list[str] = []
    for piece in filter(None, (text.strip() for text in names.split(","))):
        if "=" in piece and ":" not in piece and pieces:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    if not pieces:
        raise SettingsError("No net is named.", fix="for example --net lenet5,cnn1 (see `attar ls nets`)")
    return [spec_called(piece) for piece in pieces]


def start_called(start: Path | None, net: str | None) -> Part | None:
    """The weights to start from: those of ``--start``, or of the checkpoint that is the net itself; None: fresh ones."""
    if start is None and net is not None and net.startswith(PREFIX):
        return checkpoint(net)
    return None if start is None else starting_part(start)


def load_source(source: str, *, quiet: bool) -> Dataset:
    with console.fetching(quiet=quiet) as progress:
        return load_data(source, progress)


def load_partition(path: Path, *, quiet: bool) -> tuple[PartitionFile, Dataset]:
    """A partition file and the data that it was made for."""
    file = read_partition(path)
    dataset = load_source(file.source, quiet=quiet)
    file.check(dataset.train.labels)
    return file, dataset


def clients_called(data: str | None, partition: Path | None, client: str, *, quiet: bool) -> list[tuple[int, ClientData]]:
    """The clients to train, each with its place in the federation (which decides its net)."""
    if data is None and partition is None:
        raise DataError("Say whose images: no data is named.", fix="give --data SOURCE or --partition FILE")
    if data is not None and partition is not None:
        raise DataError("Say whose images: both --data and --partition are given.", fix="leave one of them out")
    if data is not None:
        dataset = load_source(data, quiet=quiet)
        return [(0, as_client("client" if client == "all" else client, dataset.train, dataset.classes))]
    assert partition is not None
    file, dataset = load_partition(partition, quiet=quiet)
    shares = file.partition.clients
    names = client_names(len(shares))
    places = places_called(client, names, str(partition))
    if client == "all":
        places = [place for place in places if len(shares[place])]
    if empty := [names[place] for place in places if not len(shares[place])]:
        raise DataError(f"{', '.join(empty)} holds no image in {partition}: there is nothing to train on.")
    return [(place, as_client(names[place], dataset.train.take(shares[place]), dataset.classes)) for place in places]


def places_called(text: str, names: Sequence[str], where: str) -> list[int]:
    """``all``, ``3``, ``client-3``, ``0-4``, or several of these separated by commas."""
    if text == "all":
        return list(range(len(names)))
    places: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if word in names:
            places.append(names.index(word))
        elif word.isdecimal() and int(word) < len(names):
            places.append(int(word))
        elif dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last) < len(names):
            places += range(int(first), int(last) + 1)
        else:
            raise DataError(f"{where} has no client {word!r}.", fix=f"use all, or 0 to {len(names) - 1}, such as 3 or 0-2,4")
    return sorted(set(places))


def public_images(text: str, *, quiet: bool, labelled: bool = False) -> Images:
    """Images for the server, without labels unless asked for.

    Those that a partition file holds out, a source's training images, all in a folder (``images:DIR``), or sketches, nobody's:
    ``sketches?number=12000&size=32``.
    """
    name, _ = parse_source(text)
    if labelled and (name == "sketches" or name.startswith("images:")):
        raise DataError(f"{text!r} has no labels.", fix="leave --public-labels out, or name a source that has them")
    if name == "sketches":
        return _sketched(text)
    if name.startswith("images:"):
        with console.fetching(quiet=quiet) as progress:
            pixels = torch.from_numpy(load_unlabelled(text, progress))
        return Images(pixels.permute(0, 3, 1, 2).contiguous(), None, text)
    if text.endswith(".json"):
        file, dataset = load_partition(Path(text), quiet=quiet)
        if not len(file.partition.held_out):
            raise DataError(f"{text} holds no images back for the server.", fix="make it with `attar partition --hold-out 0.2`")
        return server_images(
            dataset.train.take(file.partition.held_out), f"{file.source}, held out before the split", labelled=labelled
        )
    return server_images(load_source(text, quiet=quiet).train, text, labelled=labelled)


def _sketched(text: str) -> Images:
    _, options = parse_source(text)
    if unknown := [key for key in options if key not in _SKETCHES]:
        raise DataError(f"{text!r} has unknown options:", problems=unknown, fix=f"known are {', '.join(_SKETCHES)}")
    number, size, channels = (whole_option(text, options, key, most, usual) for key, (usual, most) in _SKETCHES.items())
    draws, made = generator(0, "sketches"), []
    for start in range(0, number, SKETCHED_AT_ONCE):
        images = sketches(min(SKETCHED_AT_ONCE, number - start), (channels, size, size), draws)
        made.append((images * 255).round().to(torch.uint8))
    return Images(torch.cat(made), None, f"{number} sketches, drawn by a program")


def model_at(path: Path) -> Deployable:
    """A model folder, or the classifier of an upload file."""
    if path.is_dir():
        return load_description(path)
    if not path.exists():
        raise RunError(f"There is no model at {path}.", fix="name a model folder (--out of `attar fuse`) or an .attar file")
    if path.suffix.lower() in SUFFIXES:
        raise RunError(f"{path} is an image, not a model.", fix="the model comes first: attar predict MODEL IMAGES")
    upload = read_bundle(path)
    for name in ("classifier", "knowledge", "deployed"):
        if name in upload.parts:
            return upload.parts[name]
    raise RunError(f"{path} holds no classifier but: {', '.join(upload.parts)}.")


def starting_part(path: Path) -> Part:
    """The single net in a model folder, an upload or a Hugging Face checkpoint, to start from."""
    if str(path).startswith(PREFIX):
        return checkpoint(str(path))
    model = model_at(path)
    if not isinstance(model, Part):
        raise RunError(f"{path} is a mixture of {len(model.members)} nets, which cannot be a start.", fix="name a single net")
    return model


def canonical_images(paths: Sequence[Path], shape: Shape) -> tuple[list[Path], Tensor]:
    """Image files, and those in folders, as canonical images of one shape."""
    if not paths:
        raise DataError("No image is named.", fix="name image files, or folders of them, after the model")
    files: list[Path] = []
    for path in paths:
        files += sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise DataError(f"There is no image in {', '.join(map(str, paths))}.", fix=f"images end in {', '.join(SUFFIXES)}")
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
            fixes["the file is cut off or damaged: get it again" if known else f"images end in {', '.join(SUFFIXES)}"] = None
        else:
            images.append(to_shape(pixels.permute(0, 3, 1, 2).float() / 255, shape))
    if problems:
        raise DataError("These images cannot be classified:", problems=problems, fix="; ".join(fixes))
    return files, torch.cat(images)


def _pixels_of(file: Path) -> Tensor:
    """One image (1, H, W, C). An OSError says that the file cannot be read, a DataError that it is no whole image."""
    data = file.read_bytes()
    return torch.from_numpy(read_images([Picture(str(file), lambda: data)], source=str(file)))


def numbers_called(text: str, flag: str) -> list[float]:
    """``0.5,0.4`` -> numbers."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise SettingsError(f"{flag} {text}: numbers separated by commas are expected.") from None


def per_channel(text: str, flag: str, channels: int) -> list[float]:
    """One number for each channel, or one for all."""
    numbers = numbers_called(text, flag)
    if len(numbers) not in (1, channels):
        raise SettingsError(
            f"{flag} {text}: the images have {channels} channels.", fix="give one number for each, or one for all"
        )
    return numbers * channels if len(numbers) == 1 else numbers


def means_called(text: str, channels: int) -> list[float]:
    """Means of the channels of images in [0, 1], which lie there, too."""
    means = per_channel(text, "--mean", channels)
    if any(not 0 <= mean <= 1 for mean in means):
        raise SettingsError(
            f"--mean {text}: images are in [0, 1], and so are their means.", fix="divide --mean and --std by 255"
        )
    return means


def whole_numbers(text: str, flag: str) -> list[int]:
    """``5,0,7`` -> whole numbers."""
    numbers = numbers_called(text, flag)
    if not all(number.is_integer() for number in numbers):
        raise SettingsError(f"{flag} {text}: whole numbers separated by commas are expected.")
    return [int(number) for number in numbers]


def image_shape(text: str | None, size: int | None, mean: str | None) -> Shape:
    """``3,224,224``, or a size whose channels are as many as the means."""
    if (text is None) == (size is None):
        raise SettingsError("How large are the net's images?", fix="either --sample-shape 3,224,224 or --size 224")
    sides = [3 if mean is None else len(mean.split(",")), size or 0, size or 0]
    if text is not None:
        sides = [int(side) for side in numbers_called(text, "--sample-shape")]
    if len(sides) != 3 or min(sides) < 1:
        raise SettingsError(
            "An image has channels, height and width, each at least 1.", fix="for example --sample-shape 3,224,224"
        )
    return sides[0], sides[1], sides[2]


def classes_called(text: str) -> tuple[str, ...]:
    """``cat,dog,bird``, or a .txt file with a name in each line (for names that have commas)."""
    if not text.endswith(".txt"):
        return tuple(name for name in (word.strip() for word in text.split(",")) if name)
    try:
        return tuple(name for name in (line.strip() for line in Path(text).read_text().splitlines()) if name)
    except UnicodeDecodeError:
        raise SettingsError(f"{text} is not a text.", fix="write one class name in each line, as UTF-8") from None
