"""How well an attack tells members from other images, with intervals, and what to make of it.

An attack gives each image a score, higher for images that it takes for members. What matters is
how many members it finds while it accuses few others (Carlini et al., 2022): a score that is
right on average may say nothing for certain about anybody. So the true-positive rate is measured
at 0.1 % and 1 % false positives. At a rate f at least 10 / f others are needed; with fewer the
threshold hangs on a handful of images.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attar.privacy.membership import auc

Answer = Literal["yes", "no", "cannot tell"]  # may it be sent, as far as this shows

LEVEL = 0.95  # of the intervals
NEEDED = {0.01: 1_000, 0.001: 10_000}  # others that a rate of false positives needs
# A file tells too much if it surely gives away this share of its members, 5 and 10 times what
# guessing would, or if a member surely scores higher than another image with this probability.
MOST_FOUND = {0.01: 0.05, 0.001: 0.01}
MOST_AUC = 0.6


@dataclass(frozen=True)
class Rate:
    """Members found at a rate of false positives.

    Attributes:
        target: the rate of false positives, at most.
        others: images that are not members.
        accused: of them, how many score at least as high as the threshold.
        members: how many there are.
        found: of them, how many score at least as high as the threshold.
    """

    target: float
    others: int
    accused: int
    members: int
    found: int

    @property
    def share(self) -> float:
        """The true-positive rate."""
        return self.found / self.members

    @property
    def interval(self) -> tuple[float, float]:
        """Of the true-positive rate, by Clopper and Pearson."""
        return clopper_pearson(self.found, self.members)

    @property
    def needed(self) -> int:
        """How many others this rate needs."""
        return NEEDED[self.target]

    @property
    def answer(self) -> Answer:
        """Whether the file may be sent, as far as this rate shows."""
        low, high = self.interval
        if self.others < self.needed:
            return "cannot tell"
        if low > MOST_FOUND[self.target]:
            return "no"
        return "yes" if high <= MOST_FOUND[self.target] else "cannot tell"


@dataclass(frozen=True)
class Attack:
    """What came of one attack.

    Attributes:
        name: of the attack.
        how: what it does, in a sentence.
        auc: the probability that a member scores above another image; 0.5 is guessing.
        auc_interval: of ``auc``, by Hanley and McNeil.
        rates: members found at each rate of false positives.
    """

    name: str
    how: str
    auc: float
    auc_interval: tuple[float, float]
    rates: tuple[Rate, ...]

    @property
    def answer(self) -> Answer:
        """Whether the file may be sent, as far as this attack shows.

        "yes" needs 1 %; 0.1 % needs ten times as many images, and is left out without them.
        """
        answers = [rate.answer for rate in self.rates]
        if "no" in answers or self.auc_interval[0] > MOST_AUC:
            return "no"
        of_use = [
            rate.answer
            for rate in self.rates
            if rate.target == max(NEEDED) or rate.others >= rate.needed
        ]
        sure = self.auc_interval[1] <= MOST_AUC and set(of_use) == {"yes"}
        return "yes" if sure else "cannot tell"


def measure_attack(name: str, how: str, members: Tensor, others: Tensor) -> Attack:
    """Measure an attack by its scores.

    Args:
        name: of the attack.
        how: what it does, in a sentence.
        members: scores, (N,), N at least 1.
        others: scores, (M,), M at least 1.
    """
    members = members.double().nan_to_num(0.0)
    others = others.double().nan_to_num(0.0)
    area = auc(members, others)
    return Attack(
        name=name,
        how=how,
        auc=area,
        auc_interval=auc_interval(area, len(members), len(others)),
        rates=tuple(measure_rate(target, members, others) for target in NEEDED),
    )


def measure_rate(target: float, members: Tensor, others: Tensor) -> Rate:
    """Count members at the lowest threshold that accuses at most this share of others.

    Args:
        target: the rate of false positives, at most.
        members: scores, (N,).
        others: scores, (M,).
    """
    allowed = math.floor(target * len(others) + 1e-9)
    descending = others.sort(descending=True).values
    # Above the first score too many: ties with it would accuse more than allowed.
    found = members > descending[allowed] if allowed < len(others) else members == members
    accused = others > descending[allowed] if allowed < len(others) else others == others
    return Rate(target, len(others), int(accused.sum()), len(members), int(found.sum()))


def auc_interval(area: float, members: int, others: int) -> tuple[float, float]:
    """Return an interval of an AUC by Hanley and McNeil (1982).

    Args:
        area: the AUC.
        members: how many scores it compares.
        others: with how many.
    """
    q1 = area / (2 - area)
    q2 = 2 * area**2 / (1 + area)
    variance = area * (1 - area) + (members - 1) * (q1 - area**2) + (others - 1) * (q2 - area**2)
    # With all on one side the formula gives 0: at least what one more image could change.
    error = max(math.sqrt(max(0.0, variance) / (members * others)), 0.5 / min(members, others))
    width = 1.96 * error
    return max(0.0, area - width), min(1.0, area + width)


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper and Pearson, 1934).

    It is never too narrow: it holds the true share at least as often as it says.

    Args:
        successes: k.
        trials: n, at least 1.
        level: how often, such as 0.95.
    """
    tail = (1 - level) / 2
    low = 0.0
    high = 1.0
    if successes > 0:  # P(X >= k) = tail
        low = _solve(lambda p: 1 - _binomial_cdf(successes - 1, trials, p) < tail)
    if successes < trials:  # P(X <= k) = tail
        high = _solve(lambda p: _binomial_cdf(successes, trials, p) > tail)
    return low, high


def _solve(is_below: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def _binomial_cdf(most: int, trials: int, share: float) -> float:
    """P(X <= most) of a binomial variable, by the logarithms of its terms."""
    if share <= 0 or share >= 1:
        return float(share <= 0 or most >= trials)
    k = torch.arange(most + 1, dtype=torch.float64)
    n = torch.tensor(float(trials), dtype=torch.float64)
    choose = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    terms = choose + k * math.log(share) + (n - k) * math.log1p(-share)
    return float(terms.logsumexp(0).exp())
