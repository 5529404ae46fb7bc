"""Early stopping: each client keeps the weights that were best on the images that it holds out.

A client ends when ``patience`` epochs in a row were no better than its best one. Of two epochs of
equal accuracy the one of lower cross entropy is better. In a stack the others go on, and what the
client's rows hold from then on is not read. Everything is a tensor of the state, so a training
that is resumed ends with the same bits, and a client's end does not depend on who trains beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attar.blocks.execution import widest_float
from attar.training.step import TrainingState

Scores = Mapping[str, tuple[Tensor, Tensor]]  # accuracy and cross entropy by client


@dataclass
class StoppingState(TrainingState):
    """The state of a training that may end early.

    Attributes:
        best: Of each client the best weights, their scores, and their epoch and steps.
    """

    best: dict[str, dict[str, Tensor]] = field(default_factory=dict)


def keep_best(state: TrainingState) -> StoppingState:
    """Return the state before the first step with the weights that are the best so far: its own."""
    device = state.counts.device
    clients = len(state.counts)
    none = torch.full((clients,), -1.0, dtype=widest_float(device), device=device)
    best = {
        "params": {name: value.clone() for name, value in state.params.items()},
        "buffers": {name: value.clone() for name, value in state.buffers.items()},
        "scores": {
            "accuracy": none,
            "loss": torch.full_like(none, torch.inf),
        },
        "places": {
            "epoch": torch.zeros(clients, dtype=torch.int64, device=device),
            "steps": state.counts.clone(),
            "ended": torch.zeros(clients, dtype=torch.bool, device=device),
        },
    }
    return StoppingState(
        params=state.params,
        buffers=state.buffers,
        moments=state.moments,
        counts=state.counts,
        given=state.given,
        best=best,
    )


@torch.no_grad()
def update_best(state: StoppingState, names: Sequence[str], scores: Scores, patience: int) -> None:
    """Take over the weights of the clients that are better than ever, after an epoch.

    Args:
        state: After the epoch, ``state.step`` not yet counted.
        names: The clients in the order of the stack.
        scores: On the images held out. A client without any keeps its last weights and never ends.
        patience: Epochs without a better score after which a client ends.
    """
    best = state.best["scores"]
    places = state.best["places"]
    epoch = state.step + 1
    for row, name in enumerate(names):
        if places["ended"][row]:
            continue
        if name in scores:
            accuracy, loss = scores[name]
            before = (best["accuracy"][row], best["loss"][row])
            better = bool(accuracy > before[0] or (accuracy == before[0] and loss < before[1]))
        else:
            better = True
        if better:
            for kind, values in (("params", state.params), ("buffers", state.buffers)):
                for key, value in values.items():
                    state.best[kind][key][row].copy_(value[row])
            places["epoch"][row] = epoch
            places["steps"][row] = state.counts[row]
            if name in scores:
                best["accuracy"][row], best["loss"][row] = scores[name]
        elif epoch - int(places["epoch"][row]) >= patience:
            places["ended"][row] = True


def all_ended(state: TrainingState) -> bool:
    """Return whether no client goes on."""
    return isinstance(state, StoppingState) and bool(state.best["places"]["ended"].all())


def best_state(state: TrainingState) -> TrainingState:
    """Return the state with the weights and steps that are sent: the best, where they are kept."""
    if not isinstance(state, StoppingState):
        return state
    return replace(
        state,
        params=state.best["params"],
        buffers=state.best["buffers"],
        counts=state.best["places"]["steps"],
    )
