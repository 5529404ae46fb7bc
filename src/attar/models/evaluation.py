"""How good a model is on labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attar.data.dataset import Split
from attar.data.tensors import to_pixels
from attar.errors import DataError
from attar.models.classifier import Classifier, predict

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        accuracy: in [0, 1], over all images.
        balanced_accuracy: mean of ``per_class`` over the classes that have images.
        per_class: accuracy for each class of the data; None for a class without images.
        calibration_error: expected calibration error, in [0, 1].
        confusion: counts, int64: row the true, column the predicted class, both in ``classes``.
        classes: of the data, then those that only the model has.
        num_images: how many images.
        unknown: classes of these images that the model does not have: all count as wrong.
    """

    accuracy: float
    balanced_accuracy: float
    per_class: tuple[float | None, ...]
    calibration_error: float
    confusion: Tensor
    classes: tuple[str, ...]
    num_images: int
    unknown: tuple[str, ...]


def evaluate(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    *,
    model_classes: Sequence[str] | None = None,
    device: str = "cpu",
) -> Evaluation:
    """Evaluate a model on labelled images.

    An image of a class that the model does not have counts as wrong.

    Args:
        model: canonical images -> logits.
        pixels: uint8, (N, C, H, W).
        labels: int64, (N,), numbers in ``classes``.
        classes: names of the data's classes.
        model_classes: names in the order of the logits; None: those of the data.
        device: where to compute; the model must be there.

    Returns:
        Accuracy, confusion and calibration.

    Raises:
        DataError: if there are no images, or no class in common.
    """
    if len(labels) == 0:
        raise DataError("There is no image to evaluate on.", fix="name data with labelled images")
    names = list(classes)
    known = list(model_classes or classes)
    check_overlap(known, names)
    union = names + [name for name in known if name not in names]
    column = torch.tensor([union.index(name) for name in known])
    probabilities = predict(model, pixels, device=device)
    confidence, choice = probabilities.max(-1)
    predicted = column[choice]
    correct = predicted == labels
    confusion = torch.zeros(len(union), len(union), dtype=torch.int64)
    confusion.index_put_((labels, predicted), torch.ones_like(labels), accumulate=True)
    totals = confusion.sum(1)
    per_class = [
        float(confusion[row, row]) / int(totals[row]) if totals[row] > 0 else None
        for row in range(len(names))
    ]
    present = [value for value in per_class if value is not None]
    unknown = [name for row, name in enumerate(names) if totals[row] > 0 and name not in known]
    return Evaluation(
        accuracy=float(correct.double().mean()),
        balanced_accuracy=sum(present) / len(present),
        per_class=tuple(per_class),
        calibration_error=calibration_error(confidence, correct),
        confusion=confusion,
        classes=tuple(union),
        num_images=len(labels),
        unknown=tuple(unknown),
    )


def check_overlap(known: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse to evaluate a model on data without a class in common.

    Args:
        known: the model's classes.
        classes: the data's classes.

    Raises:
        DataError: if no name is in both.
    """
    if not set(known) & set(classes):
        raise DataError(
            "The model and the data have no class in common.",
            problems=[f"model: {', '.join(known[:8])}", f"data: {', '.join(classes[:8])}"],
            fix="evaluate on data whose classes bear the same names",
        )


def evaluate_on(
    model: Classifier, split: Split, classes: Sequence[str], *, device: str = "cpu"
) -> Evaluation:
    """Evaluate a model on one part of a data set; see ``evaluate``.

    Args:
        model: the model.
        split: training or test images.
        classes: names of the data's classes.
        device: where to compute; the model must be there.
    """
    labels = torch.from_numpy(split.labels)
    return evaluate(
        model, to_pixels(split), labels, classes, model_classes=model.classes, device=device
    )


def describe_data(images: int, part: str) -> str:
    """Say how many images a percentage is of: ``"6 images, the test part of folder:mine"``.

    Args:
        images: how many.
        part: which they are.
    """
    return f"{images:,} image{'' if images == 1 else 's'}, {part}"


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error over bins of equal width.

        ECE = sum over bins of (share of images) * |accuracy - mean confidence|

    Args:
        confidence: probability of the predicted class, (N,).
        correct: whether the prediction is right, (N,), bool.
        bins: how many.
    """
    places = (confidence.double() * bins).ceil().clamp(1, bins).long() - 1
    count = torch.zeros(bins, dtype=torch.float64)
    gap = torch.zeros(bins, dtype=torch.float64)
    count.index_add_(0, places, torch.ones_like(confidence, dtype=torch.float64))
    gap.index_add_(0, places, correct.double() - confidence.double())
    return float(gap.abs().sum() / count.sum())
