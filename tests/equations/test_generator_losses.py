"""The loss terms of the generator family on two or three numbers by hand; their gradients by
finite differences.

Logits (ln 3, 0) are the probabilities (3/4, 1/4) throughout, (0, 0) are (1/2, 1/2), (0, ln 2, ln
5) are (1/8, 2/8, 5/8).
"""

from math import exp, log

import pytest
import torch
from torch.nn import functional as F

from attar.blocks.student import (
    adversarial,
    boundary_supporting,
    class_fidelity,
    distillation,
    diversity,
    hard_label,
    hard_sample,
    information_entropy,
    jensen_shannon,
    logit_gap,
    model_discrepancy,
    one_hot,
    soft_label_loss,
    total_variation,
)

SURE, EVEN, OTHER = [log(3), 0.0], [0.0, 0.0], [0.0, log(3)]
KL_SURE_EVEN = 0.75 * log(3) - log(2)  # KL((3/4, 1/4) || (1/2, 1/2)) = 0.130812
KL_SURE_OTHER = 0.5 * log(3)  # 3/4 ln(3) + 1/4 ln(1/3)


def rows(*logits):
    return torch.tensor(logits, dtype=torch.float64)


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def differences(term, at, step=1e-6):
    """The gradient of ``term`` at ``at``, one coordinate at a time."""
    slopes = torch.zeros_like(at)
    for place in range(at.numel()):
        nudge = torch.zeros_like(at).view(-1)
        nudge[place] = step
        nudge = nudge.view_as(at)
        slopes.view(-1)[place] = (term(at + nudge) - term(at - nudge)) / (2 * step)
    return slopes


# --- Co-Boosting (5), (6) -------------------------------------------------------------------------


