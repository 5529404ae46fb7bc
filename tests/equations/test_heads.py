"""Heads from sums of features, against a plain computation on the features themselves."""

import math

import pytest
import torch

from attar.blocks.ensemble import combine
from attar.blocks.heads import (
    Halves,
    LinearHead,
    Moments,
    Totals,
    diagonal_likelihood,
    draw_scores,
    fit_temperature,
    gaussian_head,
    log_prior_of,
    moments_of,
    regression,
    squared_error,
)
from attar.blocks.heads.choice import choose_gaussian, choose_ridge, fit_gaussian
from attar.blocks.heads.scoring import Drawn
from feature_parts import CLASSES, draw_features, sums_part

PHI, LABELS, HALVES = draw_features(240)
EYE = torch.eye(PHI.shape[1], dtype=torch.float64)


def totals_of(*parts, per_class=True):
    totals = Totals.empty(CLASSES, parts[0].state["sums"].shape[-1], per_class=per_class, bits=24)
    for number, part in enumerate(parts):
        totals.add(part, f"client{number}")
    return totals


def moments(half=None, per_class=True):
    part = sums_part(PHI, LABELS, HALVES, per_class=per_class)
    return moments_of(totals_of(part, per_class=per_class), half)


def shrunk(matrix, share):
    return (1 - share) * matrix + share * matrix.trace() / len(matrix) * EYE


def by_class():
    return [PHI[label == LABELS] for label in range(3)]


def pooled():
    rest = torch.cat([own - own.mean(0) for own in by_class()])
    return rest.T @ rest / (len(PHI) - 3)


def same_up_to_constant(logits, expected):
    """Equal logits but for what all classes of an image have in common."""
    gap = logits - expected
    torch.testing.assert_close(
        gap, gap[:, :1].expand_as(gap), rtol=0, atol=1e-6 * float(expected.abs().max())
    )


def test_moments_are_those_of_the_features():
    found = moments()
    torch.testing.assert_close(found.means, torch.stack([own.mean(0) for own in by_class()]))
    torch.testing.assert_close(found.within, pooled(), rtol=0, atol=1e-6)
    for label, own in enumerate(by_class()):
        torch.testing.assert_close(found.covariance(label), own.T.cov(), rtol=0, atol=1e-6)


def test_halves_add_up():
    first, second = moments(0), moments(1)
    torch.testing.assert_close(first.sums + second.sums, moments().sums, rtol=0, atol=1e-9)
    assert first.number + second.number == len(PHI)
    assert first.number == int((HALVES == 0).sum())


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("even", [True, False])
def test_lda(share, even):
    prior = (
        torch.zeros(3, dtype=torch.float64) if even else log_prior_of(moments().counts, "counts")
    )
    head = gaussian_head(moments(per_class=False), "lda", share, prior)
    precision = torch.linalg.inv(shrunk(pooled(), share))
    expected = []
    for label, own in enumerate(by_class()):
        gap = PHI - own.mean(0)
        expected.append(-((gap @ precision) * gap).sum(1) / 2 + (0 if even else prior[label]))
    same_up_to_constant(head.logits(PHI), torch.stack(expected, 1))


def test_prior_is_share_of_images():
    prior = log_prior_of(moments().counts, "counts")
    torch.testing.assert_close(
        prior.exp(), LABELS.bincount() / len(LABELS) * torch.ones_like(prior)
    )


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_qda(share):
    head = gaussian_head(moments(), "qda", share)
    expected = []
    for own in by_class():
        covariance = (1 - share) * own.T.cov() + share * shrunk(pooled(), share)
        normal = torch.distributions.MultivariateNormal(own.mean(0), covariance)
        expected.append(normal.log_prob(PHI))
    same_up_to_constant(head.logits(PHI), torch.stack(expected, 1))


def test_naive_bayes():
    head = gaussian_head(moments(per_class=False), "naive-bayes", 0.1)
    variances = pooled().diagonal()
    variances = 0.9 * variances + 0.1 * variances.mean()
    expected = [
        torch.distributions.Normal(own.mean(0), variances.sqrt()).log_prob(PHI).sum(1)
        for own in by_class()
    ]
    same_up_to_constant(head.logits(PHI), torch.stack(expected, 1))


