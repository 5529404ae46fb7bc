"""Loss terms. Each is one function; its docstring carries the equation."""

from torch import Tensor
from torch.nn import functional as F


def distillation(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 * mean over the batch of KL(softmax(teacher / T) || softmax(student / T)), from logits.

    FedDF Eq. (3) at T = 1; Hinton et al. 2015 for T^2, which keeps the gradient's size as T changes.
    """
    divergence = F.kl_div(
        (student / temperature).log_softmax(-1),
        (teacher / temperature).log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * divergence