def test_hard_sample_weighs_difficult_images_more():
    """y = 0: d = 1/4, CE = ln(4/3). y = 1: d = 3/4, CE = ln 4. Mean: (ln(4/3) / 4 + 3 ln(4) / 4)
    / 2 = 0.555821.
    """
    loss = hard_sample(rows(SURE, SURE), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((log(4 / 3) / 4 + 3 * log(4) / 4) / 2)
    assert loss.item() == pytest.approx(0.555821, abs=1e-6)


def test_hard_sample_has_no_gradient_through_the_difficulty():
    """d (p - e_y) / B: y = 0, B = 1: 1/4 (3/4 - 1, 1/4) = (-1/16, 1/16); through d as well it
    would be (-0.116, 0.116).
    """
    logits = rows(SURE).requires_grad_()
    hard_sample(logits, torch.tensor([0])).backward()
    assert logits.grad.tolist() == [pytest.approx([-1 / 16, 1 / 16])]


def test_hard_sample_gradient_is_that_of_fixed_weights():
    logits, labels = drawn(5, 4), torch.tensor([0, 3, 1, 1, 2])
    weights = 1 - logits.softmax(-1)[torch.arange(5), labels]

    def fixed(at):
        return (weights * F.cross_entropy(at, labels, reduction="none")).mean()

    leaf = logits.clone().requires_grad_()
    hard_sample(leaf, labels).backward()
    torch.testing.assert_close(leaf.grad, differences(fixed, logits), rtol=1e-5, atol=1e-8)


# --- Co-Boosting (7), FedHydra (15) ---------------------------------------------------------------


def test_adversarial_is_minus_the_divergence_from_the_ensemble():
    """-KL((3/4, 1/4) || (1/2, 1/2)) = -0.130812, and not the other way round, -0.143841."""
    assert adversarial(rows(SURE), rows(EVEN)).item() == pytest.approx(-KL_SURE_EVEN)
    assert adversarial(rows(EVEN), rows(SURE)).item() == pytest.approx(-(log(2) - 0.5 * log(3)))


def test_adversarial_at_a_temperature():
    """Logits (3 ln 3, 0) at T = 3 are (3/4, 1/4); T^2 = 9."""
    assert adversarial(rows([3 * log(3), 0.0]), rows(EVEN), 3.0).item() == pytest.approx(
        -9 * KL_SURE_EVEN
    )


def test_adversarial_has_gradients_to_both_sides():
    ensemble, student = drawn(3, 4).requires_grad_(), drawn(3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, s: adversarial(a, s, 3.0), (ensemble, student))
    for side in torch.autograd.grad(adversarial(ensemble, student), (ensemble, student)):
        assert side.abs().max() > 1e-3


def test_adversarial_drives_ensemble_and_student_apart():
    """Gradient direction of (7) and (15): x <- x - h dL/dx raises KL(A(x) || f_S(x)), for A and
    f_S two linear maps of x.
    """
    teacher, learner = drawn(3, 6), drawn(3, 6, seed=1)
    images = drawn(5, 6, seed=2).requires_grad_()
    loss = adversarial(images @ teacher.T, images @ learner.T)
    (slope,) = torch.autograd.grad(loss, images)
    with torch.no_grad():
        moved = images - 0.05 * slope
        before = distillation(images @ learner.T, images @ teacher.T)
        after = distillation(moved @ learner.T, moved @ teacher.T)
        assert after - before == pytest.approx(0.05 * slope.square().sum().item(), rel=0.2)
    assert after > before


# --- DENSE ----------------------------------------------------------------------------------------


def test_boundary_supporting_counts_disagreement_only_and_divides_by_all():
    """Row 0: first choices 0 and 1 differ, KL = 1/2 ln 3. Row 1: both choose 0, left out. Minus
    the mean: -1/4 ln 3.
    """
    loss = boundary_supporting(rows(SURE, SURE), rows(OTHER, [9.0, 0.0]))
    assert loss.item() == pytest.approx(-KL_SURE_OTHER / 2)


def test_boundary_supporting_at_a_temperature():
    """The mask looks at plain logits, the divergence at T = 2 has T^2 = 4."""
    loss = boundary_supporting(rows([2 * log(3), 0.0]), rows([0.0, 2 * log(3)]), 2.0)
    assert loss.item() == pytest.approx(-4 * KL_SURE_OTHER)


def test_boundary_supporting_leaves_agreement_without_gradient():
    ensemble, student = rows(SURE, SURE).requires_grad_(), rows(OTHER, [9.0, 0.0]).requires_grad_()
    boundary_supporting(ensemble, student).backward()
    for side in (ensemble, student):
        assert side.grad[1].tolist() == [0.0, 0.0]
        assert side.grad[0].abs().min() > 1e-3


def test_boundary_supporting_is_adversarial_where_all_differ():
    ensemble, student = rows(SURE, OTHER), rows([0.0, 1.0], [2.0, 0.0])
    torch.testing.assert_close(
        boundary_supporting(ensemble, student, 1.5), adversarial(ensemble, student, 1.5)
    )


# --- FedHydra (18) --------------------------------------------------------------------------------


def test_hard_label_by_hand():
    """H[P] = (0, 1); the student gives them 1/2 and 3/4: (ln 2 + ln(4/3)) / 2."""
    loss = hard_label(rows(EVEN, OTHER), rows([0.2, 0.1], [-3.0, -2.0]))
    assert loss.item() == pytest.approx((log(2) + log(4 / 3)) / 2)


def test_hard_label_teaches_the_student_only():
    student, ensemble = drawn(3, 4).requires_grad_(), drawn(3, 4, seed=1).requires_grad_()
    slope, none = torch.autograd.grad(
        hard_label(student, ensemble), (student, ensemble), allow_unused=True
    )
    assert none is None
    torch.testing.assert_close(
        slope,
        differences(lambda s: hard_label(s, ensemble.detach()), student.detach()),
        rtol=1e-5,
        atol=1e-8,
    )


# --- DAFL -----------------------------------------------------------------------------------------


def test_one_hot_by_hand():
    """-ln 3/4 and -ln 1/2: the ensemble's own first choice is the label."""
    assert one_hot(rows(SURE, EVEN)).item() == pytest.approx((log(4 / 3) + log(2)) / 2)
    assert one_hot(rows(OTHER)).item() == pytest.approx(log(4 / 3))


def test_information_entropy_by_hand():
    """Batch means (1/2, 1/2): -ln 2, the least there is. (3/4, 1/4): 3/4 ln 3/4 + 1/4 ln 1/4 =
    -0.562335.
    """
    assert information_entropy(rows(SURE, OTHER)).item() == pytest.approx(-log(2))
    assert information_entropy(rows(SURE, SURE)).item() == pytest.approx(
        0.75 * log(0.75) + 0.25 * log(0.25)
    )
    assert information_entropy(rows([900.0, 0.0])).item() == pytest.approx(0)


# --- DeepInversion --------------------------------------------------------------------------------


def test_total_variation_by_hand():
    """0 3 / 4 0: across (3, 4) and down (4, 3) have norm 5, falling (0) norm 0, rising (4 - 3)
    norm 1: 11.

    The norm runs over the batch: two such images have sqrt(2) times as much.
    """
    image = torch.tensor([[[[0.0, 3.0], [4.0, 0.0]]]])
    assert total_variation(image).item() == pytest.approx(11)
    assert total_variation(torch.cat([image, image])).item() == pytest.approx(11 * 2**0.5)
    assert total_variation(torch.ones(2, 3, 4, 4)).item() == 0


def test_jensen_shannon_by_hand():
    """p = (3/4, 1/4), q = (1/4, 3/4), m = (1/2, 1/2): both halves are KL(p || m) = 0.130812;
    over ln 2: 0.188722.
    """
    assert jensen_shannon(rows(SURE), rows(OTHER)).item() == pytest.approx(KL_SURE_EVEN / log(2))
    assert jensen_shannon(
        rows([3 * log(3), 0.0]), rows([0.0, 3 * log(3)]), 3.0
    ).item() == pytest.approx(0.188722, abs=1e-6)


def test_jensen_shannon_runs_from_zero_to_one_and_is_symmetric():
    first, second = drawn(4, 3), drawn(4, 3, seed=1)
    assert jensen_shannon(first, first).item() == pytest.approx(0, abs=1e-12)
    assert jensen_shannon(rows([500.0, 0.0]), rows([0.0, 500.0])).item() == pytest.approx(1)
    torch.testing.assert_close(jensen_shannon(first, second), jensen_shannon(second, first))
    assert 0 < jensen_shannon(first, second) < 1


# --- FedFTG ---------------------------------------------------------------------------------------

CLIENTS = torch.tensor(
    [[[0.0, log(2), log(5)]], [[log(3), 0.0, 9.0]]]
)  # client 1 knows the first two classes only
KNOWN = torch.tensor([[True, True, True], [True, True, False]])


def test_model_discrepancy_by_hand():
    """Student (1/3, 1/3, 1/3) against (1/8, 2/8, 5/8): (ln 8/3 + ln 8/6 + ln 8/15) / 3 =
    ln(512/270) / 3.

    Over the classes that client 1 knows, student (1/2, 1/2) against (3/4, 1/4): ln 2 - 1/2 ln 3.
    Weights 1/4 and 3/4.
    """
    expected = log(512 / 270) / 3 / 4 + 3 / 4 * (log(2) - log(3) / 2)
    weights = torch.tensor([[0.25], [0.75]])
    assert model_discrepancy(torch.zeros(1, 3), CLIENTS, KNOWN, weights).item() == pytest.approx(
        expected, rel=1e-5
    )


def test_logit_gap_by_hand():
    """Student 0: mean |f| of client 0 is (ln 2 + ln 5) / 3, of client 1 over its two classes ln
    3 / 2. Weights 1/4 and 3/4.
    """
    weights = torch.tensor([[0.25], [0.75]])
    expected = log(10) / 3 / 4 + 3 / 4 * log(3) / 2
    assert logit_gap(torch.zeros(1, 3), CLIENTS, KNOWN, weights).item() == pytest.approx(
        expected, rel=1e-5
    )


def test_soft_label_loss_by_hand():
    """1/4 (1/8, 2/8, 5/8) + 3/4 (3/4, 1/4, 0) = (19, 8, 5) / 32 against the student's (1/2, 1/4,
    1/4).
    """
    student, weights = torch.tensor([[log(2), 0.0, 0.0]]), torch.tensor([[0.25], [0.75]])
    expected = (19 * log(2) + 13 * log(4)) / 32
    assert soft_label_loss(student, CLIENTS, KNOWN, weights).item() == pytest.approx(
        expected, rel=1e-5
    )


def test_model_discrepancy_is_the_mean_over_images_each_with_its_own_weights():
    one = model_discrepancy(torch.zeros(1, 3), CLIENTS, KNOWN, torch.tensor([[1.0], [0.0]]))
    two = model_discrepancy(torch.zeros(1, 3), CLIENTS, KNOWN, torch.tensor([[0.0], [1.0]]))
    both = model_discrepancy(
        torch.zeros(2, 3), CLIENTS.expand(2, 2, 3), KNOWN, torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    )
    assert one.item() == pytest.approx(log(512 / 270) / 3, rel=1e-5)
    assert two.item() == pytest.approx(log(2) - log(3) / 2, rel=1e-5)
    assert both.item() == pytest.approx((one.item() + two.item()) / 2, rel=1e-5)


def test_losses_ignore_the_logits_of_unknown_classes():
    moved = CLIENTS.clone()
    moved[1, :, 2] = -40.0
    weights, labels = torch.tensor([[0.5], [0.5]]), torch.tensor([0])
    for term in (
        lambda clients: model_discrepancy(
            torch.tensor([[0.3, -1.0, 2.0]]), clients, KNOWN, weights
        ),
        lambda clients: logit_gap(torch.tensor([[0.3, -1.0, 2.0]]), clients, KNOWN, weights),
        lambda clients: soft_label_loss(torch.tensor([[0.3, -1.0, 2.0]]), clients, KNOWN, weights),
        lambda clients: class_fidelity(clients, KNOWN, labels, weights),
    ):
        torch.testing.assert_close(term(moved), term(CLIENTS))


def test_class_fidelity_by_hand():
    """Label a with weights 1/4, 3/4: 1/4 ln 8 + 3/4 ln(4/3). Label c, which client 1 does not
    know, weights 1, 0: ln(8/5).
    """
    clients = CLIENTS.expand(2, 2, 3)
    weights = torch.tensor([[0.25, 1.0], [0.75, 0.0]])
    loss = class_fidelity(clients, KNOWN, torch.tensor([0, 2]), weights)
    assert loss.item() == pytest.approx(
        (log(8) / 4 + 3 * log(4 / 3) / 4 + log(8 / 5)) / 2, rel=1e-5
    )


def test_diversity_by_hand():
    """Two images that differ by 1 in each of 4 pixels, noise by 2 in each of 3 numbers.

    The mean over the four pairs, an image with itself among them: (0 + 2 + 2 + 0) / 4 = 1;
    exp(-1).
    """
    images = torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, 1, 2, 2)
    noise = torch.tensor([0.0, 2.0])[:, None].expand(2, 3)
    assert diversity(images, noise).item() == pytest.approx(exp(-1))
    assert diversity(images * 0, noise).item() == pytest.approx(1)


