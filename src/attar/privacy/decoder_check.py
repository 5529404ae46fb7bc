"""Does a decoder give training images away? Run at the client, before an upload is sent.

Synthetic images are compared with the training images one by one, and as sets (FID). Images
larger than 64 pixels a side are compared at 64: what a person would recognise is there, and
thousands of them fit into memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from attar.blocks.images import Decoders, apportion
from attar.core import Part, Upload
from attar.errors import DataError, RunError
from attar.fusion import server_for
from attar.nets import Shape, to_shape
from attar.privacy.fid import (
    CHUNK,
    find_nearest,
    frechet_distance,
    load_inception,
    to_canonical,
    train_features,
)
from attar.seeds import rng
from attar.training import ClientData

COMPARED_SIDE = 64  # pixels
SAME = 0.5 / 255  # images nearer than half a grey level count as one picture
# The smallest relative distance of a synthetic image, as a share of the smallest of images that no
# decoder has seen. Fashion-MNIST, cvae-small: 1.0 for 600 images and 40 epochs, 0.9 for 60 and 40;
# 0.6 for 600 and 300, 0.2 for 60 and 600, where the decoder has begun to repeat its images.
UNSEEN, REPEATED = 0.9, 0.5


@dataclass(frozen=True)
class Pair:
    """A synthetic image and the training image nearest to it.

    Attributes:
        label: the class that the synthetic image was made for.
        real_label: the class of the training image.
        distance: between the two; 0 is the same picture, 1 black against white.
        relative: ``distance`` divided by that from the training image to the nearest other one.
        pictures: (2, C, H, W) in [0, 1]: synthetic, real.
    """

    label: str
    real_label: str
    distance: float
    relative: float
    pictures: Tensor


@dataclass(frozen=True)
class PrivacyCheck:
    """What a decoder gives away about the images it was trained on, as far as pixels show.

    Attributes:
        closest: pairs with the smallest distances.
        singled_out: pairs with the smallest relative distances: unusual images that reappear.
        samples: synthetic images.
        drawn: how many of them of each class.
        images: training images.
        median_distance: of synthetic images to the nearest training image.
        median_real_distance: of training images to the nearest other one.
        nearer_than_neighbours: share of synthetic images whose relative distance is below 1.
        same: synthetic images less than half a grey level from a training image.
        answered: training images that are the nearest to some synthetic one.
        fid: between synthetic and training images.
        fid_noise: between uniform noise and training images, for comparison: nothing alike.
        fid_real: between two halves of the training images, for comparison: very much alike.
        features: what FID was computed from.
        least: the smallest relative distance of a synthetic image.
        least_unseen: the same for half of the training images against the other half: images
            that a decoder of the other half would not have seen; None where all are one picture.
    """

    closest: tuple[Pair, ...]
    singled_out: tuple[Pair, ...]
    samples: int
    drawn: Mapping[str, int]
    images: int
    median_distance: float
    median_real_distance: float
    nearer_than_neighbours: float
    same: int
    answered: int
    fid: float
    fid_noise: float
    fid_real: float
    features: str
    least: float
    least_unseen: float | None

    @property
    def answer(self) -> Literal["yes", "no", "cannot tell"]:
        """Whether the decoder may be sent, as far as distances between pixels show."""
        if self.same:
            return "no"
        if self.least_unseen is None:
            return "cannot tell"
        if self.least < REPEATED * self.least_unseen:
            return "no"
        return "yes" if self.least >= UNSEEN * self.least_unseen else "cannot tell"

    @property
    def quality(self) -> str:
        """What is wrong with the pictures as pictures; empty if nothing is."""
        longer = "train longer (--epochs), or on more images, before it is sent"
        if self.fid >= self.fid_noise:
            noise = "no more like the training images than noise is"
            return f"The pictures are {noise}: {longer}."
        if self.answered <= len(self.drawn) < self.images / 10:
            mean = "near the mean of its training images"
            return f"All pictures of a class look alike, {mean}: {longer}."
        return ""

    @property
    def verdict(self) -> str:
        """Why the answer is as it is."""
        if self.same:
            copies = f"{self.same} of {self.samples} synthetic images ARE training images"
            return f"{copies}: do not send this decoder."
        if self.least_unseen is None:
            return "The training images are one picture: there is nothing to compare with."
        numbers = (
            f"A synthetic image comes as near as {self.least:.2f} of the distance between a "
            f"training image and its next neighbour; images that were not trained on, as near as "
            f"{self.least_unseen:.2f}."
        )
        if self.answer == "no":
            return f"{numbers} Training images are being repeated: do not send this decoder."
        if self.answer == "cannot tell":
            return f"{numbers} Some training images may be repeated."
        return f"{numbers} No training image is repeated, as far as distances between pixels show."

    @property
    def advice(self) -> str:
        """What to do now."""
        fewer = "train again with fewer --epochs or on more images, and check again"
        if self.answer == "no":
            return f"{fewer[0].upper()}{fewer[1:]}; or send a classifier in place of the decoder."
        if self.answer == "cannot tell":
            return (
                "Look at singled-out.png: if a synthetic picture shows what only one person's "
                f"image shows, {fewer}. If not, it may be sent."
            )
        return (
            "Look at singled-out.png once before you send it: no distance between pixels proves "
            "that a picture is safe."
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
    """Compare a decoder's synthetic images with the images that it was trained on.

    Args:
        upload: holds the decoder.
        client: the images that it was trained on.
        samples: synthetic images in the proportions of the client's labels; FID is of these.
        of_each: at least this many of each class, since whoever holds the decoder can ask it
            for a class of one image as often as for any other.
        pairs: how many to report of each kind.
        inception: TorchScript file for FID; None trains a small classifier for it.
        seed: of the synthetic images.
        device: where to compute.

    Returns:
        Distances, FID, and the most telling pairs.

    Raises:
        RunError: if the upload has no decoder, or ``inception`` cannot be used.
        DataError: if these cannot be the images that the decoder was trained on.
    """
    part = _find_decoder(upload, client)
    in_proportion = allot_images(part, client, samples)
    numbers = in_proportion.clamp(min=of_each)
    synthetic, labels = draw_images(upload, numbers, seed, device)
    shape = part.preprocess.input_shape
    real = _shrink(client.pixels, shape, device)
    distances, nearest = find_nearest(_shrink(synthetic, shape, device), real)
    matched, back = nearest.unique(return_inverse=True)
    to_other, _ = find_nearest(real[matched], real, but_for=matched, beyond=SAME)
    relative = distances / to_other[back]
    shuffled = torch.randperm(len(real), generator=rng(seed, "real")).to(device)
    some = shuffled[:samples]
    to_neighbour, _ = find_nearest(real[some], real, but_for=some)
    half = len(real) // 2
    unseen = _relative(real[shuffled[:half]][:samples], real[shuffled[half:]])

    def pair(number: int) -> Pair:
        row = int(nearest[number])
        picture = to_shape(to_canonical(client.pixels[row : row + 1]), shape)
        return Pair(
            label=part.classes[int(labels[number])],
            real_label=client.classes[int(client.labels[row])],
            distance=float(distances[number]),
            relative=float(relative[number]),
            pictures=torch.cat([synthetic[number : number + 1].cpu(), picture]),
        )

    closest = _distinct(distances.argsort(), nearest, pairs)
    singled_out = _distinct(relative.argsort(), nearest, pairs)
    if inception is None:
        features = train_features(client, seed, device)
    else:
        features = load_inception(inception, device)
    counts = zip(numbers.tolist(), in_proportion.tolist(), strict=True)
    counted = torch.cat([torch.arange(number) < few for number, few in counts])
    noise = torch.rand(synthetic.shape, generator=rng(seed, "noise")).to(device)
    of_real = features(client.pixels[shuffled.cpu()])
    return PrivacyCheck(
        closest=tuple(pair(number) for number in closest),
        singled_out=tuple(pair(number) for number in singled_out),
        samples=len(synthetic),
        drawn=dict(zip(part.classes, numbers.tolist(), strict=True)),
        images=len(real),
        median_distance=float(distances.median()),
        median_real_distance=float(to_neighbour.median()),
        nearer_than_neighbours=float((relative < 1).double().mean()),
        same=int((distances < SAME).sum()),
        answered=len(matched),
        fid=frechet_distance(features(synthetic[counted.to(synthetic.device)]), of_real),
        fid_noise=frechet_distance(features(noise), of_real),
        fid_real=frechet_distance(of_real[:half], of_real[half:]),
        features=features.name,
        least=float(relative.min()),
        least_unseen=float(unseen.min()) if len(unseen) else None,
    )


def _relative(images: Tensor, among: Tensor) -> Tensor:
    """Relative distances of images to the nearest of others, without copies of these."""
    distances, nearest = find_nearest(images, among)
    to_other, _ = find_nearest(among[nearest], among, but_for=nearest, beyond=SAME)
    return (distances / to_other)[(distances >= SAME) & to_other.isfinite()]


def _shrink(images: Tensor, shape: Shape, device: str) -> Tensor:
    """Images in the shape of the decoder's, but no larger than ``COMPARED_SIDE``."""
    channels, height, width = shape
    small = (channels, min(height, COMPARED_SIDE), min(width, COMPARED_SIDE))
    chunks = []
    for chunk in images.split(CHUNK):
        whole = to_shape(to_canonical(chunk.to(device)), shape)
        chunks.append(to_shape(whole, small))
    return torch.cat(chunks)


