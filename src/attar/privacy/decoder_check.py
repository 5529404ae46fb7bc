"""How like real images synthetic ones are: as sets (FID), and one by one (does a decoder give
training images away?).

Distances between two images are root mean squares over pixels in [0, 1]: 0 is the same picture,
1 black against white. Images larger than 64 pixels a side are compared at 64: what a person
would recognise is there, and thousands of them fit into memory.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attar.blocks.images import Decoders, share_out
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import DataError, RunError
from attar.fusion import server_for
from attar.nets import to_shape
from attar.nets.registry import Shape
from attar.seeds import generator
from attar.training import ClassifierTraining, ClientData, LocalTraining

CHUNK = 256
COMPARED_SIDE = 64
FEATURE_NET = ModelSpec("lenet5")
FEATURE_SIDE = 32
FEATURE_TRAINING = LocalTraining(epochs=10, batch_size=64, optimiser="adam", lr=1e-3)
INCEPTION_SIDE = 299
SAME = 0.5 / 255  # half a grey level


@dataclass(frozen=True)
class Features:
    """A map from images (N, C, H, W), canonical or bytes, to (N, F), and what it is, for the record."""

    name: str
    of: Callable[[Tensor], Tensor]

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        return torch.cat([self.of(_canonical(some)).double().cpu() for some in images.split(CHUNK)])


def inception_features(file: Path, device: str = "cpu") -> Features:
    """A TorchScript file that maps (x - 128) / 128 of RGB images at 299 x 299, (N, 3, 299, 299),
    to features (N, F).

    With the published Inception that is FID as published. Such a file is a program: only run one
    that you trust.
    """
    try:
        with (
            warnings.catch_warnings()
        ):  # torch wants torch.export, but the published Inception is TorchScript
            warnings.simplefilter("ignore", DeprecationWarning)
            net = torch.jit.load(str(file), map_location=device).eval()
    except (RuntimeError, ValueError, OSError) as error:
        raise RunError(f"{file} is no TorchScript file ({str(error).splitlines()[0]}).") from None

    @torch.no_grad()
    def of(images: Tensor) -> Tensor:
        enlarged = to_shape(images.to(device), (3, INCEPTION_SIDE, INCEPTION_SIDE))
        features: Tensor = net((enlarged * 255 - 128) / 128)
        return features.flatten(1)

    try:
        told = of(torch.rand(2, 3, 8, 8, generator=generator(0, "two images")))
        fault = (
            None
            if told.shape[0] == 2 and told.isfinite().all()
            else f"of two images it made {list(told.shape)}"
        )
    except (
        torch.jit.Error,
        RuntimeError,
        AttributeError,
        TypeError,
        IndexError,
    ) as error:  # whatever a stranger's program raises
        fault = str(error).strip().splitlines()[-1]
    if fault is not None:
        raise RunError(
            f"{file} gives no features ({fault}).",
            fix="it must map images (N, 3, 299, 299) in [-1, 1] to one finite tensor (N, F): wrap a net that wants or gives more",
        )
    return Features(f"TorchScript {file.name}", of)


def classifier_features(client: ClientData, seed: int = 0, device: str = "cpu") -> Features:
    """The penultimate features of a small classifier, trained on the spot on these images and
    labels.
    """
    preprocess = Preprocess.centred((client.image_shape[0], FEATURE_SIDE, FEATURE_SIDE))
    stack = ClassifierTraining([client], FEATURE_NET, preprocess, FEATURE_TRAINING, seed, device)
    state = stack.start()
    (phase,) = stack.phases()
    for _ in range(phase.steps):
        phase.step(state)
        state.step += 1
    net = stack.uploads(state)[0].parts["classifier"].build().to(device)
    name = f"{FEATURE_NET} trained on the spot, {phase.steps} epochs on {len(client.labels)} images"
    return Features(name, lambda images: net.features(preprocess(images.to(device))))  # type: ignore[operator]


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """||m1 - m2||^2 + tr(S1 + S2 - 2 (S1 S2)^1/2) of two sets of features (N, F), each taken for a Gaussian."""
    if min(len(first), len(second)) < 2:
        raise DataError("A Fréchet distance needs at least two images on each side.")
    first, second = first.double(), second.double()
    root = _root(torch.cov(first.T).reshape(first.shape[1], -1))
    other = torch.cov(second.T).reshape(second.shape[1], -1)
    # (S1 S2)^1/2 and (S1^1/2 S2 S1^1/2)^1/2 have one trace, and the second is symmetric.
    middle = torch.linalg.eigvalsh(root @ other @ root).clamp(min=0).sqrt().sum()
    apart = (first.mean(0) - second.mean(0)).square().sum()
    return float((apart + (root @ root).trace() + other.trace() - 2 * middle).clamp(min=0))


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    return root


def fid(first: Tensor, second: Tensor, features: Features) -> float:
    """Fréchet distance between two sets of canonical images; FID where the features are Inception's."""
    return frechet_distance(features(first), features(second))


