"""Distillation: two classes by hand at two temperatures, zero at equality, gradients by finite
differences.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attar.blocks.student import distillation

LOG3 = math.log(3)


def test_distillation_at_temperature_one_by_hand():
    """Teacher logits (ln 3, 0): p = (3/4, 1/4). Student (0, 0): q = (1/2, 1/2).

    KL(p || q) = 3/4 ln(3/2) + 1/4 ln(1/2) = 3/4 ln 3 - ln 2 = 0.130812
    """
    loss = distillation(torch.tensor([[0.0, 0.0]]), torch.tensor([[LOG3, 0.0]]))
    assert loss.item() == pytest.approx(0.75 * LOG3 - math.log(2), abs=1e-6)
    assert loss.item() == pytest.approx(0.130812, abs=1e-6)


def test_distillation_is_weighted_by_the_teacher():
    """The other way round: KL((1/2, 1/2) || (3/4, 1/4)) = 1/2 ln(2/3) + 1/2 ln 2 = ln 2 - 1/2 ln
    3 = 0.143841.
    """
    loss = distillation(torch.tensor([[LOG3, 0.0]]), torch.tensor([[0.0, 0.0]]))
    assert loss.item() == pytest.approx(math.log(2) - 0.5 * LOG3, abs=1e-6)
    assert loss.item() == pytest.approx(0.143841, abs=1e-6)


def test_distillation_at_temperature_four_by_hand():
    """Teacher logits (4 ln 3, 0) at T = 4 are p = (3/4, 1/4) again, and T^2 = 16: 16 * 0.130812
    = 2.092992.
    """
    loss = distillation(
        torch.tensor([[0.0, 0.0]]), torch.tensor([[4 * LOG3, 0.0]]), temperature=4.0
    )
    assert loss.item() == pytest.approx(16 * (0.75 * LOG3 - math.log(2)), abs=1e-5)


def test_distillation_averages_images_and_sums_classes():
    """Rows of KL 0.130812 and 0: their mean, 0.065406."""
    loss = distillation(torch.zeros(2, 2), torch.tensor([[LOG3, 0.0], [5.0, 5.0]]))
    assert loss.item() == pytest.approx((0.75 * LOG3 - math.log(2)) / 2, abs=1e-6)


logits = st.lists(st.lists(st.floats(-20, 20), min_size=3, max_size=3), min_size=1, max_size=4)
temperatures = st.sampled_from([0.5, 1.0, 4.0, 20.0])


@given(logits, st.floats(-10, 10), temperatures)
@settings(max_examples=60)
def test_distillation_is_zero_at_equality_up_to_a_shift(rows, shift, temperature):
    teacher = torch.tensor(rows, dtype=torch.float64)
    assert distillation(teacher, teacher, temperature).item() == pytest.approx(0, abs=1e-12)
    assert distillation(teacher + shift, teacher, temperature).item() == pytest.approx(0, abs=1e-9)


@given(logits, st.integers(0, 99), temperatures)
@settings(max_examples=60)
def test_distillation_equals_the_sum_written_out(rows, seed, temperature):
    teacher = torch.tensor(rows, dtype=torch.float64)
    student = torch.randn(
        teacher.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    p, q = (teacher / temperature).softmax(-1), (student / temperature).softmax(-1)
    terms = [
        a * (math.log(a) - math.log(b))
        for a, b in zip(p.view(-1).tolist(), q.view(-1).tolist(), strict=True)
        if a > 0
    ]
    loss = distillation(student, teacher, temperature).item()
    assert loss >= -1e-9
    assert loss == pytest.approx(temperature**2 * sum(terms) / len(rows), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_distillation_gradients_by_finite_differences(temperature):
    draws = torch.Generator().manual_seed(0)
    student, teacher = (
        torch.randn(3, 4, dtype=torch.float64, generator=draws).requires_grad_() for _ in range(2)
    )
    assert torch.autograd.gradcheck(
        lambda s, t: distillation(s, t, temperature), (student, teacher)
    )


def test_distillation_gradient_is_a_difference_of_probabilities():
    """d/ds T^2 KL = T (q - p) / B: at T = 4, q = (1/2, 1/2), p = (3/4, 1/4), B = 1: (-1, 1)."""
    student = torch.zeros(1, 2, requires_grad=True)
    distillation(student, torch.tensor([[4 * LOG3, 0.0]]), 4.0).backward()
    assert student.grad.view(-1).tolist() == pytest.approx([-1.0, 1.0], abs=1e-6)
