"""Loss terms, each a function from tensors to a scalar; its docstring has the equation.

Unless a docstring says otherwise, ``ensemble``, ``teacher`` and ``student`` are logits (B, C),
``labels`` (B,), and ``images`` (B, C, H, W) in [0, 1].
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

_NEVER = -1e4  # a finite logit whose probability is 0


def distillation(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 * mean over the batch of KL(softmax(teacher / T) || softmax(student / T)).

    FedDF Eq. (3) at T = 1; Hinton et al. 2015 for T^2, which keeps the gradient's size as T
    changes.
    """
    divergence = F.kl_div(
        (student / temperature).log_softmax(-1),
        (teacher / temperature).log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * divergence


def probability_gap(student: Tensor, teacher: Tensor, temperature: float = 20.0) -> Tensor:
    """T^2 * MSE(softmax(teacher), softmax(student / T)): FedKEM's server in its authors' code."""
    return temperature**2 * F.mse_loss((student / temperature).softmax(-1), teacher.softmax(-1))


def hard_sample(ensemble: Tensor, labels: Tensor) -> Tensor:
    """Co-Boosting Eq. (6): the mean of d(x) CE(A(x), y), d(x) = 1 - softmax(A(x))_y of Eq. (5).

    The difficulty d is a weight, not a target: no gradient flows through it.
    """
    cross_entropy = F.cross_entropy(ensemble, labels, reduction="none")
    difficulty = 1 - ensemble.detach().softmax(-1).gather(1, labels[:, None]).squeeze(1)
    return (difficulty * cross_entropy).mean()


def adversarial(ensemble: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Co-Boosting Eq. (7), FedHydra Eq. (15): -KL(A(x), f_S(x)).

    Lowest where student and ensemble disagree most.
    """
    return -distillation(student, ensemble, temperature)


def boundary_supporting(ensemble: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """DENSE L_div: the mean over the batch of -KL(D(x), f_S(x)), 0 where both predict the same."""
    teacher_log = (ensemble / temperature).log_softmax(-1)
    student_log = (student / temperature).log_softmax(-1)
    each = F.kl_div(student_log, teacher_log, reduction="none", log_target=True).sum(-1)
    divergence = temperature**2 * each
    differ = (ensemble.argmax(-1) != student.argmax(-1)).to(divergence.dtype)
    return -(differ * divergence).mean()


def hard_label(student: Tensor, ensemble: Tensor) -> Tensor:
    """FedHydra Eq. (18): CE(f_g(x), H[P]) with H the hard label of the ensemble's logits."""
    return F.cross_entropy(student, ensemble.detach().argmax(-1))


def one_hot(ensemble: Tensor) -> Tensor:
    """DAFL L_oh: CE(D(x), argmax D(x)); lowest where the ensemble is certain."""
    return F.cross_entropy(ensemble, ensemble.detach().argmax(-1))


def information_entropy(ensemble: Tensor) -> Tensor:
    """DAFL L_ie: sum_c p_c log p_c with p the batch mean of softmax(D(x)).

    Lowest where all classes are equally frequent.
    """
    mean = ensemble.softmax(-1).mean(0)
    return (mean * mean.clamp(min=1e-12).log()).sum()


def total_variation(images: Tensor) -> Tensor:
    """DeepInversion R_TV: the l2 norms of the differences of neighbours in four directions.

    Each norm runs over the whole batch.
    """
    across = images[:, :, :, :-1] - images[:, :, :, 1:]
    down = images[:, :, :-1, :] - images[:, :, 1:, :]
    falling = images[:, :, :-1, :-1] - images[:, :, 1:, 1:]
    rising = images[:, :, 1:, :-1] - images[:, :, :-1, 1:]
    total: Tensor = across.norm() + down.norm() + falling.norm() + rising.norm()
    return total


def greyness(images: Tensor, grey: float = 0.5) -> Tensor:
    """DeepInversion R_l2: the mean l2 norm of the images, here of their distance from mid-grey.

    Of images that are normalised grey is 0.
    """
    distance: Tensor = (images - grey).flatten(1).norm(dim=1).mean()
    return distance


def jensen_shannon(first: Tensor, second: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean over the batch of JS(p, q) = (KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2.

    From logits, in units of ln 2: from 0 to 1.
    """
    log_p = (first / temperature).log_softmax(-1)
    log_q = (second / temperature).log_softmax(-1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    # Written out, for F.kl_div has no vmap rule.
    divergences = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return divergences.sum(-1).mean() / (2 * math.log(2))


def diversity(images: Tensor, noise: Tensor) -> Tensor:
    """FedFTG L_dis: exp of the mean over pairs of -||x_i - x_j|| ||z_i - z_j||.

    Lowest where different noise gives different images. Distances are root mean squares, so that
    the exponent does not depend on the number of pixels.
    """
    exponent: Tensor = -(_rms_distances(images) * _rms_distances(noise)).mean()
    return exponent.exp()


def _rms_distances(rows: Tensor) -> Tensor:
    flat = rows.flatten(1)
    distances: Tensor = torch.cdist(flat, flat) / flat.shape[1] ** 0.5
    return distances


def model_discrepancy(student: Tensor, clients: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """FedFTG L_md: the mean over images of sum_k a_k^y KL(f_S(x) || f_k(x)).

    Each divergence runs over the classes that client k knows.

    Args:
        student: logits (B, C).
        clients: logits (K, B, C).
        known: (K, C), which classes each client knows.
        weights: (K, B), a_k of each image's label.
    """
    unknown = ~known[:, None, :]
    client_log = clients.masked_fill(unknown, _NEVER).log_softmax(-1)
    student_log = student[None].expand_as(clients).masked_fill(unknown, _NEVER).log_softmax(-1)
    divergence = F.kl_div(client_log, student_log, reduction="none", log_target=True).sum(-1)
    return (weights * divergence).sum(0).mean()


def logit_gap(student: Tensor, clients: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """The mean over images of ``sum_k a_k^y |f_S(x) - f_k(x)|``: what FedFTG's code mines.

    Each difference is the mean over the classes that client k knows. Arguments as in
    ``model_discrepancy``.
    """
    differences = (student[None] - clients).abs().masked_fill(~known[:, None, :], 0.0)
    gaps = differences.sum(-1) / known.sum(-1)[:, None]
    return (weights * gaps).sum(0).mean()


def soft_label_loss(student: Tensor, clients: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """The mean over images of CE(f_S(x), sum_k a_k^y softmax(f_k(x))).

    What FedFTG's code teaches, but for its division by C. Arguments as in ``model_discrepancy``.
    """
    probabilities = clients.masked_fill(~known[:, None, :], _NEVER).softmax(-1)
    return F.cross_entropy(student, (weights[:, :, None] * probabilities).sum(0))


def class_fidelity(clients: Tensor, known: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """FedFTG L_cls: the mean over images of sum_k a_k^y CE(f_k(x), y).

    A client that does not know y must have weight 0. Arguments as in ``model_discrepancy``.
    """
    log_probabilities = clients.masked_fill(~known[:, None, :], _NEVER).log_softmax(-1)
    chosen = log_probabilities.gather(2, labels.expand(len(clients), -1)[:, :, None]).squeeze(2)
    return -(weights * chosen).sum(0).mean()


def reconstruction(logits: Tensor, images: Tensor) -> Tensor:
    """-log p(x | z, c) of each image: the summed cross entropy of its pixels, (..., B).

    The first term of FedMHO Eq. (3).
    """
    return F.binary_cross_entropy_with_logits(logits, images, reduction="none").flatten(-3).sum(-1)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, I)) of each image, summed over the code, (..., B).

    The second term of FedMHO Eq. (3).
    """
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def cvae_loss(logits: Tensor, mean: Tensor, log_variance: Tensor, images: Tensor) -> Tensor:
    """FedMHO Eq. (3): the mean over the batch, (..., B, C, H, W) -> (...)."""
    return (reconstruction(logits, images) + divergence(mean, log_variance)).mean(-1)


def retention_loss(student: Tensor, teacher: Tensor, reduction: str = "batchmean") -> Tensor:
    """FedMHO Eqs. (6), (7): KL(teacher || student).

    The teacher of (6) is the clients' mean, that of (7) the initial model.

    Args:
        student: logits (B, C).
        teacher: logits (B, C).
        reduction: "batchmean" is the mean over images; "mean", the authors' choice, divides by the
            number of classes, too.
    """
    return distillation(student, teacher) / (1 if reduction == "batchmean" else student.shape[-1])


def trade_off_loss(terms: Sequence[Tensor], share: float) -> Tensor:
    """FedMHO Eq. (8): lambda CE + (1 - lambda) KL.

    Args:
        terms: CE, and the KL terms, which are summed; CE alone stays as it is.
        share: lambda.
    """
    first, *others = terms
    return share * first + (1 - share) * torch.stack(others).sum() if others else first


def uncertainty_weighted_loss(terms: Sequence[Tensor], uncertainty: Tensor) -> Tensor:
    """sum_i exp(-s_i) L_i + s_i (Kendall et al. 2018).

    The weights exp(-s_i) are learned; the second term keeps them from shrinking to 0.

    Args:
        terms: the losses L_i.
        uncertainty: s, as many.
    """
    return ((-uncertainty).exp() * torch.stack(list(terms)) + uncertainty).sum()
