"""How good a model is on labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attar.data.dataset import Dataset, PartName, Split
from attar.data.tensors import to_pixels
from attar.errors import DataError
from attar.models.classifier import Classifier, predict_batches

CALIBRATION_BINS = 15
BADLY_CALIBRATED = 0.1  # a calibration error from which on a user is told
FITTED_IMAGES = 2_000  # on which the temperature is fitted: it is one number
FITTED_NUMBERS = 2**24  # probabilities of all these images
HOTTEST = 20.0
OTHER_COLUMNS = 100  # classes of the model alone that a table of confusions names
OTHERS = "(other classes)"


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        accuracy: in [0, 1], over all images.
        balanced_accuracy: mean of ``per_class`` over the classes that have images.
        per_class: accuracy for each class of the data; None for a class without images.
        calibration_error: expected calibration error, in [0, 1].
        confusion: counts, int64: a row for each class of the data, a column for each of
            ``classes``, the predicted one.
        classes: of the data, then those that only the model has and that some image got, the
            commonest ``OTHER_COLUMNS`` of them; ``OTHERS`` stands for the rest.
        num_images: how many images.
        unknown: classes of these images that the model does not have: all count as wrong.
        confidence: mean probability of the predicted class, in [0, 1].
        temperature: by which the logits would have to be divided to fit these images best; None
            where the probabilities fit well enough.
        unanswered: images whose probabilities are NaN: all count as wrong, with confidence 0.
    """

    accuracy: float
    balanced_accuracy: float
    per_class: tuple[float | None, ...]
    calibration_error: float
    confusion: Tensor
    classes: tuple[str, ...]
    num_images: int
    unknown: tuple[str, ...]
    confidence: float | None = None
    temperature: float | None = None
    unanswered: int = 0

    @property
    def advice(self) -> str | None:
        """What to do about probabilities that do not fit; None where they do."""
        if self.unanswered:
            return (
                f"The model answers NaN to {self.unanswered:,} of {self.num_images:,} images: do "
                "not use it. Look for the client that causes it with `attar inspect`."
            )
        if self.calibration_error < BADLY_CALIBRATED or self.confidence is None:
            return None
        sure = f"{100 * self.confidence:.0f} % sure on average, {100 * self.accuracy:.0f} % right"
        gap = self.confidence - self.accuracy
        if abs(gap) < self.calibration_error / 2:
            kind = "too high for some images and too low for others"
        else:
            kind = "too high" if gap > 0 else "too low"
        text = f"The probabilities are {kind} ({sure}): use the class, not its probability"
        if self.temperature is None:
            return f"{text}."
        return (
            f"{text}, or divide the logits by {self.temperature:.2g}, which fits these images best:"
            f" (model(images) / {self.temperature:.2g}).softmax(-1)."
        )


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
    union = {name: number for number, name in enumerate(names)}
    for name in known:
        union.setdefault(name, len(union))
    column = torch.tensor([union[name] for name in known])
    to_fit = _images_to_fit(labels, column, len(names))
    confidence, choice, fitted = _answer(model, pixels, to_fit, device)
    nothing = confidence.isnan()
    confidence = confidence.nan_to_num(0)
    predicted = column[choice]
    correct = (predicted == labels) & ~nothing
    confusion, columns = _count_answers(labels, predicted, names, list(union))
    totals = confusion.sum(1)
    per_class = [
        float(confusion[row, row]) / int(totals[row]) if totals[row] > 0 else None
        for row in range(len(names))
    ]
    present = [value for value in per_class if value is not None]
    has = set(known)
    unknown = [name for row, name in enumerate(names) if totals[row] > 0 and name not in has]
    error = calibration_error(confidence, correct)
    temperature = None
    if error >= BADLY_CALIBRATED:
        own = (labels[to_fit, None] == column).long().argmax(1)
        answered = ~nothing[to_fit]
        temperature = fit_temperature(fitted[answered], own[answered])
    return Evaluation(
        accuracy=float(correct.double().mean()),
        balanced_accuracy=sum(present) / len(present),
        per_class=tuple(per_class),
        calibration_error=error,
        confusion=confusion,
        classes=columns,
        num_images=len(labels),
        unknown=tuple(unknown),
        confidence=float(confidence.double().mean()),
        temperature=temperature,
        unanswered=int(nothing.sum()),
    )


