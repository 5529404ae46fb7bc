"""Numbers of a client that are compared with those of the others: weights, logits, its share."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from attar.core import Mixture, Result, Upload
from attar.seeds import derive

FAR_NORM = 4.0  # times larger or smaller than the others' median
FAR_LOGITS = 1000.0  # times larger; an honest net after one epoch has a hundredth of the others'
FEWEST_OTHERS = 2  # clients, of whose numbers a median is taken


def logit_scale(logits: Tensor, known: Tensor) -> float | None:
    """Standard deviation of the logits over the classes that a client knows; None for one class
    or infinite answers.
    """
    of_known = logits[:, known]
    if of_known.shape[1] < 2 or not bool(torch.isfinite(of_known).all()):
        return None
    return float(of_known.std(-1).mean())


def relative_norm(upload: Upload) -> float:
    """The norm of a client's weights in norms of a fresh net of its kind, so that architectures
    compare.
    """
    total = fresh = 0.0
    for part in upload.parts.values():
        if part.spec.kind in ("sums", "mixtures"):  # nothing in it was trained
            continue
        net = part.spec.build(
            part.preprocess.input_shape, len(part.classes), derive(0, "robustness")
        )
        names = {name for name, _ in net.named_parameters()}
        fresh += sum(float(value.detach().double().square().sum()) for value in net.parameters())
        total += sum(
            float(part.state[name].double().square().sum()) for name in names if name in part.state
        )
    return math.sqrt(total / fresh) if fresh else 1.0


def far_flags(
    what: str, name: str, values: Mapping[str, float | None], times: float, *, both: bool
) -> list[str]:
    """Flag a number that is many times larger than the median of the other clients', or smaller."""
    value = values.get(name)
    others = [other for client, other in values.items() if client != name and other is not None]
    if value is None or len(others) < FEWEST_OTHERS:
        return []
    usual = median(others)
    if value > times * usual:
        return [f"its {what} are {_ratio(value, usual)} as large as the others'"]
    if both and value * times < usual:
        return [f"its {what} are {_ratio(usual, value)} smaller than the others'"]
    return []


def _ratio(large: float, small: float) -> str:
    return f"{large / small:.3g} times" if small > 0 else "infinitely many times"


def ensemble_weights(voters: Sequence[Upload], result: Result) -> Tensor | None:
    """The clients' weights (K,) or (K, C) in the ensemble; None where the method delivers none."""
    tables = [
        model.weights
        for model in result.models.values()
        if isinstance(model, Mixture)
        and model.weights is not None
        and len(model.members) == len(voters)
    ]
    tables += [
        table
        for name, table in result.arrays.items()
        if name == "weights" and len(table) == len(voters)
    ]
    if not tables:
        return None
    table = tables[0].detach().cpu().double()
    total = float(table.sum())
    return table if math.isfinite(total) and total != 0 else None


def ensemble_shares(voters: Sequence[Upload], weights: Tensor) -> dict[str, float]:
    """Each client's share of the ensemble."""
    shares = weights if weights.dim() == 1 else weights.mean(1)
    return {
        upload.client: float(share) / float(shares.sum())
        for upload, share in zip(voters, shares, strict=True)
    }
