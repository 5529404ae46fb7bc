"""Whether a client's net learned anything, judged at the client before it sends.

The net is asked about the images that it was trained on and, where some were held out, about
those. Accuracy alone misleads: a net that answers the client's largest class to everything has
that class's share. So the mean of the recalls of the classes counts, between chance and 1:

    skill = (mean recall - 1/C) / (1 - 1/C)        C: classes that the client holds

It is 0 for every net whose answers do not depend on the image.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attar.core import Part
from attar.models import Classifier, predict
from attar.training.clients import ClientData, split
from attar.training.options import LocalTraining

Outcome = Literal[
    "learned", "one class", "nothing", "overfitted", "diverged", "too few", "untrained"
]

NO_SKILL = 0.1  # below it, or below what luck gives, a net learned nothing
ONE_CLASS = 0.95  # share of the images that one answer is given to
WRONG_BY_FAR = 2.0  # cross entropy in that of a uniform guess: a net that knows nothing has 1
GAP = 0.2  # by which an overfitted net is better on its own images than on others
FEWEST_IMAGES = 20
FEWEST_HELD_OUT = 25
ASKED = 1000  # images at most, evenly spread

BAD: tuple[Outcome, ...] = ("one class", "nothing", "diverged", "untrained")


@dataclass(frozen=True)
class Verdict:
    """The judgement of one client's training.

    Attributes:
        client: Its name.
        outcome: In a word or two.
        why: What was seen.
        fix: What to change; empty where nothing is.
        own: Accuracy on the images trained on.
        held_out: Accuracy on images held out; None where there are none.
        largest_share: Share of the client's largest class: the accuracy of a net that learned
            nothing else.
    """

    client: str
    outcome: Outcome
    why: str
    fix: str
    own: float
    held_out: float | None
    largest_share: float

    @property
    def is_bad(self) -> bool:
        """Whether the upload is not worth sending."""
        return self.outcome in BAD

    def as_json(self) -> dict[str, Any]:
        """The verdict as records have it."""
        return {name: value for name, value in asdict(self).items() if name != "client"}


@dataclass(frozen=True)
class _Answers:
    """What a net answered about some images, and what is true."""

    choices: Tensor
    labels: Tensor
    loss: float  # mean cross entropy

    @property
    def accuracy(self) -> float:
        return float((self.choices == self.labels).double().mean())

    @property
    def skill(self) -> float:
        """0 for answers that do not depend on the image, 1 for right ones."""
        held = torch.unique(self.labels).tolist()
        recalls = [
            float((self.choices[self.labels == label] == label).double().mean()) for label in held
        ]
        chance = 1 / len(held)
        return (sum(recalls) / len(recalls) - chance) / (1 - chance) if len(held) > 1 else 0.0

    @property
    def luck(self) -> float:
        """Two standard deviations of the skill of a net that guesses."""
        sizes = self.labels.bincount()
        sizes = sizes[sizes > 0].double()
        chance = 1 / len(sizes)
        variance = float((chance * (1 - chance) / sizes).sum()) / len(sizes) ** 2
        return 2 * math.sqrt(variance) / (1 - chance) if len(sizes) > 1 else 0.0


def judge(
    part: Part,
    client: ClientData,
    training: LocalTraining,
    *,
    seed: int = 0,
    device: str = "cpu",
) -> Verdict:
    """Judge what a client's classifier has learned.

    Args:
        part: The trained net.
        client: Whose images it was trained on.
        training: How, with the number of epochs that were trained.
        seed: Of the training: it decides which images were held out.
        device: Where the net runs.
    """
    own_rows, held_rows = split(client, training.validation, seed)
    own = _ask(part, client, own_rows, device)
    held = _ask(part, client, held_rows, device) if len(held_rows) else None
    counts = client.labels[own_rows].bincount(minlength=len(client.classes))
    largest = client.classes[int(counts.argmax())]
    outcome, why, fix = _decide(own, held, training, len(own_rows), client.classes, largest)
    return Verdict(
        client=client.name,
        outcome=outcome,
        why=why,
        fix=fix,
        own=own.accuracy,
        held_out=None if held is None else held.accuracy,
        largest_share=float(counts.max() / counts.sum()),
    )


def _ask(part: Part, client: ClientData, rows: Tensor, device: str) -> _Answers:
    places = torch.linspace(0, len(rows) - 1, min(ASKED, len(rows))).round().long()
    chosen = rows[places]
    labels = client.labels[chosen]
    model = Classifier(part).to(device)
    probabilities = predict(model, client.pixels[chosen], device=device).double().cpu()
    of_truth = probabilities.gather(1, labels[:, None]).clamp(min=1e-12)
    return _Answers(probabilities.argmax(1), labels, float(-of_truth.log().mean()))


def _decide(
    own: _Answers,
    held: _Answers | None,
    training: LocalTraining,
    images: int,
    classes: tuple[str, ...],
    largest: str,
) -> tuple[Outcome, str, str]:
    """Return the outcome, what was seen, and what to change."""
    classes_held = len(torch.unique(own.labels))
    if not training.epochs:
        return "untrained", "0 epochs: the weights are those it began with", "give --epochs 30"
    if not math.isfinite(own.loss) or own.loss > WRONG_BY_FAR * math.log(max(2, len(classes))):
        why = f"its loss on its own images is {own.loss:.3g}, above that of guessing"
        return "diverged", why, f"train with a smaller --lr than {training.lr:g}, or --clip 1"
    if classes_held == 1:
        why = f"it holds images of one class, {largest}: nothing to tell apart"
        return "too few", why, "add images of other classes, or send it knowing this"
    answers = own.choices.bincount(minlength=len(classes))
    is_lucky = own.skill < max(NO_SKILL, own.luck)
    if is_lucky and answers.max() >= ONE_CLASS * len(own.choices):
        share = 100 * float(answers.max() / len(own.choices))
        why = f"it answers {classes[int(answers.argmax())]} to {share:.0f} % of its own images"
        return "one class", why, _train_more(training)
    if is_lucky:
        why = f"it knows {100 * own.accuracy:.0f} % of its own images, hardly more than by chance"
        return "nothing", why, _train_more(training)
    if images < FEWEST_IMAGES:
        why = f"{images} images: what it knows of others cannot be told"
        return "too few", why, "add images"
    if held is not None and len(held.labels) >= FEWEST_HELD_OUT:
        return _compare(own, held, training)
    why = f"it knows {100 * own.accuracy:.0f} % of its own images; none were held out"
    return "learned", why, ""


def _compare(own: _Answers, held: _Answers, training: LocalTraining) -> tuple[Outcome, str, str]:
    """Decide by images that were held out."""
    gap = own.accuracy - held.accuracy
    noise = math.sqrt(max(held.accuracy * (1 - held.accuracy), 0.01) / len(held.labels))
    shares = f"{100 * own.accuracy:.0f} % of its own images and {100 * held.accuracy:.0f} % of"
    why = f"it knows {shares} {len(held.labels)} images held out"
    if gap > max(GAP, 2 * noise):
        fix = "more images help most; else a smaller --net, or weights to --start from"
        if training.augment == "none":
            fix += ", or --augment crop-flip where a mirrored image is as good"
        return "overfitted", why, fix
    return "learned", why, ""


def _train_more(training: LocalTraining) -> str:
    """Say what makes a net learn that learned nothing."""
    if training.optimiser == "sgd":
        return "leave --optimiser, --lr and --epochs out, or use --optimiser adam --lr 0.001"
    return (
        f"train longer (--min-steps {max(1000, 2 * training.min_steps)}), with another --lr than "
        f"{training.lr:g}, or a simpler --net such as lenet5"
    )