# --- every term's gradient ------------------------------------------------------------------------

TERMS = {
    "one_hot": (one_hot, drawn(3, 4)),
    "information_entropy": (information_entropy, drawn(3, 4)),
    "total_variation": (total_variation, drawn(2, 1, 3, 3)),
    "jensen_shannon": (lambda x: jensen_shannon(x, drawn(3, 4, seed=1), 3.0), drawn(3, 4)),
    "boundary_supporting": (lambda x: boundary_supporting(x, -x.flip(0), 2.0), drawn(3, 4)),
    "model_discrepancy": (
        lambda x: model_discrepancy(
            x[0], x[1:], KNOWN, torch.tensor([[0.2, 0.7], [0.8, 0.3]]).double()
        ),
        drawn(3, 2, 3),
    ),
    "soft_label_loss": (
        lambda x: soft_label_loss(
            x[0], x[1:], KNOWN, torch.tensor([[0.2, 0.7], [0.8, 0.3]]).double()
        ),
        drawn(3, 2, 3),
    ),
    "logit_gap": (
        lambda x: logit_gap(x[0], x[1:], KNOWN, torch.tensor([[0.2, 0.7], [0.8, 0.3]]).double()),
        drawn(3, 2, 3),
    ),
    "class_fidelity": (
        lambda x: class_fidelity(
            x, KNOWN, torch.tensor([1, 0]), torch.tensor([[0.2, 0.7], [0.8, 0.3]]).double()
        ),
        drawn(2, 2, 3),
    ),
    "diversity": (lambda x: diversity(x, drawn(3, 2, seed=1)), drawn(3, 1, 2, 2)),
}


@pytest.mark.parametrize("name", TERMS)
def test_losses_gradients_by_finite_differences(name):
    term, at = TERMS[name]
    leaf = at.clone().requires_grad_()
    term(leaf).backward()
    torch.testing.assert_close(leaf.grad, differences(term, at), rtol=1e-4, atol=1e-7)
    assert leaf.grad.abs().max() > 1e-3
