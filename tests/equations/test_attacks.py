"""Rates and intervals of membership attacks on numbers worked out by hand."""

import pytest
import torch

from attar.privacy.attacks import (
    Rate,
    auc_interval,
    clopper_pearson,
    measure_attack,
    measure_rate,
)
from attar.privacy.shadows import calibrate


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 1 - 0.025 ** (1 / 10)),  # the upper bound solves (1 - p)^10 = 0.025
        (10, 10, 0.025 ** (1 / 10), 1.0),
        (5, 10, 0.1871, 0.8129),  # published tables
        (1, 20, 0.00127, 0.24873),
        (100, 10_000, 0.00814, 0.01215),
    ],
)
def test_clopper_pearson(successes, trials, low, high):
    assert clopper_pearson(successes, trials) == pytest.approx((low, high), abs=2e-5)


def test_clopper_pearson_holds_the_share_often_enough():
    """20 trials at 0.3: summed over all outcomes, the interval holds 0.3 in 95 % or more."""
    binomial = torch.distributions.Binomial(20, torch.tensor(0.3))
    held = sum(
        float(binomial.log_prob(torch.tensor(float(k))).exp())
        for k in range(21)
        if clopper_pearson(k, 20)[0] <= 0.3 <= clopper_pearson(k, 20)[1]
    )
    assert 0.95 <= held < 0.99


def test_measure_rate_by_hand():
    # 1 % of 200 others are 2: the threshold is the third largest, 197; 198 and above count.
    others = torch.arange(200.0)
    members = torch.tensor([500.0, 198.0, 197.0, 3.0])
    rate = measure_rate(0.01, members, others)
    assert (rate.accused, rate.found, rate.share) == (2, 2, 0.5)


def test_measure_rate_never_accuses_more_than_allowed():
    rate = measure_rate(0.01, torch.ones(5), torch.ones(1000))  # all scores are ties
    assert (rate.accused, rate.found) == (0, 0)


def test_rate_cannot_tell_with_too_few_others():
    assert Rate(0.01, 999, 9, 100, 90).answer == "cannot tell"
    assert Rate(0.01, 1000, 10, 100, 90).answer == "no"
    assert Rate(0.01, 1000, 10, 1000, 12).answer == "yes"
    assert Rate(0.01, 1000, 10, 20, 1).answer == "cannot tell", "20 members say little"
    assert Rate(0.001, 9_999, 9, 1000, 900).answer == "cannot tell"
    assert Rate(0.001, 10_000, 10, 1000, 900).answer == "no"


def test_measure_attack_of_scores_that_say_nothing():
    draws = torch.Generator().manual_seed(0)
    members = torch.randn(3000, generator=draws)
    others = torch.randn(2000, generator=draws)
    attack = measure_attack("a", "b", members, others)
    low, high = attack.auc_interval
    assert low < 0.5 < high
    assert attack.answer == "yes"
    assert attack.rates[1].answer == "cannot tell", "2,000 others are too few for 0.1 %"


def test_measure_attack_of_scores_that_tell():
    draws = torch.Generator().manual_seed(0)
    members = 1 + torch.randn(3000, generator=draws)
    attack = measure_attack("a", "b", members, torch.randn(2000, generator=draws))
    assert attack.auc == pytest.approx(0.76, abs=0.02)  # Phi(1 / sqrt 2)
    assert attack.answer == "no"


def test_auc_interval_by_hand():
    # AUC 0.5: q1 = q2 = 1/3; (0.25 + 98 / 12) / 2500 = 0.003367 for 50 and 50
    low, high = auc_interval(0.5, 50, 50)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.05802, 0.5 + 1.96 * 0.05802), abs=1e-4)
    assert auc_interval(1.0, 10, 10)[0] < 1


def test_calibrate_by_hand():
    # Of the first image shadow 0 has seen it, so 2 - 5; nobody has seen the second: 3 - (1 + 3) / 2
    # all have seen the third: 1 - (2 + 4) / 2.
    answers = torch.tensor([2.0, 3.0, 1.0])
    shadows = torch.tensor([[9.0, 1.0, 2.0], [5.0, 3.0, 4.0]])
    saw = torch.tensor([[True, False, True], [False, False, True]])
    assert calibrate(answers, shadows, saw).tolist() == [-3.0, 1.0, -2.0]
