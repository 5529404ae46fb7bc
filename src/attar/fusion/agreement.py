"""How far each client agrees with the others about images that they were all asked about.

What counts is whether a client, asked about images that the *other* holders of a class agree are
of that class, gives them that class, too:

    agreement_k = (r_k - 1/m_k) / (1 - 1/m_k)

    r_k     share of such images that k gives to the same class, mean over its classes
    m_k     classes that k holds

1 is full agreement, 0 is chance. A client is asked only about classes that it holds, by label
counts or, where they are withheld, by its own answers, and each client's bias towards the classes
it has most of is taken away first. So a skewed client is not blamed for what it never saw; one
whose labels were changed falls to chance or below. ``LEAST_AGREEMENT`` lies between what was
measured of honest and of planted clients (docs/trust.md).
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.blocks.ensemble import NEVER
from attar.core import Upload

LEAST_AGREEMENT = 0.3  # below it, a client is flagged
FEWEST_CLASSES = 3  # that a client shares with witnesses; with fewer, luck decides
# Holders of a class beside the client: of a single one nobody knows which of the two is wrong.
FEWEST_WITNESSES = 2
FEWEST_IMAGES = 20
CONSENSUS = 0.3  # mean probability by which witnesses have to agree on an image
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
    """

    uploads: Sequence[Upload]
    logits: Tensor
    known: Tensor
    held: Tensor
    source: Tensor

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
    """

    agreement: float | None
    images: int
    unjudged: str | None = None
    shared: int = 0


def measure_agreements(answers: ClientAnswers, suspects: Set[int] = frozenset()) -> list[Agreement]:
    """Compare every client with the others, but not with suspects.

    A client that falls below ``LEAST_AGREEMENT`` becomes a suspect, and all are compared anew.
    One at a time, the lowest first: an honest client that few share classes with must not be
    blamed for contradicting a liar.

    Args:
        answers: Of all clients.
        suspects: Rows of clients that are suspicious for other reasons.
    """
    out = set(suspects)
    while True:
        agreements = [measure_agreement(answers, row, out) for row in range(len(answers.uploads))]
        candidates = [
            (agreement.agreement, row)
            for row, agreement in enumerate(agreements)
            if row not in out and agreement.agreement is not None
        ]
        if not candidates or min(candidates)[0] >= LEAST_AGREEMENT:
            return agreements
        out.add(min(candidates)[1])


def measure_agreement(
    answers: ClientAnswers, row: int, suspects: Set[int] = frozenset()
) -> Agreement:
    """Compare the client in ``row`` with the others that are no suspects."""
    others = [
        other for other in range(len(answers.uploads)) if other != row and other not in suspects
    ]
    held = answers.held[row]
    witnesses = answers.held[others]  # (K - 1, C)
    shared = held & (witnesses.sum(0) >= FEWEST_WITNESSES)
    common = int(shared.sum())
    if common < FEWEST_CLASSES:
        classes = "1 class" if common == 1 else f"{common} classes"
        why = (
            f"shares {classes} with {FEWEST_WITNESSES} or more others, "
            f"{FEWEST_CLASSES} such classes are needed"
        )
        return Agreement(None, 0, why, common)
    probabilities = answers.unbiased_probabilities
    # Each witness gives its probabilities on what it holds; one vote each, so that no client
    # counts more by larger logits.
    votes = (probabilities[others] * witnesses[:, None]).sum(0) / witnesses.sum(0).clamp(min=1)
    confidence, consensus = votes.max(-1)
    counted = (answers.source != row) & (confidence >= CONSENSUS) & shared[consensus]
    answer = probabilities[row].masked_fill(~held, -1.0).argmax(-1)
    asked = [
        label
        for label in shared.nonzero().squeeze(1).tolist()
        if int((counted & (consensus == label)).sum()) >= 2
    ]
    number = int((counted & torch.isin(consensus, torch.tensor(asked, dtype=torch.int64))).sum())
    if len(asked) < FEWEST_CLASSES or number < FEWEST_IMAGES:
        why = f"the others agree on {number} images of {len(asked)} classes that it holds: too few"
        return Agreement(None, number, why, common)
    recalls = [
        float((answer[counted & (consensus == label)] == label).float().mean()) for label in asked
    ]
    chance = 1 / int(held.sum())
    agreement = (sum(recalls) / len(recalls) - chance) / (1 - chance)
    return Agreement(agreement, number, None, common)


def explain_no_agreement(agreements: Sequence[Agreement], images: int) -> str | None:
    """What a comparison would take, where no client could be compared; None where some could."""
    if any(agreement.agreement is not None for agreement in agreements):
        return None
    if max(agreement.shared for agreement in agreements) < FEWEST_CLASSES:
        return f"it takes {FEWEST_WITNESSES + 1} classifiers that share {FEWEST_CLASSES} classes"
    return f"the classifiers agree on too few of the {images} images"


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