def nearest(
    images: Tensor, among: Tensor, *, but_for: Tensor | None = None, beyond: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Distance (N,) of each image to the nearest ``among`` the others, and which that is.

    ``but_for`` (N,) are left out, and so are those that are nearer than ``beyond``; infinite
    where nothing remains.
    """
    flat, others = images.flatten(1), among.flatten(1)
    distances, places = [], []
    for start in range(0, len(flat), CHUNK):
        apart = torch.cdist(
            flat[start : start + CHUNK], others, compute_mode="donot_use_mm_for_euclid_dist"
        )
        if but_for is not None:
            apart.scatter_(1, but_for[start : start + CHUNK, None], float("inf"))
        apart[apart < beyond * flat.shape[1] ** 0.5] = float("inf")
        least, where = apart.min(1)
        distances.append(least / flat.shape[1] ** 0.5)
        places.append(where)
    return torch.cat(distances), torch.cat(places)


@dataclass(frozen=True)
class Pair:
    """A synthetic image and the training image nearest to it."""

    label: str  # class that the synthetic image was made for
    real_label: str
    distance: float
    # in units of the distance from that training image to the next one that is not the same picture
    relative: float
    pictures: Tensor  # (2, C, H, W): synthetic, real


@dataclass(frozen=True)
class PrivacyCheck:
    """What a decoder gives away about the images it was trained on, as far as pixels tell."""

    closest: tuple[Pair, ...]  # by distance
    singled_out: tuple[Pair, ...]  # by relative distance: odd images that come back
    samples: int
    drawn: Mapping[str, int]  # synthetic images of each class
    images: int
    median_distance: float  # of synthetic images to the nearest training image
    median_real_distance: float  # of training images to the nearest other one
    nearer_than_neighbours: float  # share of synthetic images with relative < 1
    same: int  # synthetic images less than half a grey level from a training image
    answered: int  # training images that are the nearest to some synthetic one
    fid: float
    fid_noise: float  # of uniform noise: what is quite unlike
    fid_real: float  # between two halves of the real images: what is quite alike
    features: str

    @property
    def quality(self) -> str:
        """What is wrong with the pictures as pictures; empty where nothing is."""
        longer = "train longer (--epochs), or on more images, before it is sent"
        if self.fid >= self.fid_noise:
            return f"The pictures are no more like the training images than noise is: {longer}."
        if self.answered <= len(self.drawn) < self.images / 10:
            return f"All pictures of a class look alike, near the same of its training images: {longer}."
        return ""

    @property
    def verdict(self) -> str:
        if self.same:
            return f"{self.same} of {self.samples} synthetic images ARE training images: do not send this decoder."
        share = f"{100 * self.nearer_than_neighbours:.1f} % of the synthetic images"
        return (
            f"{share} lie nearer to a training image than any other training image does, as blurred pictures tend to. Look at "
            "the pairs: where a synthetic picture shows what only one person's image shows, do not send this decoder. No "
            "distance of pixels proves that it is safe."
        )


def check_decoder(
    upload: Upload,
    client: ClientData,
    *,
    samples: int = 1000,
    of_each: int = 50,
    pairs: int = 8,
    inception: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> PrivacyCheck:
    """Run at the client, before the upload is sent: its synthetic images beside the images it
    was trained on.

    ``samples`` in the proportions of the client's labels, and ``of_each`` class at least:
    whoever holds the decoder can ask it for a class of a single image as often as for any other.
    FID is of the former.
    """
    part = _decoder(upload, client)
    usual = in_proportion(part, client, samples)
    numbers = usual.clamp(min=of_each)
    made, labels = synthetic_images(upload, numbers, seed, device)
    as_usual = torch.cat(
        [torch.arange(n) < few for n, few in zip(numbers.tolist(), usual.tolist(), strict=True)]
    )
    shape = part.preprocess.input_shape
    real = _compared(client.pixels, shape, device)
    distances, where = nearest(_compared(made, shape, device), real)
    found, back = where.unique(return_inverse=True)
    relative = distances / nearest(real[found], real, but_for=found, beyond=SAME)[0][back]
    shuffled = torch.randperm(len(real), generator=generator(seed, "real")).to(device)
    some = shuffled[:samples]
    to_neighbour, _ = nearest(real[some], real, but_for=some)

    def pair(place: int) -> Pair:
        row = int(where[place])
        names = part.classes[int(labels[place])], client.classes[int(client.labels[row])]
        pictures = torch.cat(
            [
                made[place : place + 1].cpu(),
                to_shape(_canonical(client.pixels[row : row + 1]), shape),
            ]
        )
        return Pair(*names, float(distances[place]), float(relative[place]), pictures)

    chosen = [
        _first_of_each(order, where, pairs) for order in (distances.argsort(), relative.argsort())
    ]
    describe = (
        classifier_features(client, seed, device)
        if inception is None
        else inception_features(inception, device)
    )
    noise = torch.rand(made.shape, generator=generator(seed, "noise")).to(device)
    of_real = describe(client.pixels[shuffled.cpu()])
    half = len(real) // 2
    return PrivacyCheck(
        closest=tuple(pair(place) for place in chosen[0]),
        singled_out=tuple(pair(place) for place in chosen[1]),
        samples=len(made),
        drawn=dict(zip(part.classes, numbers.tolist(), strict=True)),
        images=len(real),
        median_distance=float(distances.median()),
        median_real_distance=float(to_neighbour.median()),
        nearer_than_neighbours=float((relative < 1).double().mean()),
        same=int((distances < SAME).sum()),
        answered=len(found),
        fid=frechet_distance(describe(made[as_usual.to(made.device)]), of_real),
        fid_noise=frechet_distance(describe(noise), of_real),
        fid_real=frechet_distance(of_real[:half], of_real[half:]),
        features=describe.name,
    )


def _canonical(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images


def _compared(images: Tensor, shape: Shape, device: str) -> Tensor:
    """In the shape of the decoder's images, but no larger than is compared."""
    channels, height, width = shape
    small = (channels, min(height, COMPARED_SIDE), min(width, COMPARED_SIDE))
    chunks = [
        to_shape(to_shape(_canonical(some.to(device)), shape), small)
        for some in images.split(CHUNK)
    ]
    return torch.cat(chunks)


def in_proportion(part: Part, client: ClientData, samples: int) -> Tensor:
    """How many images of each of a decoder's classes make ``samples`` in the proportions of the
    client's labels.
    """
    return share_out(torch.tensor(_held(part, client)).double(), samples)


def synthetic_images(
    upload: Upload, numbers: Tensor, seed: int, device: str
) -> tuple[Tensor, Tensor]:
    """``numbers`` (C,) images of each class of the upload's decoder, and their class numbers."""
    part = upload.parts["decoder"]
    decoders = Decoders([upload], server_for([upload], seed=seed, device=device))
    made = torch.cat(
        [
            decoders.of_class(column, numbers[column : column + 1])
            for column in range(len(part.classes))
        ]
    )
    return made, torch.repeat_interleave(torch.arange(len(part.classes)), numbers)


def _held(part: Part, client: ClientData) -> list[int]:
    """The client's images of each of the part's classes."""
    held = client.labels.bincount(minlength=len(client.classes)).tolist()
    return [
        held[client.classes.index(name)] if name in client.classes else 0 for name in part.classes
    ]


def _decoder(upload: Upload, client: ClientData) -> Part:
    """The upload's decoder, where these can be the images that it was trained on."""
    if "decoder" not in upload.parts:
        sent = ", ".join(upload.parts)
        raise RunError(
            f"The upload of {upload.client!r} has no decoder but: {sent}.",
            fix="this check is for decoders",
        )
    part, images = upload.parts["decoder"], len(client.labels)
    if images < 4:
        raise DataError(f"{images} images are too few for this check.", fix="at least 4")
    held = _held(part, client)
    if not any(held):
        raise DataError(
            "The data have no image of the decoder's classes.",
            fix="name the data that it was trained on",
        )
    problems = []
    if images != upload.num_examples:
        problems.append(
            f"the decoder was trained on {upload.num_examples:,} images, these are {images:,}"
        )
    for name, trained, here in zip(part.classes, upload.label_counts or held, held, strict=True):
        if trained != here:
            problems.append(f"class {name}: {trained:,} then, {here:,} here")
    if problems:
        raise DataError(
            "These are not the images that the decoder was trained on:",
            problems=problems,
            fix="name the data that it was trained on: against others every decoder looks harmless",
        )
    return part


def _first_of_each(order: Tensor, where: Tensor, most: int) -> list[int]:
    """The first places in this order, each with another training image."""
    seen: dict[int, int] = {}
    for place in order.tolist():
        seen.setdefault(int(where[place]), place)
        if len(seen) == most:
            break
    return list(seen.values())