def allot_images(part: Part, client: ClientData, samples: int) -> Tensor:
    """Divide a number of synthetic images among classes as the client's labels are.

    Args:
        part: a decoder.
        client: the images that it was trained on.
        samples: how many synthetic images in all.

    Returns:
        How many of each of the decoder's classes, int64, (C,).
    """
    return apportion(torch.tensor(_count_labels(part, client)).double(), samples)


def draw_images(upload: Upload, numbers: Tensor, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """Draw synthetic images from the decoder of an upload.

    Args:
        upload: holds the decoder.
        numbers: how many of each class, (C,).
        seed: of the noise.
        device: where to compute.

    Returns:
        Canonical images (N, C, H, W), class by class, and their class numbers (N,).
    """
    part = upload.parts["decoder"]
    classes = range(len(part.classes))
    decoders = Decoders([upload], server_for([upload], seed=seed, device=device))
    images = [decoders.generate(column, numbers[column : column + 1]) for column in classes]
    return torch.cat(images), torch.repeat_interleave(torch.arange(len(part.classes)), numbers)


def _count_labels(part: Part, client: ClientData) -> list[int]:
    """The client's images of each of the part's classes."""
    counts = client.labels.bincount(minlength=len(client.classes)).tolist()
    by_name = dict(zip(client.classes, counts, strict=True))
    return [by_name.get(name, 0) for name in part.classes]


def _find_decoder(upload: Upload, client: ClientData) -> Part:
    """The upload's decoder, if these can be the images that it was trained on."""
    if "decoder" not in upload.parts:
        sent = ", ".join(upload.parts)
        raise RunError(
            f"The upload of {upload.client!r} has no decoder but: {sent}.",
            fix="check an upload that has one",
        )
    part = upload.parts["decoder"]
    images = len(client.labels)
    if images < 4:
        raise DataError(f"{images} images are too few for this check.", fix="use at least 4")
    counts = _count_labels(part, client)
    if not any(counts):
        raise DataError(
            "The data have no image of the decoder's classes.",
            fix="name the data that it was trained on",
        )
    problems = []
    if images != upload.num_examples:
        trained_on = f"the decoder was trained on {upload.num_examples:,} images"
        problems.append(f"{trained_on}, these are {images:,}")
    for name, then, now in zip(part.classes, upload.label_counts or counts, counts, strict=True):
        if then != now:
            problems.append(f"class {name}: {then:,} then, {now:,} here")
    if problems:
        raise DataError(
            "These are not the images that the decoder was trained on:",
            problems=problems,
            fix="name the data that it was trained on: compared with others every decoder looks "
            "harmless",
        )
    return part


def _distinct(order: Tensor, nearest: Tensor, most: int) -> list[int]:
    """The first numbers in this order, each with another training image."""
    chosen: dict[int, int] = {}
    for number in order.tolist():
        chosen.setdefault(int(nearest[number]), number)
        if len(chosen) == most:
            break
    return list(chosen.values())
