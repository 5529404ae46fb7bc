"""How far each client agrees with the others about images that they were all asked about.

What counts is whether a client gives an image the class that others are sure of. An image counts
for client k if it was inverted from another client s towards class c, and most of the further
clients that hold c give it c, too: two voices or more, none of them k's. (Images of the method or
of the server have no s; there two clients have to agree.)

    M_k[c, d]     share of the images of class c to which client k gives class d
    agreement_k = (mean over c of M_k[c, c] - 1/m_k) / (1 - 1/m_k),  m_k: classes that k holds
    exchanged_k   the same with the classes renamed as fits k best, minus agreement_k
    effect_k      mean change of the probability of c in the ensemble when k joins it

An agreement of 1 is full agreement, 0 is chance. A low one alone is no evidence against a client:
a net that was trained for one epoch, or on few images, has it as well. What an honest net cannot
have is a high agreement once its classes are renamed: it tells the classes apart as the others do
and gives them other names. So a client contradicts the others if both hold, or if it exchanges two
classes with each other, both ways. Where honest and planted clients are apart was measured
(docs/trust.md).

A client is asked only about classes that it holds, by label counts or, where they are withheld, by
its own answers, and each client's bias towards the classes it has most of is taken away first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from attar.blocks.ensemble import NEVER
from attar.core import Upload

LEAST_AGREEMENT = 0.1  # below it, a client contradicts the others or knows nothing
EXCHANGED = 0.5  # what renaming has to gain before it does
EXCHANGED_PAIR = 1.0  # the same where two classes are compared
# Share of either of two classes that is given the name of the other: an honest net that takes one
# for the other does not do so both ways (0.29 was the most that was measured).
SWAPPED = 0.6
SWAPPED_IMAGES = 5  # of either class
SURE = 0.5  # median agreement of the others from which on they agree
FEWEST_CLASSES = 2  # that are compared
FEWEST_WITNESSES = 2  # holders of a class beside the client; one may be whom an image comes from
MORE_WITNESSES = 3  # where two classes are compared: exchanging two is a single mistake
FEWEST_IMAGES = 20
FEWEST_OF_CLASS = 3  # images of a class
EVEN = 3.0  # a class is held with at least a third of an even share of the client's examples


@dataclass(frozen=True)
class ClientAnswers:
    """What K clients answered about N images, C classes.

    Attributes:
        uploads: The clients, each with a classifier.
        logits: (K, N, C), 0 where a client does not know the class.
        known: (K, C) classes of each client's net.
        held: (K, C) classes that each client has learned from enough examples.
        source: (N,) the client that an image was inverted from, -1 for other images.
        target: (N,) the class that it was inverted towards, -1 for other images.
    """

    uploads: Sequence[Upload]
    logits: Tensor
    known: Tensor
    held: Tensor
    source: Tensor
    target: Tensor

    @property
    def probabilities(self) -> Tensor:
        """(K, N, C), 0 for classes that a client does not know."""
        return self._finite_logits.softmax(-1)

    @property
    def unbiased_probabilities(self) -> Tensor:
        """Probabilities divided by each client's mean over all images: a skewed client gives its
        commonest class too readily.
        """
        logs = self._finite_logits.log_softmax(-1)
        unbiased = logs - logs.mean(1, keepdim=True)
        return unbiased.masked_fill(~self.known[:, None], NEVER).softmax(-1)

    @property
    def _finite_logits(self) -> Tensor:
        return self.logits.nan_to_num(0.0, 0.0, 0.0).masked_fill(~self.known[:, None], NEVER)


@dataclass(frozen=True)
class Agreement:
    """How far a client agrees with the others.

    Attributes:
        agreement: 1 is full agreement, 0 is chance; None: it cannot be said.
        images: On how many images it was compared.
        unjudged: Why it cannot be said.
        shared: Classes that the client has in common with enough others.
        compared: Classes of these images.
        exchanged: What renaming its classes would gain.
        others: Median agreement of the other clients; None: fewer than three have one.
        swapped: Whether it exchanges some two classes with each other.
        renamed: The classes (columns) that it gives another name, each with that name.
        effect: Mean change of the right class's probability in the ensemble when it joins.
    """

    agreement: float | None
    images: int
    unjudged: str | None = None
    shared: int = 0
    compared: int = 0
    exchanged: float = 0.0
    others: float | None = None
    swapped: bool = False
    renamed: tuple[tuple[int, int], ...] = ()
    effect: float | None = None

    @property
    def contradicts(self) -> bool:
        """Whether the client tells classes apart as the others do, and names them otherwise."""
        if self.agreement is None:
            return False
        low = self.agreement < LEAST_AGREEMENT
        if self.compared <= FEWEST_CLASSES:
            return low and self.exchanged >= EXCHANGED_PAIR and self._others_agree
        return self.swapped or (low and self.exchanged >= EXCHANGED)

    @property
    def is_chance(self) -> bool:
        """Whether the client's answers have nothing to do with those of the others, who agree."""
        return (
            self.agreement is not None
            and self.agreement < LEAST_AGREEMENT
            and self.compared > FEWEST_CLASSES
            and not self.contradicts
            and self._others_agree
        )

    @property
    def _others_agree(self) -> bool:
        return self.others is not None and self.others >= SURE


