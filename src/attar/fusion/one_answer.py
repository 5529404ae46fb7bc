"""Clients whose net answers one class to every image: they learned nothing but their largest class.

A net is first asked about procedural images. Nearly one answer to all of them is no proof: a net
that learned from very uneven data gives it to images that look like none of its own. So images are
then inverted from this net alone towards its other classes. A net that learned to tell classes
apart is led there in a few steps; one whose answer hardly depends on the image is not. On small
trainings of lenet5, mlp and cnn2 (results/trials.json, "one-answer") the share that kept the one
answer was 100 % for nets that had learned one class and 0 % for all that had learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.blocks.ensemble import Teachers, use_knowledge_nets
from attar.blocks.images import procedural_images
from attar.core import Part, Upload
from attar.errors import AttarError
from attar.fusion.probe_images import SHIFT, invert_client
from attar.nets import to_shape
from attar.seeds import rng

ASKED = 64  # procedural images
SUSPICIOUS = 0.85  # share of one answer from which on images are inverted, too
INVERTED = 48  # at most, over all other classes
STEPS = 40
KEPT = 0.9  # share of the inverted images that keep the one answer


@dataclass(frozen=True)
class OneAnswer:
    """A client whose net answers one class to every image.

    Attributes:
        client: Its name.
        answer: The class.
        share: Share of the generated images that it is given to.
    """

    client: str
    answer: str
    share: float

    def __str__(self) -> str:
        return (
            f"client {self.client} answers one class to every image: {self.answer} to "
            f"{100 * self.share:.0f} % of generated ones. Ask it to train again and to read the "
            f"verdict of `attar train`, or leave it out (--exclude {self.client})"
        )


def find_one_answers(uploads: Sequence[Upload], device: str = "cpu") -> list[OneAnswer]:
    """Return the clients whose classifier answers one class to every image.

    Args:
        uploads: Of clients; those without a classifier, or that hold one class by their counts,
            are not asked.
        device: Where the nets run.
    """
    found = []
    for upload in use_knowledge_nets(uploads):
        part = upload.parts.get("classifier")
        if part is None:
            continue
        others = _other_classes(upload, part)
        if len(others) < 2:
            continue
        try:
            teachers = Teachers([part], part.classes).to(device)
        except AttarError:  # such as a backbone that is not on this machine: fusing it says so
            continue
        answer, share = _ask(teachers, part, others, device)
        if share is not None:
            found.append(OneAnswer(upload.client, part.classes[answer], share))
    return found


def _other_classes(upload: Upload, part: Part) -> list[int]:
    """Columns of the classes that a client holds; all of them where counts are withheld."""
    if upload.label_counts is None:
        return list(range(len(part.classes)))
    return [column for column, count in enumerate(upload.label_counts) if count]


def _ask(
    teachers: Teachers, part: Part, held: Sequence[int], device: str
) -> tuple[int, float | None]:
    """Return a net's commonest answer, and its share where it is the only one; None: it is not."""
    shape = part.preprocess.input_shape
    draws = rng(0, "one answer")
    images = procedural_images(ASKED, shape, draws).to(device)
    answers = _answer(teachers, images)
    counts = answers.bincount(minlength=len(part.classes))
    answer = int(counts.argmax())
    if counts[answer] < SUSPICIOUS * ASKED:
        return answer, None
    targets = torch.tensor([column for column in held if column != answer])
    targets = targets.repeat(max(1, INVERTED // len(targets)))[:INVERTED]
    start = to_shape(torch.rand(len(targets), shape[0], 7, 7, generator=draws), shape)
    shifts = torch.randint(-SHIFT, SHIFT + 1, (STEPS, 2), generator=draws).tolist()
    inverted = invert_client(
        teachers,
        0,
        torch.ones(len(part.classes), dtype=torch.bool, device=device),
        start=start.to(device),
        targets=targets.to(device),
        shifts=shifts,
    )
    led = _answer(teachers, inverted.clamp(0, 1).nan_to_num(0.5))
    if float((led == answer).double().mean()) < KEPT:
        return answer, None
    return answer, float((torch.cat([answers, led]) == answer).double().mean())


def _answer(teachers: Teachers, images: Tensor) -> Tensor:
    with torch.no_grad():
        answers: Tensor = teachers.run_one(0, images).float().argmax(-1).cpu()
    return answers
