"""DP-SGD: clipping, sensitivity, noise and sampling on numbers worked out by hand, and epsilon
against an accountant that is written out here.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from attar.training import private_steps, solve_noise, spent_epsilon
from attar.training.private_steps import SystemDraws, add_noise, clipped_sum, sample_rows


def dot(params: dict[str, Tensor], image: Tensor) -> Tensor:
    """A loss whose gradient is the image itself."""
    return (params["w"] * image).sum()


def test_clipped_sum_by_hand():
    # (3, 4) has length 5 and becomes (0.6, 0.8); (0.3, 0.4) is shorter than 1 and stays.
    images = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    total, losses = clipped_sum(dot, {"w": torch.tensor([1.0, 2.0])}, (images,), clip=1.0)
    torch.testing.assert_close(total["w"], torch.tensor([0.9, 1.2]))
    torch.testing.assert_close(losses, torch.tensor([11.0, 1.1]))


def test_clipped_sum_measures_all_parameters_together():
    # The gradient is (3, 0) for v and (0, 4) for w: length 5, so both are divided by 5.
    def loss(params: dict[str, Tensor], image: Tensor) -> Tensor:
        return params["v"] * image[0] + params["w"] * image[1]

    params = {"v": torch.tensor(0.0), "w": torch.tensor(0.0)}
    total, _ = clipped_sum(loss, params, (torch.tensor([[3.0, 4.0]]),), clip=1.0)
    assert float(total["v"]) == pytest.approx(0.6)
    assert float(total["w"]) == pytest.approx(0.8)


def test_clipped_sum_leaves_out_gradients_that_are_not_finite():
    images = torch.tensor([[float("inf"), 1.0], [float("nan"), 1.0], [0.3, 0.4]])
    total, _ = clipped_sum(dot, {"w": torch.zeros(2)}, (images,), clip=1.0)
    torch.testing.assert_close(total["w"], torch.tensor([0.3, 0.4]))


def test_clipped_sum_of_nothing_is_zero():
    total, losses = clipped_sum(dot, {"w": torch.ones(2)}, (torch.zeros(0, 2),), clip=1.0)
    assert total["w"].tolist() == [0.0, 0.0]
    assert len(losses) == 0


def test_clipped_sum_does_not_depend_on_chunks(monkeypatch):
    images = torch.randn(11, 2, generator=torch.Generator().manual_seed(0))
    whole, _ = clipped_sum(dot, {"w": torch.zeros(2)}, (images,), clip=0.7)
    monkeypatch.setattr(private_steps, "images_at_a_time", lambda params: 3)
    parts, losses = clipped_sum(dot, {"w": torch.zeros(2)}, (images,), clip=0.7)
    torch.testing.assert_close(parts["w"], whole["w"])
    assert len(losses) == 11


def test_one_image_moves_the_sum_by_at_most_clip():
    """By brute force: every subset of five images, with and without each of them."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    params = {name: value.detach() for name, value in net.named_parameters()}
    draws = torch.Generator().manual_seed(1)
    images = 5 * torch.randn(5, 4, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, 3, (5,), generator=draws)
    clip = 0.3

    def loss(params: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, params, (image[None],)), label[None])

    def flat_sum(rows: tuple[int, ...]) -> Tensor:
        chosen = torch.tensor(rows, dtype=torch.int64)
        total, _ = clipped_sum(loss, params, (images[chosen], labels[chosen]), clip)
        return torch.cat([value.flatten() for value in total.values()])

    moved = []
    for number in range(1, 6):
        for rows in itertools.combinations(range(5), number):
            for row in rows:
                others = tuple(other for other in rows if other != row)
                moved.append(float((flat_sum(rows) - flat_sum(others)).norm()))
    assert max(moved) <= clip * (1 + 1e-9)
    assert max(moved) > 0.99 * clip  # the bound is reached: these gradients are longer


def test_noise_has_the_deviation_of_the_claim():
    # clip 2, sigma 3, 50 images expected: 2 * 3 / 50 = 0.12 around the mean 5 / 50 = 0.1
    total = {"w": torch.full((200_000,), 5.0)}
    noisy = add_noise(total, 2.0, 3.0, 50.0, SystemDraws())["w"]
    assert float(noisy.mean()) == pytest.approx(0.1, abs=0.002)
    assert float(noisy.std()) == pytest.approx(0.12, rel=0.02)


