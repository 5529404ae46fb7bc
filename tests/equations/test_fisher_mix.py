"""FisherMix: the subspace, the loss and the head, on numbers worked out by hand."""

import math

import pytest
import torch

from attar.blocks.heads import Moments
from attar.methods import FisherMix
from attar.methods.fisher_mix import Subspace, _Cosine, fisher_basis


def moments():
    """Two classes of 10 and 30 images with means (2, 0) and (0, 1), covariance diag(4, 1)."""
    counts = torch.tensor([10.0, 30.0], dtype=torch.float64)
    means = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    scatter = 38 * torch.tensor([[4.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    gram = scatter + (counts[:, None] * means).T @ means
    return Moments(counts, counts[:, None] * means, gram[None])


def test_fisher_basis_by_hand():
    """S^-1/2 = diag(1/2, 1). mu_1 - mu_2 = (2, -1) becomes (1, -1), the one eigenvector of
    S^-1/2 S_b S^-1/2; V = diag(1/2, 1) (1, -1) / sqrt 2 = (1/2, -1) / sqrt 2, up to its sign.
    """
    basis = fisher_basis(moments(), 0.0, energy=0.99, most=128)
    expected = torch.tensor([[0.5], [-1.0]], dtype=torch.float64) / math.sqrt(2)
    torch.testing.assert_close(basis * basis[0].sign(), expected)


def test_fisher_basis_whitens():
    """V^T S(a) V = I, and ``most`` and ``energy`` say how many directions there are."""
    draws = torch.Generator().manual_seed(0)
    phi = torch.randn(60, 5, generator=draws, dtype=torch.float64)
    labels = torch.arange(60) % 4
    phi[:, 0] += 8 * labels
    one_hot = torch.nn.functional.one_hot(labels, 4).double()
    some = Moments(one_hot.sum(0), one_hot.T @ phi, (phi.T @ phi)[None])
    basis = fisher_basis(some, 0.0, energy=1.0, most=128)
    kept = basis[:, :3]
    torch.testing.assert_close(kept.T @ some.within @ kept, torch.eye(3, dtype=torch.float64))
    assert fisher_basis(some, 0.0, energy=0.9, most=128).shape == (5, 1)
    assert fisher_basis(some, 0.0, energy=1.0, most=2).shape == (5, 2)


@pytest.mark.parametrize(("margin", "ahead"), [(0.0, 0.5), (0.1, 0.4)])
def test_loss_by_hand(margin, ahead):
    """Cosines 0.8 of the right and 0.3 of the wrong class, scale 2: log(1 + exp(-2 * ahead))."""
    cosines = torch.tensor([[0.3, 0.8]])
    loss = FisherMix(scale=2.0, margin=margin).loss(cosines, torch.tensor([1]))
    assert float(loss) == pytest.approx(math.log1p(math.exp(-2 * ahead)), rel=1e-6)


def test_head_chooses_as_the_cosine():
    """And the class without images is never chosen."""
    draws = torch.Generator().manual_seed(1)
    basis = torch.randn(4, 2, generator=draws, dtype=torch.float64)
    counts = torch.tensor([3.0, 0.0, 5.0, 2.0], dtype=torch.float64)
    none = torch.zeros(4, 4, dtype=torch.float64)
    held = counts.nonzero().squeeze(1)
    net = _Cosine(torch.randn(3, 2, generator=draws))
    z = torch.randn(50, 2, generator=draws)
    subspace = Subspace(None, Moments(counts, none, none[None]), basis, z, held, held)
    head = FisherMix().head(subspace, net)
    phi = torch.randn(50, 4, generator=draws, dtype=torch.float64)
    expected = held[net((phi @ basis).float()).argmax(1)]
    assert torch.equal(head.logits(phi).argmax(1), expected)
