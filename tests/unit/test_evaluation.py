"""Accuracy, balanced accuracy, per class and calibration, on numbers worked out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from attar.data import Dataset, Split
from attar.errors import DataError
from attar.models import Classifier, evaluate, evaluate_on, predict
from attar.models.evaluation import calibration_error, fit_temperature
from attar.seeds import rng
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
    assert result.confusion.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


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


# --- probabilities that do not fit ----------------------------------------------------------------


def test_fit_temperature_finds_the_one_that_was_used():
    """Labels are drawn from softmax(z); the model says softmax(z / 3), so T = 1/3 mends it."""
    draws = rng(0, "temperature")
    logits = 2 * torch.randn(20_000, 4, generator=draws)
    labels = torch.multinomial(logits.softmax(1), 1, generator=draws).squeeze(1)
    found = fit_temperature((logits / 3).softmax(1), labels)
    assert found == pytest.approx(1 / 3, rel=0.1)
    assert fit_temperature(logits.softmax(1), labels) == pytest.approx(1, rel=0.1)
    assert fit_temperature(logits[:0].softmax(1), labels[:0]) is None


def test_fit_temperature_has_the_least_loss():
    draws = rng(1, "temperature")
    probabilities = torch.rand(50, 3, generator=draws).softmax(1)
    labels = torch.randint(0, 3, (50,), generator=draws)
    labels[:40] = probabilities[:40].argmax(1)
    found = fit_temperature(probabilities, labels)
    assert found is not None

    def loss(temperature):
        return nn.functional.cross_entropy(probabilities.double().log() / temperature, labels)

    assert all(loss(found) <= loss(found * factor) for factor in (0.5, 0.9, 1.1, 2.0))


UNSURE = [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.2, 0.5]]
SURE = [[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]]


def test_evaluate_advises_where_probabilities_are_too_low():
    rows, labels = images(0, 1, 2, 0), torch.tensor([0, 1, 2, 0])
    found = evaluate(Fixed(UNSURE), rows, labels, ["a", "b", "c"])
    assert found.confidence == pytest.approx(0.5)
    assert found.calibration_error == pytest.approx(0.5, abs=1e-6)
    assert found.temperature is not None
    assert found.temperature < 0.2
    assert found.advice is not None
    assert found.advice.startswith("The probabilities are too low (50 % sure on average, 100 %")
    assert "divide the logits by" in found.advice


def test_evaluate_advises_where_probabilities_are_too_high():
    rows, labels = images(0, 1, 2, 0), torch.tensor([0, 1, 0, 1])
    found = evaluate(Fixed(SURE), rows, labels, ["a", "b", "c"])
    assert found.temperature is not None
    assert found.temperature > 1
    assert found.advice is not None
    assert "too high (98 % sure on average, 50 % right)" in found.advice


def test_evaluate_says_nothing_of_good_probabilities():
    rows, labels = images(0, 1, 2, 0), torch.tensor([0, 1, 2, 0])
    found = evaluate(Fixed(SURE), rows, labels, ["a", "b", "c"])
    assert found.calibration_error < 0.1
    assert (found.temperature, found.advice) == (None, None)


def test_evaluate_fits_known_classes_alone():
    """Of an image whose class the model lacks no temperature can be right."""
    labels = torch.tensor([3, 3])
    names = ["a", "b", "c", "d"]
    found = evaluate(Fixed(SURE), images(0, 1), labels, names, model_classes=["a", "b", "c"])
    assert found.temperature is None
    assert found.advice is not None
    assert "divide" not in found.advice


def test_evaluate_on_a_part_of_a_data_set():
    """``all`` are the training and the test images together."""
    draws = np.random.default_rng(0)

    def split(number):
        pixels = draws.integers(0, 255, (number, 16, 16, 1), dtype=np.uint8)
        return Split(pixels, np.arange(number) % 3)

    data = Dataset("own", ("ring", "cross", "bar"), split(7), split(4), was_cut=True)
    model = Classifier(tiny_upload("ann").parts["classifier"])
    numbers = {
        part: evaluate_on(model, data, part=part).num_images for part in ("test", "train", "all")
    }
    assert numbers == {"test": 4, "train": 7, "all": 11}
    assert evaluate_on(model, data).num_images == 4
    joined = evaluate_on(model, data.part("all"), data.classes)
    assert torch.equal(joined.confusion, evaluate_on(model, data, part="all").confusion)
    with pytest.raises(DataError, match="no part 'val'"):
        data.part("val")
    with pytest.raises(DataError, match="without the names of their classes"):
        evaluate_on(model, data.test)
