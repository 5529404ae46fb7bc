"""How well somebody who holds an upload can tell the images that it was trained on from others:
the attack, and its AUC.

The attacker has an image with its label and asks whether it was among the client's. It has two
hints:

    loss        -CE(f(x), y): a net is surer of what it was trained on (Yeom et al., 2018); the classifier alone gives it
    distance    -||W^T (phi(x) - mean_y)||: an image pulls the mean of its class towards itself; only the statistics give it

``both`` is a linear rule of the two, fitted on half of the images with the truth in hand, which
no real attacker has, and judged on the other half: more than what can be done, up to the chance
that few images leave. An AUC of 0.5 is guessing. What the statistics add is ``both`` less
``loss``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.core import Part, Upload
from attar.errors import DataError, NeedsError
from attar.nets.statistics import FeatureStatistics
from attar.seeds import generator
from attar.training import ClientData, penultimate_features


@dataclass(frozen=True)
class MembershipCheck:
    """The areas under the curves of three attacks on one upload."""

    client: str
    images: int  # of either kind: the client's, and others of the same classes, as many of each
    loss: float
    distance: float
    both: float


def check_membership(
    upload: Upload,
    members: ClientData,
    others: ClientData,
    *,
    most: int = 2000,
    seed: int = 0,
    device: str = "cpu",
) -> MembershipCheck:
    """The attack on an upload with statistics: ``members`` are the client's images, ``others``
    are images that it never saw.
    """
    if "statistics" not in upload.parts or "classifier" not in upload.parts:
        raise NeedsError(
            f"{upload.client} sent no statistics beside a classifier.",
            fix="train it with --statistics",
        )
    part, told = upload.parts["classifier"], upload.parts["statistics"].build()
    assert isinstance(told, FeatureStatistics)
    held = [
        members.classes.index(name)
        for name, there in zip(part.classes, told.held.tolist(), strict=True)
        if there
    ]
    inside, outside = _matched(members, others, held, most, seed)
    if len(inside) < 4:
        raise DataError(
            f"There are {len(inside)} images of the classes that {upload.client} holds on either side: too few."
        )
    both = [
        _hints(part, told, source, rows, device)
        for source, rows in ((members, inside), (others, outside))
    ]
    loss, distance = (
        auc(own, strange) for own, strange in zip(*(hints.T for hints in both), strict=True)
    )
    return MembershipCheck(upload.client, len(inside), loss, distance, _fitted_auc(*both))


def auc(members: Tensor, others: Tensor) -> float:
    """The chance that a member scores above another image, ties counted half."""
    total = (
        _ranks(torch.cat([members, others]))[: len(members)].sum()
        - len(members) * (len(members) + 1) / 2
    )
    return float(total / (len(members) * len(others)))


def _ranks(scores: Tensor) -> Tensor:
    """From 1; equal scores share their mean rank."""
    _, place, number = scores.double().unique(return_inverse=True, return_counts=True)
    mean: Tensor = number.cumsum(0) - (number - 1) / 2
    return mean[place].double()


def _matched(
    members: ClientData, others: ClientData, held: list[int], most: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Rows of either side, equally many of every class: what a class looks like shall not give a
    member away.
    """
    inside, outside = list[Tensor](), list[Tensor]()
    for label in held:
        own, strange = (
            (labels == label).nonzero().squeeze(1) for labels in (members.labels, others.labels)
        )
        number = min(len(own), len(strange), max(1, most // len(held)))
        for rows, chosen in ((own, inside), (strange, outside)):
            order = torch.randperm(len(rows), generator=generator(seed, "membership", label))
            chosen.append(rows[order[:number]])
    return torch.cat(inside), torch.cat(outside)


@torch.no_grad()
def _hints(
    part: Part, told: FeatureStatistics, source: ClientData, rows: Tensor, device: str
) -> Tensor:
    """(n, 2): -loss and -distance to the image's own class."""
    features = penultimate_features(part, source.pixels[rows], device)
    places = torch.tensor([part.classes.index(name) for name in source.classes])
    labels = places[source.labels[rows]]
    head = dict(part.build().named_children())["head"]
    loss = F.cross_entropy(head(features), labels, reduction="none")
    distance = told.class_distances(told.project(features)).gather(1, labels[:, None]).squeeze(1)
    return -torch.stack([loss, distance], 1)


def _fitted_auc(members: Tensor, others: Tensor) -> float:
    """Least squares on every second image, its AUC on the rest, and the other way round: their
    mean. Ranks: neither hint is normal.
    """
    each = [_ranks(hint) / len(hint) for hint in torch.cat([members, others]).T]
    hints = torch.stack([*each, torch.ones_like(each[0])], 1)
    truth = torch.cat([torch.ones(len(members)), torch.zeros(len(others))]).double()
    even = torch.arange(len(hints)) % 2 == 0
    found = []
    for known in (even, ~even):
        rule = torch.linalg.lstsq(hints[known], truth[known, None]).solution.squeeze(1)
        scores, sides = (hints @ rule)[~known], truth[~known]
        found.append(auc(scores[sides == 1], scores[sides == 0]))
    return sum(found) / 2