def measure_agreements(answers: ClientAnswers, weights: Tensor | None = None) -> list[Agreement]:
    """Compare every client with the others.

    Args:
        answers: Of all clients.
        weights: (K,) or (K, C), of the ensemble whose change is measured; None: all alike.
    """
    found = [measure_agreement(answers, row, weights) for row in range(len(answers.uploads))]
    values = [one.agreement for one in found]
    return [
        replace(one, others=_usual(values[:row] + values[row + 1 :]))
        for row, one in enumerate(found)
    ]


def _usual(agreements: Sequence[float | None]) -> float | None:
    """The median agreement of at least three clients."""
    known = [one for one in agreements if one is not None]
    return median(known) if len(known) >= MORE_WITNESSES else None


def measure_agreement(answers: ClientAnswers, row: int, weights: Tensor | None = None) -> Agreement:
    """Compare the client in ``row`` with the others."""
    held = answers.held[row]
    others = answers.held.clone()
    others[row] = False
    shared = held & (others.sum(0) >= FEWEST_WITNESSES)
    common = int(shared.sum())
    needed = MORE_WITNESSES if common <= FEWEST_CLASSES else FEWEST_WITNESSES
    common = int((held & (others.sum(0) >= needed)).sum())
    if common < FEWEST_CLASSES:
        classes = "1 class" if common == 1 else f"{common} classes"
        why = (
            f"cannot tell: it shares {classes} with {needed} or more others, "
            f"{FEWEST_CLASSES} such classes are needed"
        )
        return Agreement(None, 0, why, common)
    labels = find_labels(answers, row)
    counted = (labels >= 0) & shared[labels.clamp(min=0)]
    sizes = torch.bincount(labels[counted], minlength=len(held))
    asked = (sizes >= FEWEST_OF_CLASS).nonzero().squeeze(1)
    counted &= torch.isin(labels, asked)
    number = int(counted.sum())
    if len(asked) < FEWEST_CLASSES or number < FEWEST_IMAGES:
        why = (
            f"cannot tell: the others are sure of {number} images of {len(asked)} classes that it "
            "holds: too few"
        )
        return Agreement(None, number, why, common)
    given = answers.unbiased_probabilities[row].masked_fill(~held, -1.0).argmax(-1)
    table = torch.stack(  # M_k
        [
            torch.bincount(given[counted & (labels == label)], minlength=len(held)).double()
            / sizes[label]
            for label in asked
        ]
    )
    chance = 1 / int(held.sum())
    right = float(table[range(len(asked)), asked].mean())
    renamed, fitting = best_names(table, asked)
    swaps = find_swaps(table, asked, sizes)
    return Agreement(
        agreement=(right - chance) / (1 - chance),
        images=number,
        shared=common,
        compared=len(asked),
        exchanged=(fitting - right) / (1 - chance),
        swapped=bool(swaps),
        renamed=swaps or renamed,
        effect=_effect(answers, row, labels, counted, weights),
    )


def find_labels(answers: ClientAnswers, row: int) -> Tensor:
    """The class of each image that others than the client in ``row`` are sure of; -1: they are not.

    Returns:
        (N,).
    """
    rows, images = answers.logits.shape[:2]
    probabilities = answers.unbiased_probabilities
    voice = answers.held[:, None].expand_as(probabilities).clone()  # (K, N, C)
    voice[row] = False
    inverted = answers.source >= 0
    voice[answers.source.clamp(min=0)[inverted], torch.arange(images)[inverted]] = False
    total = torch.where(voice, probabilities, 0.0).sum(0) / voice.sum(0).clamp(min=1)
    consensus = total.argmax(-1)
    choices = probabilities.masked_fill(~voice, -1.0).argmax(-1)  # (K, N)
    able = voice[torch.arange(rows)[:, None], torch.arange(images)[None], consensus[None]]
    witnesses = (able & (choices == consensus)).sum(0)
    # Whom an image was inverted from has a voice as well: the class that it was inverted towards.
    voices = witnesses + inverted.long()
    sure = (voices >= FEWEST_WITNESSES) & (2 * voices > able.sum(0) + inverted.long())
    sure &= (answers.source != row) & (~inverted | (answers.target == consensus))
    return torch.where(sure, consensus, -1)