def _images_to_fit(labels: Tensor, column: Tensor, num_classes: int) -> Tensor:
    """Numbers of the images on which the temperature is fitted: evenly spread over those of
    classes that the model has, and fewer of very many classes.
    """
    has = torch.zeros(num_classes, dtype=torch.bool)
    has[column[column < num_classes]] = True
    known = has[labels].nonzero().squeeze(1)
    most = max(1, min(FITTED_IMAGES, FITTED_NUMBERS // len(column)))
    return known[:: max(1, len(known) // most)]


def _answer(
    model: nn.Module, pixels: Tensor, keep: Tensor, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence and choice for each image, and all probabilities of those to ``keep``.

    The probabilities of all images would take their number times that of the classes.
    """
    confidences, choices, kept = [], [], []
    wanted = torch.zeros(len(pixels), dtype=torch.bool)
    wanted[keep] = True
    for first, probabilities in predict_batches(model, pixels, device=device):
        confidence, choice = probabilities.max(-1)
        confidences.append(confidence)
        choices.append(choice)
        kept.append(probabilities[wanted[first : first + len(probabilities)]])
    return torch.cat(confidences), torch.cat(choices), torch.cat(kept)


def _count_answers(
    labels: Tensor, predicted: Tensor, names: Sequence[str], union: Sequence[str]
) -> tuple[Tensor, tuple[str, ...]]:
    """The table of confusions, and the names of its columns.

    It has a row for each class of the data alone, so that a client that lists many classes does
    not make it grow with their square.
    """
    foreign, counts = predicted[predicted >= len(names)].unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    shown = foreign[order[:OTHER_COLUMNS]].sort().values
    columns = [*names, *(union[int(place)] for place in shown)]
    if len(foreign) > len(shown):
        columns.append(OTHERS)
    place_of = torch.full((len(union),), len(columns) - 1)
    place_of[: len(names)] = torch.arange(len(names))
    place_of[shown] = torch.arange(len(names), len(names) + len(shown))
    confusion = torch.zeros(len(names), len(columns), dtype=torch.int64)
    confusion.index_put_((labels, place_of[predicted]), torch.ones_like(labels), accumulate=True)
    return confusion, tuple(columns)


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
    model: Classifier,
    split: Split | Dataset,
    classes: Sequence[str] | None = None,
    *,
    part: PartName = "test",
    device: str = "cpu",
) -> Evaluation:
    """Evaluate a model on one part of a data set, or on all of it; see ``evaluate``.

    Args:
        model: the model.
        split: training or test images, or a whole data set.
        classes: names of the data's classes; None: those of the data set.
        part: of a data set: ``test``, ``train`` or ``all`` images.
        device: where to compute; the model must be there.

    Raises:
        DataError: if images come without the names of their classes, or there is no such part.
    """
    if isinstance(split, Dataset):
        classes = split.classes if classes is None else classes
        split = split.part(part)
    if classes is None:
        raise DataError(
            "These images come without the names of their classes.",
            fix="evaluate_on(model, data.test, data.classes), or evaluate_on(model, data)",
        )
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


def fit_temperature(probabilities: Tensor, labels: Tensor) -> float | None:
    """Find the temperature T for which softmax(log(p) / T) has the smallest cross entropy.

    The cross entropy is convex in 1 / T, so a search between two bounds finds it.

    Args:
        probabilities: of the model, (N, C).
        labels: columns, (N,).

    Returns:
        T in [1 / 20, 20]; None without an image.
    """
    if len(labels) == 0:
        return None
    step = max(1, len(labels) // FITTED_IMAGES)
    logits = probabilities[::step].double().clamp(min=1e-30).log()
    truth = labels[::step]

    def loss(inverse: float) -> float:
        return float(nn.functional.cross_entropy(inverse * logits, truth))

    low, high = 1 / HOTTEST, HOTTEST
    for _ in range(60):
        third = (high - low) / 3
        if loss(low + third) < loss(high - third):
            high -= third
        else:
            low += third
    return 2 / (low + high)


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
