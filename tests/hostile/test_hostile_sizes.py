"""Files that are small and ask for much: memory and work of a run, counted before it begins."""

import pytest
import torch
from measured import run_measured

from attar.errors import NeedsError
from attar.fusion import question_classes, server_for
from attar.models import Classifier, evaluate
from attar.nets import MAX_CLASSES
from attar.testing import tiny_upload
from attar.uploads import write_bundle

pytestmark = pytest.mark.hostile

MANY = 20_000
TINY = "mlp:hidden=2,layers=1"


def with_classes(client, number, prefix="class"):
    return tiny_upload(client, TINY, tuple(f"{prefix} {place}" for place in range(number)))


def test_confusion_has_a_row_for_each_class_of_the_data_alone():
    part = with_classes("evil", MANY).parts["classifier"]
    pixels = torch.randint(0, 256, (300, 1, 16, 16), dtype=torch.uint8)
    labels = torch.arange(300) % 3
    names = part.classes
    result = evaluate(Classifier(part), pixels, labels, names[:3], model_classes=names)
    assert result.confusion.shape[0] == 3
    assert result.confusion.shape[1] == len(result.classes) <= 3 + 100 + 1
    assert int(result.confusion.sum()) == 300


def test_confusion_counts_rare_classes_together():
    class Diagonal(torch.nn.Module):
        """Image i -> class i, by its first two pixels."""

        def forward(self, images):
            number = (images[:, 0, 0, 0] * 255 + 256 * images[:, 0, 0, 1] * 255).round().long()
            return torch.nn.functional.one_hot(number, 500).float()

    pixels = torch.zeros(500, 1, 1, 2, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(500) % 256
    pixels[:, 0, 0, 1] = torch.arange(500) // 256
    names = [str(number) for number in range(500)]
    result = evaluate(
        Diagonal(), pixels, torch.zeros(500, dtype=torch.int64), names[:2], model_classes=names
    )
    assert result.confusion.shape == (2, 2 + 100 + 1)
    assert result.classes[-1] == "(other classes)"
    assert int(result.confusion[0, -1]) == 500 - 2 - 100
    assert int(result.confusion.sum()) == 500


def test_question_classes_of_long_lists_is_quick():
    uploads = [with_classes("a", 8000), with_classes("b", 8000, "Class"), with_classes("c", 3)]
    question = question_classes(uploads)
    assert question is not None
    assert question.alike["Class 7"] == "class 7"


def test_server_for_names_the_client_with_too_many_classes():
    uploads = [tiny_upload("a"), with_classes("evil", MAX_CLASSES)]
    with pytest.raises(NeedsError, match="client evil alone lists 30,000") as caught:
        server_for(uploads)
    assert "--exclude evil" in caught.value.fix


@pytest.mark.slow
def test_fuse_with_many_classes_in_little_memory(tmp_path):
    classes = ("T-shirt/top", "Trouser", "Pullover")
    write_bundle(tmp_path / "a.attar", tiny_upload("a", TINY, classes))
    more = (*classes, *(f"class {number}" for number in range(MANY)))
    write_bundle(tmp_path / "evil.attar", tiny_upload("evil", TINY, more))
    little = run_measured("fuse", "a.attar", "--data", "fashion-mini", "--out", "x", cwd=tmp_path)
    much = run_measured(
        "fuse", "a.attar", "evil.attar", "--data", "fashion-mini", "--out", "y", cwd=tmp_path
    )
    assert (little.status, much.status) == (0, 0), little.err + much.err
    assert much.peak - little.peak < 600 * 2**20
    assert much.seconds < 60