def best_names(table: Tensor, asked: Tensor) -> tuple[tuple[tuple[int, int], ...], float]:
    """Rename classes as fits a client's answers best: greedily, the surest pair first.

    Args:
        table: M_k (m, C), a row for each class of ``asked``.
        asked: (m,) columns.

    Returns:
        The pairs (class, name) that differ, and the mean share of answers that then fit.
    """
    left = table.clone()
    renamed = []
    total = 0.0
    for _ in range(len(asked)):
        place, name = divmod(int(left.argmax()), left.shape[1])
        # Equal shares are no reason to rename.
        own = int(asked[place])
        name = own if left[place, own] == left[place, name] else name
        total += float(left[place, name])
        if name != own and left[place, name] > 0:
            renamed.append((own, name))
        left[place] = -1.0
        left[:, name] = torch.where(left[:, name] >= 0, 0.0, left[:, name])
    return tuple(renamed), total / len(asked)


def find_swaps(table: Tensor, asked: Tensor, sizes: Tensor) -> tuple[tuple[int, int], ...]:
    """Pairs (class, name) of classes that a client exchanges with each other, both ways.

    Args:
        table: M_k (m, C), a row for each class of ``asked``.
        asked: (m,) columns.
        sizes: (C,) images of each class.
    """
    often = [
        (place, int(label)) for place, label in enumerate(asked) if sizes[label] >= SWAPPED_IMAGES
    ]
    return tuple(
        (label, other)
        for place, label in often
        for row, other in often
        if place != row and min(float(table[place, other]), float(table[row, label])) >= SWAPPED
    )


def _effect(
    answers: ClientAnswers, row: int, labels: Tensor, counted: Tensor, weights: Tensor | None
) -> float:
    """Mean over images of p(label) with the client minus without, in the ensemble of all but the
    client that the image comes from.
    """
    shares = torch.ones(len(answers.known)) if weights is None else weights.float()
    table = shares[:, None].expand(answers.known.shape) if shares.dim() == 1 else shares
    table = (table * answers.known)[:, None].expand(answers.probabilities.shape).clone()
    images = torch.arange(len(labels))
    inverted = answers.source >= 0
    table[answers.source.clamp(min=0)[inverted], images[inverted]] = 0.0
    probabilities = []
    for left_out in (False, True):
        if left_out:
            table[row] = 0.0
        mean = (table * answers.probabilities).sum(0) / table.sum(0).clamp(min=1e-12)
        mean = mean / mean.sum(-1, keepdim=True).clamp(min=1e-12)
        probabilities.append(mean[images, labels.clamp(min=0)][counted])
    return float((probabilities[0] - probabilities[1]).mean())


def explain_no_agreement(agreements: Sequence[Agreement], images: int) -> str | None:
    """What a comparison would take, where no client could be compared; None where some could."""
    if any(agreement.agreement is not None for agreement in agreements):
        return None
    if max(agreement.shared for agreement in agreements) < FEWEST_CLASSES:
        return (
            f"it takes {FEWEST_WITNESSES + 1} classifiers that share {FEWEST_CLASSES + 1} classes, "
            f"or {MORE_WITNESSES + 1} that share {FEWEST_CLASSES}"
        )
    return f"the classifiers are sure of too few of the {images} images"


def held_classes(
    uploads: Sequence[Upload], known: Tensor, logits: Tensor, classes: Sequence[str]
) -> Tensor:
    """(K, C): classes of which a client has enough examples, or, where counts are withheld, that
    it gives as answers often enough.
    """
    held = torch.zeros_like(known)
    for row, upload in enumerate(uploads):
        part = upload.parts["classifier"]
        if upload.label_counts is None:
            finite = logits[row].nan_to_num(0.0, 0.0, 0.0)
            answers = finite.masked_fill(~known[row], NEVER).argmax(-1)
            shares = answers.bincount(minlength=len(classes)) / len(answers)
            held[row] = known[row] & (shares * EVEN * int(known[row].sum()) >= 1)
        else:
            even = upload.num_examples / len(part.classes)
            for name, count in zip(part.classes, upload.label_counts, strict=True):
                held[row, classes.index(name)] = count * EVEN >= even
    return held