def test_nearest_mean():
    head = gaussian_head(moments(per_class=False), "nearest-mean", 1.0)
    distances = torch.stack([(PHI - own.mean(0)).square().sum(1) for own in by_class()], 1)
    assert torch.equal(head.logits(PHI).argmax(1), distances.argmin(1))
    same_up_to_constant(head.logits(PHI), -distances / 2 / pooled().diagonal().mean())


@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_minimises_penalised_squares(intercept):
    share = 0.05
    head = regression(moments(per_class=False), intercept=intercept).head(share)
    one_hot = torch.nn.functional.one_hot(LABELS, 3).double()
    centre = PHI.mean(0) if intercept else torch.zeros(PHI.shape[1], dtype=torch.float64)
    x = PHI - centre
    penalty = share / (1 - share) * (x.T @ x).trace() / x.shape[1]
    target = one_hot.mean(0) if intercept else torch.zeros(3, dtype=torch.float64)
    # by least squares on rows that stand for the penalty: no normal equations
    rows = torch.cat([x, penalty.sqrt() * EYE])
    wanted = torch.cat([one_hot - target, torch.zeros(len(EYE), 3, dtype=torch.float64)])
    weight = torch.linalg.lstsq(rows, wanted).solution.T
    torch.testing.assert_close(head.weight, weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(head.bias, target - weight @ centre, rtol=0, atol=1e-6)


def test_squared_error_is_that_of_the_images():
    head = regression(moments(0)).head(0.01)
    rest = PHI[HALVES == 1]
    one_hot = torch.nn.functional.one_hot(LABELS[HALVES == 1], 3)
    expected = (one_hot - head.logits(rest)).square().sum(1).mean()
    assert squared_error(head, moments(1)) == pytest.approx(float(expected), abs=1e-6)


def test_likelihood_is_that_of_the_images():
    means, variances = moments(0).means, moments(0).within.diagonal()
    normal = torch.distributions.Normal(means[LABELS[HALVES == 1]], variances.sqrt())
    expected = normal.log_prob(PHI[HALVES == 1]).sum(1).mean()
    constant = PHI.shape[1] * torch.log(torch.tensor(2 * torch.pi)) / 2
    found = diagonal_likelihood(means, variances, moments(1))
    assert found - float(constant) == pytest.approx(float(expected), abs=1e-5)


def test_drawn_scores_have_mean_and_spread_of_the_features():
    head = LinearHead(torch.randn(3, 6, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    drawn = draw_scores(head, moments(), draws=20_000)
    for label, own in enumerate(by_class()):
        logits = drawn.logits[drawn.labels == label]
        expected = head.logits(own)
        spread = expected.T.cov()
        torch.testing.assert_close(
            logits.mean(0), expected.mean(0), rtol=0, atol=0.05 * float(spread.max()) ** 0.5
        )
        torch.testing.assert_close(logits.T.cov(), spread, rtol=0, atol=0.05 * float(spread.max()))
    assert float(drawn.weights.sum()) == pytest.approx(1)


def test_drawn_scores_of_a_quadratic_head_are_those_of_drawn_features():
    head = gaussian_head(moments(), "qda", 0.1)
    drawn = draw_scores(head, moments(), draws=4000)
    phi, labels, _ = draw_features(40_000)  # another sample of other classes: Gaussian, too
    del phi, labels
    right = []
    for label, own in enumerate(by_class()):
        normal = torch.distributions.MultivariateNormal(own.mean(0), own.T.cov())
        torch.manual_seed(0)
        right.append(
            float((head.logits(normal.sample((4000,))).argmax(1) == label).double().mean())
        )
    shares = LABELS.bincount() / len(LABELS)
    expected = sum(float(share) * one for share, one in zip(shares, right, strict=True))
    assert drawn.accuracy() == pytest.approx(expected, abs=0.02)


def test_temperature_undoes_a_scale():
    torch.manual_seed(0)
    logits = torch.randn(3000, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    weights = torch.full((3000,), 1 / 3000, dtype=torch.float64)
    assert fit_temperature(Drawn(7 * logits, labels, weights)) == pytest.approx(7, rel=0.1)


def test_few_images_are_shrunk_more():
    """With 2 images a dimension, and with 200, of the same Gaussians."""
    chosen = []
    for number in (40, 4000):
        phi, labels, halves = draw_features(number, width=20, seed=3, apart=0.4)
        totals = totals_of(sums_part(phi, labels, halves, per_class=False), per_class=False)
        chosen.append(choose_ridge(Halves.of(totals)).shrinkage)
    assert chosen[0] > chosen[1]


def test_chosen_shrinkage_is_the_best_on_new_images():
    """Ridge: within 2 % of the least squared error that any candidate has on new images."""
    phi, labels, halves = draw_features(4060, width=30, seed=3, apart=0.3)
    totals = totals_of(
        sums_part(phi[:60], labels[:60], halves[:60], per_class=False), per_class=False
    )
    choice = choose_ridge(Halves.of(totals))
    fresh = torch.nn.functional.one_hot(labels[60:], 3)
    errors = {
        share: float(
            (fresh - regression(moments_of(totals)).head(share).logits(phi[60:])).square().mean()
        )
        for share, _ in choice.scores
    }
    assert errors[choice.shrinkage] <= 1.02 * min(errors.values())
    assert max(errors.values()) > 1.1 * min(errors.values())


@pytest.mark.parametrize("kind", ["lda", "naive-bayes", "qda"])
@pytest.mark.parametrize("per_class", [True, False])
def test_shrinkage_of_gaussian_heads_is_chosen(kind, per_class):
    if kind == "qda" and not per_class:
        return
    seen = 200 if kind == "qda" else 60
    phi, labels, halves = draw_features(4000 + seen, width=30, seed=3, apart=0.3)
    part = sums_part(phi[:seen], labels[:seen], halves[:seen], per_class=per_class)
    totals = totals_of(part, per_class=per_class)
    halves_of = Halves.of(totals)

    def fit(found: Moments, share: float):
        return fit_gaussian(kind, share, None)(found)

    choice = choose_gaussian(halves_of, kind, fit)
    drawn = "drawn accuracy"
    expected = drawn if per_class else {"lda": "squared error", "naive-bayes": "likelihood"}[kind]
    assert choice.criterion == expected
    right = {
        share: float(
            (fit(moments_of(totals), share).logits(phi[seen:]).argmax(1) == labels[seen:])
            .double()
            .mean()
        )
        for share, _ in choice.scores
    }
    assert right[choice.shrinkage] >= max(right.values()) - 0.03
    if kind == "lda":
        assert min(right.values()) < max(right.values()) - 0.03  # there was something to choose


def test_log_odds_of_members_are_averaged():
    """By hand: two members, three classes, the second does not know the last."""
    logits = torch.tensor([[[2.0, 0.0, -1.0]], [[1.0, 3.0, 99.0]]], dtype=torch.float64)
    known = torch.tensor([[True, True, True], [True, True, False]])
    weights = torch.tensor([[0.25, 0.5, 1.0], [0.75, 0.5, 0.0]])
    first = [2 - math.log(math.e**2 + 1 + math.e**-1)]
    first += [first[0] - 2, first[0] - 3]
    second = [1 - math.log(math.e + math.e**3), 3 - math.log(math.e + math.e**3)]
    mean = [
        0.25 * first[0] + 0.75 * second[0],
        0.5 * first[1] + 0.5 * second[1],
        first[2],
    ]
    total = math.log(sum(map(math.exp, mean)))
    found = combine("log-odds", logits, known, weights)
    expected = torch.tensor([[value - total for value in mean]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_calibrated_members_beat_the_one_that_shouts():
    """A poor member with large logits decides everything, until temperatures are fitted."""
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (4000,))
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    noise = torch.randn(2, 4000, 3, dtype=torch.float64)
    good, poor = 3 * one_hot + noise[0], 20 * (0.5 * one_hot + noise[1])
    weights = torch.full((4000,), 1 / 4000, dtype=torch.float64)
    known = torch.ones(2, 3, dtype=torch.bool)

    def right(*members):
        logits = combine("log-odds", torch.stack(members), known)
        return float((logits.argmax(1) == labels).double().mean())

    calibrated = [one / fit_temperature(Drawn(one, labels, weights)) for one in (good, poor)]
    alone = float((good.argmax(1) == labels).double().mean())
    assert right(good, poor) < alone - 0.1
    assert right(*calibrated) >= alone - 0.005
