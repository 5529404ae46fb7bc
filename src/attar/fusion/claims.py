"""How far what a client says of itself is believed.

A client's numbers of images are its own word, yet they decide how much it counts: in the shares of
``fedavg``, ``class-share`` and ``accord``, and in what decoders draw. A number that no fair split
would give is therefore not believed, before any method sees it:

    n_k is believed if  n_k <= max(100 median, 4 n_j),  j the client with the next smaller number

where the median is that of the smaller numbers, and half of the clients are believed anyway. Of
200 random splits of each kind among 3 to 50 clients, none reached that: Dirichlet 0.05 to 0.5 and
two classes each stay below 13 times the median, log-normal sizes of sigma 1.2 below 96 times
(results/trials.json, "robustness-splits"). Where it is exceeded, the client counts as one with the
median number, its classes in the proportions that it sent. So such a lie buys no more than an
ordinary client has.

Weights are bounded in the same way: a tensor whose norm is many times that of the same tensor of
the others, of one architecture, is scaled to their median.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attar.core import Part, Upload

NAMED = 10.0  # times the others' median from which on a number of images is named
FAR = 100.0  # times the median of the smaller numbers
NEXT = 4.0  # times the next smaller number
FEWEST = 3  # clients; of two nobody knows which one is right
FAR_TENSOR = 30.0  # times the others' median norm of one tensor
CLASSIFIER = "classifier"


@dataclass(frozen=True)
class Claim:
    """A number of images that is far above those of the other clients.

    Attributes:
        client: Whose.
        claimed: As sent.
        counted: As the fusion counts it; ``claimed`` where it is believed.
        times: ``claimed`` as a multiple of the median of the others.
    """

    client: str
    claimed: int
    counted: int
    times: float

    @property
    def believed(self) -> bool:
        """Whether the fusion counts what was sent."""
        return self.counted == self.claimed

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "client": self.client,
            "claimed": self.claimed,
            "counted": self.counted,
            "times": round(self.times, 2),
        }

    def __str__(self) -> str:
        times = f"{self.times:,.3g} times" if self.times < 1e4 else f"{self.times:.1e} times"
        says = f"says it has {self.claimed:,} images, {times} the median of the others"
        return says if self.believed else f"{says}; counted as {self.counted:,}"


def find_claims(uploads: Sequence[Upload]) -> list[Claim]:
    """The numbers of images that stand out, all of them believed.

    Args:
        uploads: Of all clients.
    """
    return [replace(claim, counted=claim.claimed) for claim in bound_claims(uploads)[1]]


def bound_claims(uploads: Sequence[Upload]) -> tuple[list[Upload], list[Claim]]:
    """Replace numbers of images that are not believed.

    Args:
        uploads: Of all clients. Sums of features are left alone: their counts are part of what
            is summed.

    Returns:
        The uploads with the numbers that count, and the claims that stand out: those that are not
        believed, and all of ten times the others' median or more.
    """
    if len(uploads) < FEWEST:
        return list(uploads), []
    amounts = [upload.num_examples for upload in uploads]
    largest = _largest_believed(amounts)
    usual = round(median(amount for amount in amounts if amount <= largest))
    bounded = []
    claims = []
    for place, upload in enumerate(uploads):
        times = amounts[place] / median(amounts[:place] + amounts[place + 1 :])
        doubted = amounts[place] > largest and "sums" not in upload.parts
        counts = _scale_counts(upload, usual) if doubted else upload
        bounded.append(counts)
        if times >= NAMED or doubted:
            claims.append(Claim(upload.client, amounts[place], counts.num_examples, times))
    return bounded, claims


def _largest_believed(amounts: Sequence[int]) -> int:
    """The largest number that is believed: from the smaller half upward, until the first gap."""
    rising = sorted(amounts)
    sure = len(rising) // 2 + 1
    for place in range(sure, len(rising)):
        limit = max(FAR * median(rising[:place]), NEXT * rising[place - 1])
        if rising[place] > limit:
            return rising[place - 1]
    return rising[-1]


def _scale_counts(upload: Upload, total: int) -> Upload:
    """The upload with about ``total`` images, in the proportions that the client sent; at least one
    of each class that it has.
    """
    if upload.label_counts is None:
        return replace(upload, num_examples=total)
    factor = total / upload.num_examples
    counts = [max(1, round(count * factor)) if count else 0 for count in upload.label_counts]
    return replace(upload, num_examples=sum(counts), label_counts=tuple(counts))


def bound_weights(uploads: Sequence[Upload]) -> tuple[list[Upload], dict[str, float]]:
    """Scale tensors down whose norm is out of all proportion to those of the same architecture.

    Args:
        uploads: Of all clients. Architectures of fewer than three clients are left alone.

    Returns:
        The uploads, and by what the largest of its tensors was divided for each client that was
        bounded.
    """
    groups: dict[object, list[int]] = defaultdict(list)
    for place, upload in enumerate(uploads):
        if (part := upload.parts.get(CLASSIFIER)) is not None:
            groups[(part.spec, part.preprocess.input_shape, len(part.classes))].append(place)
    bounded = list(uploads)
    factors = {}
    for places in groups.values():
        if len(places) < FEWEST:
            continue
        parts = [uploads[place].parts[CLASSIFIER] for place in places]
        for place, part, divisors in zip(places, parts, _divisors(parts), strict=True):
            if divisors:
                upload = uploads[place]
                factors[upload.client] = max(divisors.values())
                scaled = replace(part, state=_divide(part, divisors))
                bounded[place] = replace(upload, parts={**upload.parts, CLASSIFIER: scaled})
    return bounded, factors


def _divisors(parts: Sequence[Part]) -> list[dict[str, float]]:
    """For each part, the tensors that are too large, and by what they are to be divided."""
    divisors: list[dict[str, float]] = [{} for _ in parts]
    for name, first in parts[0].state.items():
        if not first.is_floating_point() or any(name not in part.state for part in parts):
            continue
        norms = [float(part.state[name].double().norm()) for part in parts]
        for place, norm in enumerate(norms):
            usual = median(norms[:place] + norms[place + 1 :])
            if usual > 0 and norm > FAR_TENSOR * usual:
                divisors[place][name] = norm / usual
    return divisors


def _divide(part: Part, divisors: dict[str, float]) -> dict[str, Tensor]:
    return {
        name: (tensor.double() / divisors[name]).to(tensor.dtype)
        if name in divisors and bool(torch.isfinite(tensor).all())
        else tensor
        for name, tensor in part.state.items()
    }
