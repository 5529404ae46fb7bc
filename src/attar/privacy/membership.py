"""How well the holder of an upload can tell the images that it was trained on from others.

The attacker has an image with its label and asks whether it was among the client's. There are
two hints:

    loss        -CE(f(x), y): a net is surer of what it was trained on (Yeom et al., 2018);
                needs the classifier alone
    distance    -||W^T (phi(x) - mean_y)||: an image pulls the mean of its class towards itself;
                needs the statistics

``both`` is a linear rule of the two, fitted on half of the images with the truth known, which no
real attacker knows, and measured on the other half: more than can be achieved, up to the chance
that few images leave. An AUC of 0.5 is guessing. What the statistics add is ``both`` minus
``loss``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.core import Part, Upload
from attar.errors import DataError, NeedsError
from attar.nets import FeatureStatistics
from attar.seeds import rng
from attar.training import ClientData, penultimate_features


@dataclass(frozen=True)
class MembershipCheck:
    """The areas under the curves (AUC) of three attacks on one upload; 0.5 is guessing.

    Attributes:
        client: whose upload it is.
        images: how many of the client's, and as many others of the same classes.
        loss: AUC of the loss alone.
        distance: AUC of the distance alone.
        both: AUC of both together.
    """

    client: str
    images: int
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
    """Attack an upload with statistics.

    Args:
        upload: holds a classifier and statistics.
        members: the client's images.
        others: images that the client never saw.
        most: images of either side at most; equally many of each class are taken.
        seed: of the choice among them.
        device: where to compute.

    Returns:
        How well the attacks succeed.

    Raises:
        NeedsError: if the upload has no statistics.
        DataError: if there are too few images of the classes that the client holds.
    """
    if "statistics" not in upload.parts or "classifier" not in upload.parts:
        raise NeedsError(
            f"{upload.client} sent no statistics beside a classifier.",
            fix="train it with --statistics",
        )
    part = upload.parts["classifier"]
    statistics = upload.parts["statistics"].build()
    assert isinstance(statistics, FeatureStatistics)
    flags = zip(part.classes, statistics.held.tolist(), strict=True)
    held = [members.classes.index(name) for name, present in flags if present]
    inside, outside = _match_rows(members, others, held, most, seed)
    if len(inside) < 4:
        classes = f"of the classes that {upload.client} holds"
        raise DataError(f"Too few images {classes}: {len(inside)} on either side, at least 4.")
    of_members = _hints(part, statistics, members, inside, device)
    of_others = _hints(part, statistics, others, outside, device)
    return MembershipCheck(
        client=upload.client,
        images=len(inside),
        loss=auc(of_members[:, 0], of_others[:, 0]),
        distance=auc(of_members[:, 1], of_others[:, 1]),
        both=_fit_auc(of_members, of_others),
    )


def auc(members: Tensor, others: Tensor) -> float:
    """The probability that a member scores above another image, ties counted half.

    Args:
        members: scores, (N,).
        others: scores, (M,).
    """
    ranks = _ranks(torch.cat([members, others]))[: len(members)]
    wins = ranks.sum() - len(members) * (len(members) + 1) / 2
    return float(wins / (len(members) * len(others)))


def _ranks(scores: Tensor) -> Tensor:
    """From 1; equal scores share their mean rank."""
    _, place, number = scores.double().unique(return_inverse=True, return_counts=True)
    mean: Tensor = number.cumsum(0) - (number - 1) / 2
    return mean[place].double()


def _match_rows(
    members: ClientData, others: ClientData, held: list[int], most: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Rows of either side, equally many of every class, so that no class gives a member away."""
    inside: list[Tensor] = []
    outside: list[Tensor] = []
    for label in held:
        member_rows = (members.labels == label).nonzero().squeeze(1)
        other_rows = (others.labels == label).nonzero().squeeze(1)
        number = min(len(member_rows), len(other_rows), max(1, most // len(held)))
        for rows, chosen in ((member_rows, inside), (other_rows, outside)):
            order = torch.randperm(len(rows), generator=rng(seed, "membership", label))
            chosen.append(rows[order[:number]])
    return torch.cat(inside), torch.cat(outside)


@torch.no_grad()
def _hints(
    part: Part, statistics: FeatureStatistics, source: ClientData, rows: Tensor, device: str
) -> Tensor:
    """(n, 2): -loss and -distance to the image's own class."""
    features = penultimate_features(part, source.pixels[rows], device)
    places = torch.tensor([part.classes.index(name) for name in source.classes])
    labels = places[source.labels[rows]]
    head = dict(part.build().named_children())["head"]
    loss = F.cross_entropy(head(features), labels, reduction="none")
    distances = statistics.class_distances(statistics.project(features))
    distance = distances.gather(1, labels[:, None]).squeeze(1)
    return -torch.stack([loss, distance], 1)


def _fit_auc(members: Tensor, others: Tensor) -> float:
    """Fit a linear rule on every second image and take its AUC on the rest; and vice versa.

    Returns the mean of both. Hints enter as ranks, since neither is normally distributed.
    """
    each = [_ranks(hint) / len(hint) for hint in torch.cat([members, others]).T]
    hints = torch.stack([*each, torch.ones_like(each[0])], 1)
    truth = torch.cat([torch.ones(len(members)), torch.zeros(len(others))]).double()
    even = torch.arange(len(hints)) % 2 == 0
    areas = []
    for known in (even, ~even):
        rule = torch.linalg.lstsq(hints[known], truth[known, None]).solution.squeeze(1)
        scores = (hints @ rule)[~known]
        sides = truth[~known]
        areas.append(auc(scores[sides == 1], scores[sides == 0]))
    return sum(areas) / 2
