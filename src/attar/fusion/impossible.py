"""Feature statistics that no images can have.

The statistics of an upload weight its client image by image (``accord``), so a lie in them buys
influence: who finds every image familiar is asked first. Some lies contradict themselves. With
W W^T the inverse of the (shrunk) covariance in D dimensions, the squared distance d of a client's
own images is at most D on average, whatever the images are:

    own_mean^2 + own_spread^2 = mean of d^2 <= tr(S (W W^T)) <= D

And to a client's statistics noise looks less familiar than its own images do: those have a score
of 0 on average, by definition.
"""

from math import prod

import torch

from attar.core import Part, Upload
from attar.errors import AttarError
from attar.nets.statistics import FeatureStatistics
from attar.seeds import rng
from attar.training import penultimate_features

NOISE_IMAGES = 64
NOISE_VALUES = 2**24  # in all of them
TOLERANCE = 1.1  # for rounding
LARGEST = 1e18  # of any number; its square is still finite
# Mean score of noise below which everything is familiar; the least score that there can be is
# -own_mean / own_spread, of an image in the middle of a class.
FAMILIAR = -1.0


def impossible_statistics(upload: Upload) -> list[str]:
    """Say what in a client's feature statistics cannot be; empty where nothing is or none were
    sent.
    """
    part = upload.parts.get("statistics")
    if part is None:
        return []
    problems = _contradictions(part) + _contradicts_counts(upload, part)
    if not problems and finds_noise_familiar(upload):
        problems.append("random noise is more familiar to them than the client's own images")
    return [f"its feature statistics cannot be: {problem}" for problem in problems]


def _contradictions(part: Part) -> list[str]:
    options = dict(part.spec.options)
    state = part.state
    means, held = state["means"].double(), state["held"].bool()
    width = means.shape[1]
    own_mean, own_spread = float(state["own_mean"]), float(state["own_spread"])
    problems = []
    rows, columns = torch.tril_indices(width, width)
    if not bool((state["whitening"][rows == columns] > 0).all()):
        problems.append("the matrix that whitens has no positive diagonal")
    if max(float(value.double().abs().max()) for value in state.values()) > LARGEST:
        problems.append(f"numbers above {LARGEST:g}")
    if not bool(held.any()):
        problems.append("no class is held")
    if own_spread <= 0:
        problems.append(f"a spread of {own_spread:g}")
    if not options.get("epsilon"):  # noise may make the rest possible
        square = own_mean**2 + own_spread**2
        if own_mean < 0 or square > TOLERANCE * width:
            problems.append(
                f"distances of {own_mean:.3g} on average and a spread of {own_spread:.3g} in "
                f"{width} dimensions"
            )
        clip = float(options.get("clip") or 0.0)
        longest = float(means.norm(dim=1).max())
        if clip and longest > TOLERANCE * clip:
            problems.append(f"a mean of length {longest:.3g} of features clipped to {clip:g}")
    return problems


def _contradicts_counts(upload: Upload, part: Part) -> list[str]:
    """Classes that statistics were measured of, and that the client says it has no image of."""
    if upload.label_counts is None or dict(part.spec.options).get("epsilon"):
        return []
    held = part.state["held"].bool().tolist()
    counts = dict(zip(upload.parts["classifier"].classes, upload.label_counts, strict=True))
    described = [name for name, is_held in zip(part.classes, held, strict=True) if is_held]
    foreign = [name for name in described if not counts[name]]
    return [f"they describe {', '.join(foreign)}, of which it has no images"] if foreign else []


def finds_noise_familiar(upload: Upload) -> bool:
    """Whether random noise looks more familiar to a client than its own images do."""
    classifier, statistics = upload.parts["classifier"], upload.parts["statistics"]
    shape = classifier.preprocess.input_shape
    number = max(1, min(NOISE_IMAGES, NOISE_VALUES // prod(shape)))
    pixels = torch.randint(0, 256, (number, *shape), generator=rng(0, "noise"), dtype=torch.uint8)
    try:
        features = penultimate_features(classifier, pixels)
    except AttarError:  # such as a backbone that is not on this machine
        return False
    net = statistics.build()
    assert isinstance(net, FeatureStatistics)
    with torch.no_grad():
        scores = net(features)[1]
    return bool(scores.isfinite().all()) and float(scores.mean()) < FAMILIAR