def test_system_draws_are_normal_uniform_and_new_each_time():
    draws = SystemDraws()
    normal = draws.normals(100_001)
    assert len(normal) == 100_001
    assert float(normal.mean()) == pytest.approx(0, abs=0.02)
    assert float(normal.square().mean()) == pytest.approx(1, abs=0.03)
    assert float((normal.abs() > 1.96).double().mean()) == pytest.approx(0.05, abs=0.005)
    uniform = draws.uniforms(100_000)
    assert 0 < float(uniform.min()) <= float(uniform.max()) <= 1
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    torch.manual_seed(0)
    first = draws.normals(8)
    torch.manual_seed(0)
    assert not torch.equal(first, draws.normals(8))


def test_sample_rows_is_poisson_sampling():
    # 5,000 images at 0.03: 150 expected with a variance of 150 * 0.97
    draws = SystemDraws()
    sizes = torch.tensor([len(sample_rows(5000, 0.03, draws)) for _ in range(400)]).double()
    assert float(sizes.mean()) == pytest.approx(150, abs=4 * math.sqrt(150 * 0.97 / 400))
    assert float(sizes.var()) == pytest.approx(145.5, rel=0.35)
    assert len(sample_rows(7, 1.0, draws)) == 7


# --- the accountant -------------------------------------------------------------------------------


def reference_epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    """Compose the privacy losses of subsampled Gaussians by one Fourier transform.

    P = (1 - q) N(0, s^2) + q N(1, s^2), Q = N(0, s^2). The loss of P against Q at x is
    log(1 - q + q exp((2 x - 1) / (2 s^2))), the loss of Q against P its negative under Q.
    """
    special = pytest.importorskip("scipy.special", reason="the reference needs a normal's CDF")
    width, bins = 1e-3, 2**17
    losses = (np.arange(bins) - bins // 2) * width
    edges = np.append(losses - width / 2, losses[-1] + width / 2)

    def point(loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where P against Q has this loss."""
        inside = np.exp(np.clip(loss, None, 700)) - (1 - rate)
        safe = np.where(inside > 0, inside, 1.0)
        return np.where(inside > 0, sigma**2 * np.log(safe / rate) + 0.5, -np.inf)

    def cdf(x: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
        return special.ndtr((x - mean) / sigma)

    at = point(edges)
    removed = np.diff((1 - rate) * cdf(at, 0) + rate * cdf(at, 1))
    added = np.diff(1 - cdf(point(-edges), 0))
    worst = 0.0
    for pmf in (removed, added):
        spectrum = np.fft.rfft(np.fft.ifftshift(pmf)) ** steps
        composed = np.fft.fftshift(np.fft.irfft(spectrum, bins))
        low, high = 0.0, 60.0
        for _ in range(60):
            middle = (low + high) / 2
            tail = losses > middle
            excess = (composed[tail] * -np.expm1(middle - losses[tail])).sum()
            low, high = (middle, high) if excess > delta else (low, middle)
        worst = max(worst, high)
    return worst


CASES = [(1.0, 0.01, 1000), (4.0, 0.2, 300), (2.0, 1.0, 20)]


@pytest.mark.parametrize(("sigma", "rate", "steps"), CASES)
def test_spent_epsilon_equals_the_reference(sigma, rate, steps):
    pytest.importorskip("dp_accounting", reason="attar[dp] is not installed")
    expected = reference_epsilon(sigma, rate, steps, 1e-5)
    assert spent_epsilon(sigma, rate, steps, 1e-5) == pytest.approx(expected, rel=0.01)


def test_solve_noise_spends_the_epsilon_and_no_more():
    pytest.importorskip("dp_accounting", reason="attar[dp] is not installed")
    sigma = solve_noise(1.0, 1e-5, 0.05, 50)
    assert 0.99 <= spent_epsilon(sigma, 0.05, 50, 1e-5) <= 1.0
