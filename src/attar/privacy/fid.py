"""How much two sets of images look alike: features, the Fréchet distance, nearest images.

Distances between two images are root mean squares over pixels in [0, 1]: 0 is the same picture,
1 black against white.
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attar.core import ModelSpec, Preprocess
from attar.errors import DataError, RunError
from attar.nets import to_shape
from attar.seeds import rng
from attar.training import ClassifierTraining, ClientData, LocalTraining

CHUNK = 256  # images at a time
FEATURE_NET = ModelSpec("lenet5")
FEATURE_SIDE = 32  # pixels
FEATURE_TRAINING = LocalTraining(epochs=10, batch_size=64, optimiser="adam", lr=1e-3)
INCEPTION_SIDE = 299  # pixels


@dataclass(frozen=True)
class Features:
    """A map from images to features.

    Attributes:
        name: what it is, for records.
        compute: canonical images (N, C, H, W) -> (N, F).
    """

    name: str
    compute: Callable[[Tensor], Tensor]

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features (N, F), float64 on the CPU, of canonical or uint8 images (N, C, H, W)."""
        chunks = [self.compute(to_canonical(chunk)) for chunk in images.split(CHUNK)]
        return torch.cat([chunk.cpu().double() for chunk in chunks])


def check_program(file: Path, sha256: str | None) -> None:
    """Refuse to run a TorchScript file whose hash its user has not stated.

    Args:
        file: the program.
        sha256: what the user says that it is, in hex; None: nothing.

    Raises:
        RunError: if it cannot be read, or is another file.
    """
    try:
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}.") from None
    if sha256 is None:
        raise RunError(
            f"{file} is TorchScript, a program: attar would run what whoever wrote it put there.",
            fix=f"if you know where it comes from, compare its hash with the one published there, "
            f"and run it with --inception-sha256 {found}",
        )
    if found != sha256.lower().strip():
        raise RunError(
            f"{file} is not the file with that hash: it has sha256 {found}.",
            fix="get the right file, or compare the hash again",
        )


def load_inception(file: Path, device: str = "cpu") -> Features:
    """Load a feature net, such as the published Inception, with which FID is as published.

    Args:
        file: TorchScript that maps (x - 128) / 128 of RGB images at 299 x 299 to features (N, F).
            Such a file is a program, which this function runs: see ``check_program``.
        device: where to compute.

    Returns:
        Its features.

    Raises:
        RunError: if it is not TorchScript, or does not map two images to finite features.
    """
    try:
        with warnings.catch_warnings():
            # torch recommends torch.export, but the published Inception is TorchScript.
            warnings.simplefilter("ignore", DeprecationWarning)
            net = torch.jit.load(str(file), map_location=device).eval()
    except (RuntimeError, ValueError, OSError) as error:
        raise RunError(f"{file} is no TorchScript file ({str(error).splitlines()[0]}).") from None

    @torch.no_grad()
    def compute(images: Tensor) -> Tensor:
        enlarged = to_shape(images.to(device), (3, INCEPTION_SIDE, INCEPTION_SIDE))
        features: Tensor = net((enlarged * 255 - 128) / 128)
        return features.flatten(1)

    if problem := _features_problem(compute):
        raise RunError(
            f"{file} gives no features ({problem}).",
            fix="it must map images (N, 3, 299, 299) in [-1, 1] to one finite tensor (N, F): "
            "wrap a net that takes or returns more",
        )
    return Features(f"TorchScript {file.name}", compute)


def _features_problem(compute: Callable[[Tensor], Tensor]) -> str | None:
    """Try a foreign feature net on two images; why its result cannot be used."""
    images = torch.rand(2, 3, 8, 8, generator=rng(0, "two images"))
    try:
        features = compute(images)
    # What a foreign program may raise.
    except (torch.jit.Error, RuntimeError, AttributeError, TypeError, IndexError) as error:
        return str(error).strip().splitlines()[-1]
    if features.shape[0] != 2 or not features.isfinite().all():
        return f"of two images it made {list(features.shape)}"
    return None


def train_features(client: ClientData, seed: int = 0, device: str = "cpu") -> Features:
    """Train a small classifier, whose penultimate features tell a client's images apart.

    Args:
        client: images and labels to train on.
        seed: of the training.
        device: where to train and to compute.

    Returns:
        Its features.
    """
    preprocess = Preprocess.centred((client.image_shape[0], FEATURE_SIDE, FEATURE_SIDE))
    stack = ClassifierTraining([client], FEATURE_NET, preprocess, FEATURE_TRAINING, seed, device)
    state = stack.start()
    (phase,) = stack.phases()
    for _ in range(phase.steps):
        phase.step(state)
        state.step += 1
    net = stack.uploads(state)[0].parts["classifier"].build().to(device)
    size = f"{phase.steps} epochs on {len(client.labels)} images"
    name = f"{FEATURE_NET} trained on the spot, {size}"

    def compute(images: Tensor) -> Tensor:
        features: Tensor = net.features(preprocess(images.to(device)))  # type: ignore[operator]
        return features

    return Features(name, compute)


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """The Fréchet distance of two sets of features, each described by a Gaussian.

        ||m1 - m2||^2 + tr(S1 + S2 - 2 (S1 S2)^1/2)

    Args:
        first: (N, F), N at least 2.
        second: (M, F), M at least 2.

    Raises:
        DataError: if a set has fewer than two images.
    """
    if min(len(first), len(second)) < 2:
        raise DataError("A Fréchet distance needs at least two images on each side.")
    first = first.double()
    second = second.double()
    root = _matrix_root(torch.cov(first.T).reshape(first.shape[1], -1))
    other = torch.cov(second.T).reshape(second.shape[1], -1)
    # (S1 S2)^1/2 and (S1^1/2 S2 S1^1/2)^1/2 have one trace, and the second is symmetric.
    middle = torch.linalg.eigvalsh(root @ other @ root).clamp(min=0).sqrt().sum()
    means = (first.mean(0) - second.mean(0)).square().sum()
    return float((means + (root @ root).trace() + other.trace() - 2 * middle).clamp(min=0))


def _matrix_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    return root


def fid(first: Tensor, second: Tensor, features: Features) -> float:
    """The Fréchet distance of two sets of images; FID if the features are Inception's.

    Args:
        first: canonical or uint8 images, (N, C, H, W).
        second: the same, (M, C, H, W).
        features: what the images are compared by.
    """
    return frechet_distance(features(first), features(second))


def find_nearest(
    images: Tensor, among: Tensor, *, but_for: Tensor | None = None, beyond: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Find the nearest of other images for each image.

    Args:
        images: (N, C, H, W) in [0, 1].
        among: the others, (M, C, H, W).
        but_for: for each image, the number of one that does not count, (N,); None: all count.
        beyond: the distance below which others do not count.

    Returns:
        The distances (N,), infinite where none counts, and the numbers of the nearest (N,).
    """
    flat = images.flatten(1)
    others = among.flatten(1)
    scale = flat.shape[1] ** 0.5
    distances = []
    numbers = []
    for start in range(0, len(flat), CHUNK):
        chunk = flat[start : start + CHUNK]
        apart = torch.cdist(chunk, others, compute_mode="donot_use_mm_for_euclid_dist")
        if but_for is not None:
            apart.scatter_(1, but_for[start : start + CHUNK, None], float("inf"))
        apart[apart < beyond * scale] = float("inf")
        least, where = apart.min(1)
        distances.append(least / scale)
        numbers.append(where)
    return torch.cat(distances), torch.cat(numbers)


def to_canonical(images: Tensor) -> Tensor:
    """uint8 images as floats in [0, 1]; others as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images
