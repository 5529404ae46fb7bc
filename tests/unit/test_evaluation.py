"""Accuracy, balanced accuracy, per class and calibration, on numbers worked out by hand."""

import pytest
import torch
from torch import nn

from attar.errors import DataError
from attar.models import Classifier, evaluate
from attar.models.evaluation import calibration_error, predict
from attar.testing import tiny_upload
from attar.training import ClientData, local_accuracy


class Fixed(nn.Module):
    """Returns the logs of a row of probabilities, whose number is the image's first pixel."""

    def __init__(self, rows):
        super().__init__()
        self.rows = torch.tensor(rows)

    def forward(self, images):
        return self.rows[(images[:, 0, 0, 0] * 255).round().long()].log()


def images(*rows):
    return torch.tensor(rows, dtype=torch.uint8)[:, None, None, None]


ROWS = [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]]


def test_predict_does_not_depend_on_the_batch():
    model = Fixed(ROWS)
    pixels = images(0, 1, 2, 1, 0)
    expected = torch.tensor([ROWS[row] for row in (0, 1, 2, 1, 0)])
    for batch_size in (1, 2, 5, 500):
        torch.testing.assert_close(predict(model, pixels, batch_size=batch_size), expected)


def test_evaluate_by_hand():
    """Predictions a b c c a for truths a b c b b: 3 of 5 right; per class 1, 1/3, 1; balanced 7/9.

    Confidences .9 .7 .4 .4 .9, in bins of 1/15: .9 (right and wrong) together, .7 alone, .4
    (right and wrong) together. |(1 - .9) + (0 - .9)| + |1 - .7| + |(1 - .4) + (0 - .4)| = .8 + .3
    + .2 = 1.3, over 5 images: 0.26.
    """
    result = evaluate(
        Fixed(ROWS), images(0, 1, 2, 2, 0), torch.tensor([0, 1, 2, 1, 1]), ["a", "b", "c"]
    )
    assert result.accuracy == pytest.approx(3 / 5)
    assert result.per_class == pytest.approx((1, 1 / 3, 1))
    assert result.balanced_accuracy == pytest.approx(7 / 9)
    assert result.calibration_error == pytest.approx(0.26, abs=1e-6)
    assert result.confusion.tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 1]]
    assert result.num_images == 5
    assert result.classes == ("a", "b", "c")


def test_evaluate_class_without_images():
    result = evaluate(Fixed(ROWS), images(0, 1), torch.tensor([0, 0]), ["a", "b", "c"])
    assert result.per_class == (0.5, None, None)
    assert result.balanced_accuracy == 0.5


def test_evaluate_other_classes():
    """The model says (c, a, x): predictions c a x for truths c a b. The image of b can only be
    wrong.
    """
    result = evaluate(
        Fixed(ROWS),
        images(0, 1, 2),
        torch.tensor([2, 0, 1]),
        ["a", "b", "c"],
        model_classes=["c", "a", "x"],
    )
    assert result.accuracy == pytest.approx(2 / 3)
    assert result.per_class == (1.0, 0.0, 1.0)
    assert result.classes == ("a", "b", "c", "x")
    assert result.unknown == ("b",)
    assert result.confusion.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]


def test_evaluate_unknown_classes():
    known = evaluate(
        Fixed(ROWS),
        images(0, 1),
        torch.tensor([2, 0]),
        ["a", "b", "c"],
        model_classes=["c", "a", "x"],
    )
    assert known.unknown == (), "of b there is no image"
    assert evaluate(Fixed(ROWS), images(0), torch.tensor([0]), ["a", "b", "c"]).unknown == ()


def test_evaluate_refuses_no_overlap_and_no_images():
    with pytest.raises(DataError, match="no class in common"):
        evaluate(
            Fixed(ROWS),
            images(0),
            torch.tensor([0]),
            ["a", "b", "c"],
            model_classes=["x", "y", "z"],
        )
    with pytest.raises(DataError, match="no image"):
        evaluate(Fixed(ROWS), images(0)[:0], torch.tensor([], dtype=torch.int64), ["a", "b", "c"])


def test_local_accuracy_on_training_images():
    """Of 30 images six evenly spread ones are asked about: places 0, 6, 12, 17, 23, 29."""
    part = tiny_upload("ann", "lenet5").parts["classifier"]
    pixels = torch.randint(0, 256, (30, *part.preprocess.input_shape), dtype=torch.uint8)
    said = predict(Classifier(part), pixels).argmax(1)
    labels = said.clone()
    labels[[6, 12]] = (said[[6, 12]] + 1) % 3
    labels[1] = (said[1] + 1) % 3
    client = ClientData("ann", pixels, labels, part.classes)
    assert local_accuracy(part, client) == pytest.approx(27 / 30)
    assert local_accuracy(part, client, most=6) == pytest.approx(4 / 6)


def test_calibration_error_by_hand():
    """Two bins. (0, .5]: .4 wrong, .5 right; (.5, 1]: .8 right. |0 - .4 + 1 - .5| + |1 - .8| =
    .1 + .2, over 3: 0.1.
    """
    found = calibration_error(
        torch.tensor([0.4, 0.5, 0.8]), torch.tensor([False, True, True]), bins=2
    )
    assert found == pytest.approx(0.1, abs=1e-7)


def test_calibration_error_at_the_ends():
    sure = torch.ones(4)
    assert calibration_error(sure, torch.tensor([True] * 4)) == 0
    assert calibration_error(sure, torch.tensor([False] * 4)) == 1
    assert calibration_error(torch.zeros(4), torch.tensor([False] * 4)) == 0
    half = torch.full((4,), 0.5)
    assert calibration_error(half, torch.tensor([True, False, True, False])) == 0
