"""What changes while a stack of clients trains, and one step of a slice of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attar.blocks.replay import Outputs, Run, at_once
from attar.core import State
from attar.local import optimisers
from attar.local.optimisers import Tensors
from attar.local.options import LocalTraining
from attar.local.stacking import Call, sliced, stacked


@dataclass
class TrainingState(State):
    """Everything that changes, stacked over the clients in the order of ``ordered`` of the training."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]  # what the optimiser remembers of each parameter
    counts: Tensor  # int64 (K,): steps each client has taken


def start_state(nets: Sequence[nn.Module], training: LocalTraining, device: str) -> TrainingState:
    params = stacked([dict(net.named_parameters()) for net in nets], device)
    return TrainingState(
        params=params,
        buffers=stacked([dict(net.named_buffers()) for net in nets], device),
        moments=optimisers.start_moments(training.optimiser, params, training.momentum),
        counts=torch.zeros(len(nets), dtype=torch.int64, device=device),
    )


def step(
    training: LocalTraining,
    state: TrainingState,
    call: Call,
    run: Run,
    gradients: Callable[..., tuple[Tensor, Tensors]],
    inputs: Sequence[Tensor],
    lr: float,
) -> Tensor:
    """One optimiser step of the clients of a call, in place; their losses before it.

    ``gradients(*inputs)`` gives losses and gradients; it may be recorded, and reads nothing else but the state.
    """
    params = sliced(state.params, call)

    def work(*values: Tensor) -> Outputs:
        losses, grads = gradients(*values)
        if training.clip is not None:
            grads = optimisers.clipped(grads, training.clip)
        return losses, *(grads.get(name) for name in params)

    # The last, smaller batch of a client comes once an epoch: not worth a recording.
    run = run if call.number == training.batch_size else at_once
    losses, *found = run(f"clients {call.first} to {call.last}", work, inputs, (state,))
    assert losses is not None
    grads = {name: grad for name, grad in zip(params, found, strict=True) if grad is not None}
    moments = {name: sliced(values, call) for name, values in state.moments.items()}
    counts = state.counts[call.first : call.last].add_(1)
    decay = training.weight_decay
    match training.optimiser:
        case "sgd":
            optimisers.sgd(params, grads, moments, lr=lr, momentum=training.momentum, weight_decay=decay)
        case "adam":
            optimisers.adam(params, grads, moments, counts, lr=lr, weight_decay=decay)
    return losses
