"""Fixtures of the equation tests."""

import pytest
import torch


@pytest.fixture
def exact():
    """Everything in float64: two ways to a number differ by 1e-12, not by rounding errors that
    Adam enlarges.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
