"""How good a model is on labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attar.data.dataset import Split
from attar.data.tensors import to_pixels
from attar.errors import DataError
from attar.models.folder import Classifier

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Evaluation:
    """Accuracy in [0, 1] over all images, per class (None: no image of it), their mean, and the
    calibration error.
    """

    accuracy: float
    balanced_accuracy: float
    per_class: tuple[float | None, ...]
    calibration_error: float
    confusion: Tensor  # (true class, predicted class) counts, int64
    classes: tuple[str, ...]
    num_images: int
    unknown: tuple[
        str, ...
    ]  # classes of these images that the model does not have: every one counts as wrong


def predict(
    model: nn.Module, pixels: Tensor, *, device: str = "cpu", batch_size: int = 500
) -> Tensor:
    """Probabilities (N, C) on the CPU for uint8 images (N, C, H, W)."""
    outputs = []
    with torch.inference_mode():
        for batch in pixels.split(batch_size):
            images = batch.to(device).float() / 255
            outputs.append(model(images).float().softmax(-1).cpu())
    return torch.cat(outputs)


def evaluate(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    *,
    model_classes: Sequence[str] | None = None,
    device: str = "cpu",
) -> Evaluation:
    """Evaluate on uint8 images whose labels index ``classes``; the model may list its classes
    otherwise, or lack some.

    An image of a class that the model does not have counts as wrong.
    """
    if len(labels) == 0:
        raise DataError("There is no image to evaluate on.", fix="name data with labelled images")
    names = list(classes)
    known = list(model_classes or classes)
    check_common(known, names)
    every = names + [name for name in known if name not in names]
    place = torch.tensor([every.index(name) for name in known])
    probabilities = predict(model, pixels, device=device)
    confidence, choice = probabilities.max(-1)
    predicted = place[choice]
    correct = predicted == labels
    confusion = torch.zeros(len(every), len(every), dtype=torch.int64)
    confusion.index_put_((labels, predicted), torch.ones_like(labels), accumulate=True)
    totals = confusion.sum(1)
    per_class = [
        float(confusion[row, row]) / int(totals[row]) if totals[row] > 0 else None
        for row in range(len(names))
    ]
    present = [value for value in per_class if value is not None]
    return Evaluation(
        accuracy=float(correct.double().mean()),
        balanced_accuracy=sum(present) / len(present),
        per_class=tuple(per_class),
        calibration_error=calibration_error(confidence, correct),
        confusion=confusion,
        classes=tuple(every),
        num_images=len(labels),
        unknown=tuple(
            name for row, name in enumerate(names) if totals[row] > 0 and name not in known
        ),
    )


def check_common(known: Sequence[str], classes: Sequence[str]) -> None:
    """Raise where a model that knows these classes can be right about no image of such data."""
    if not set(known) & set(classes):
        raise DataError(
            "The model and the data have no class in common.",
            problems=[f"model: {', '.join(known[:8])}", f"data: {', '.join(classes[:8])}"],
            fix="evaluate on data whose classes bear the same names",
        )


def evaluate_on(
    model: Classifier, split: Split, classes: Sequence[str], *, device: str = "cpu"
) -> Evaluation:
    """Evaluate a model on one part of a data set."""
    labels = torch.from_numpy(split.labels)
    return evaluate(
        model, to_pixels(split), labels, classes, model_classes=model.classes, device=device
    )


def measured_on(images: int, part: str) -> str:
    """``6 images, the test part of folder:own``: a percentage of few images says little, and
    shall not look like more.
    """
    return f"{images:,} image{'' if images == 1 else 's'}, {part}"


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error: sum over equal-width bins of (share of images) * |accuracy -
    mean confidence|.
    """
    places = (confidence.double() * bins).ceil().clamp(1, bins).long() - 1
    count = torch.zeros(bins, dtype=torch.float64)
    gap = torch.zeros(bins, dtype=torch.float64)
    count.index_add_(0, places, torch.ones_like(confidence, dtype=torch.float64))
    gap.index_add_(0, places, correct.double() - confidence.double())
    return float(gap.abs().sum() / count.sum())
