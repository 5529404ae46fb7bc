"""Attacks on what is not a classifier: statistics, sums of features, decoders.

Each gives an image a score by how near it lies to what the file holds.
"""

import torch
from torch import Tensor

from attar.backbones import fast_copy, load_backbone
from attar.blocks.heads import Moments, add_clients, moments_of, shrink
from attar.core import Part, Upload
from attar.errors import AttarError
from attar.nets import FeatureStatistics, project_by, to_shape
from attar.nets.statistics import shared_signs
from attar.privacy.attacks import Attack, measure_attack
from attar.privacy.candidates import Candidates
from attar.privacy.decoder_check import COMPARED_SIDE, draw_images
from attar.privacy.fid import find_nearest
from attar.training import penultimate_features

SHRINKAGE = 0.01  # of a covariance, so that it has an inverse
SAMPLES = 2_000  # pictures of a decoder
FEATURE_BATCH = 16


@torch.no_grad()
def attack_statistics(upload: Upload, candidates: Candidates, device: str = "cpu") -> Attack:
    """Score images by their distance to the mean of their class, as the statistics measure it.

    Args:
        upload: holds a classifier and statistics.
        candidates: members and others.
        device: where the classifier runs.
    """
    part = upload.parts["classifier"]
    statistics = upload.parts["statistics"].build()
    assert isinstance(statistics, FeatureStatistics)
    images = candidates.images
    features = penultimate_features(part, images.pixels, device)
    places = torch.tensor([part.classes.index(name) for name in images.classes])
    distances = statistics.class_distances(statistics.project(features))
    score = -distances.gather(1, places[images.labels][:, None]).squeeze(1)
    how = "how near the image's features are to the mean of its class"
    split = candidates.members
    return measure_attack("distance to the class mean", how, score[:split], score[split:])


def attack_decoder(
    upload: Upload, candidates: Candidates, *, seed: int = 0, device: str = "cpu"
) -> Attack:
    """Score images by their distance to the nearest of many pictures of their class.

    Args:
        upload: holds a decoder.
        candidates: members and others.
        seed: of the pictures.
        device: where to compute.
    """
    part = upload.parts["decoder"]
    images = candidates.images
    held = images.labels.unique().tolist()
    each = max(1, SAMPLES // len(held))
    numbers = torch.zeros(len(part.classes), dtype=torch.int64)
    places = [part.classes.index(name) for name in images.classes]
    for label in held:
        numbers[places[label]] = each
    pictures, labels = draw_images(upload, numbers, seed, device)
    channels, height, width = images.image_shape
    small = (channels, min(height, COMPARED_SIDE), min(width, COMPARED_SIDE))
    score = torch.zeros(len(images.labels))
    for label in held:
        rows = (images.labels == label).nonzero().flatten()
        own = to_shape(images.pixels[rows].float() / 255, small)
        made = to_shape(pictures[labels == places[label]].cpu(), small)
        score[rows] = -find_nearest(own, made)[0]
    how = f"how near the image is to the nearest of {each:,} pictures of its class"
    split = candidates.members
    return measure_attack("nearest picture", how, score[:split], score[split:])


def attack_sums(
    upload: Upload, candidates: Candidates, device: str = "cpu"
) -> tuple[Attack | None, str]:
    """Score images by the distance of their features to the mean of their class.

    Args:
        upload: holds sums.
        candidates: members and others.
        device: where the backbone runs.

    Returns:
        What came of it, or None and why the backbone is not here.
    """
    part = upload.parts["sums"]
    try:
        phi = _backbone_features(part, candidates.images.pixels, device)
    except AttarError as error:
        return None, f"the backbone was not found ({error.what})"
    moments = moments_of(add_clients({upload.client: part}, part.classes))
    places = torch.tensor([part.classes.index(name) for name in candidates.images.classes])
    score = _nearness(phi, places[candidates.images.labels], moments)
    how = "how near the image's features are to the mean of its class"
    split = candidates.members
    return measure_attack("distance to the class mean", how, score[:split], score[split:]), ""


def _nearness(phi: Tensor, labels: Tensor, moments: Moments) -> Tensor:
    """Minus the Mahalanobis distance of features to the mean of their class, (N,)."""
    values, vectors = torch.linalg.eigh(shrink(moments.within, SHRINKAGE))
    whiten = vectors * values.clamp(min=1e-9).rsqrt()
    distance: Tensor = ((phi - moments.means[labels]) @ whiten).norm(dim=1)
    return -distance


@torch.no_grad()
def _backbone_features(part: Part, pixels: Tensor, device: str) -> Tensor:
    """phi of images, as the sums add it up, (N, D)."""
    options = dict(part.spec.options)
    backbone = load_backbone(str(options["backbone"]))
    net = fast_copy(backbone.net, device)
    width = int(options.get("dimensions") or 0)
    signs = shared_signs(backbone.features, width) if width else None
    rows = []
    for batch in pixels.split(FEATURE_BATCH):
        inputs = backbone.preprocess(batch.to(device).float() / 255)
        features = net.features(inputs).cpu()  # type: ignore[operator]
        rows.append(project_by(features, backbone.centre, signs, float(options.get("clip") or 0)))
    return torch.cat(rows)
