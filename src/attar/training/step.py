"""What changes while a stack of clients trains, and one step of a slice of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attar.blocks.execution import Outputs, Run, at_once
from attar.core import State
from attar.training import optimisers
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining
from attar.training.stacking import Call, refilled, sliced, stacked


@dataclass
class TrainingState(State):
    """Everything that changes, stacked over the clients in the order of ``ordered`` of the training."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]  # what the optimiser remembers of each parameter
    counts: Tensor  # int64 (K,): steps each client has taken
    given: dict[str, dict[str, Tensor]] = field(
        default_factory=dict
    )  # what the objective compares with; it does not change


Row = tuple[Tensors, Tensors]  # one client's parameters and buffers


def row_of(net: nn.Module) -> Row:
    return dict(net.named_parameters()), dict(net.named_buffers())


def row_from(code: nn.Module, state: Tensors) -> Row:
    """Parameters and buffers of ``code`` as a state dict has them; what it lacks (passing
    buffers) is the code's own.

    In the precision of the given weights, but at least single: a model in double precision is
    trained so.
    """
    given = next(value.dtype for value in state.values() if value.is_floating_point())
    dtype = torch.promote_types(given, torch.float32)
    buffers = {}
    for name, buffer in code.named_buffers():
        own = buffer.to(dtype) if buffer.is_floating_point() else buffer
        buffers[name] = state.get(name, own).to(own.dtype)
    return {name: state[name].to(dtype) for name, _ in code.named_parameters()}, buffers


def start_state(
    rows: Sequence[Row],
    training: LocalTraining,
    device: str,
    given: Mapping[str, Sequence[Tensors]] | None = None,
) -> TrainingState:
    """The beginning: fresh moments, no step taken. ``given`` has a row for each client, like
    everything else.
    """
    params = stacked([params for params, _ in rows], device)
    return TrainingState(
        params=params,
        buffers=stacked([buffers for _, buffers in rows], device),
        moments=optimisers.start_moments(training.optimiser, params, training.momentum),
        counts=torch.zeros(len(rows), dtype=torch.int64, device=device),
        given={name: stacked(values, device) for name, values in (given or {}).items()},
    )


def restart(
    state: TrainingState, rows: Sequence[Row], given: Mapping[str, Sequence[Tensors]]
) -> None:
    """The same in the places of a former stack that had at least as many rows."""
    refilled(state.params, [params for params, _ in rows])
    refilled(state.buffers, [buffers for _, buffers in rows])
    for name, values in given.items():
        refilled(state.given[name], values)
    for moment in state.moments.values():
        for value in moment.values():
            value.zero_()
    state.counts.zero_()
    state.phase = state.step = 0


def at_hand(state: TrainingState, clients: int, beginning: str = "") -> dict[str, Tensor]:
    """The clients' weights whose names begin so, on the CPU, still stacked: one way from the
    device for each tensor.
    """
    weights = {**state.params, **state.buffers}
    return {
        name: value[:clients].cpu() for name, value in weights.items() if name.startswith(beginning)
    }


def step(
    training: LocalTraining,
    state: TrainingState,
    call: Call,
    run: Run,
    gradients: Callable[..., tuple[Tensor, Tensors]],
    inputs: Sequence[Tensor],
    lr: float,
    *,
    part: str = "",
    view: Callable[[Tensors, Call], dict[str, Tensor]] = sliced,
) -> Tensor:
    """One optimiser step of the clients of a call, in place; their losses before it.

    ``gradients(*inputs)`` gives losses and gradients; it may be recorded, and reads nothing else
    but the state. A step that has several parts (one net, then the other) counts once, with the
    part that has no name.
    """
    params = view(state.params, call)

    def work(*values: Tensor) -> Outputs:
        losses, grads = gradients(*values)
        if training.clip is not None:
            grads = optimisers.clipped(grads, training.clip)
        return losses, *(grads.get(name) for name in params)

    # The last, smaller batch of a client comes once an epoch: not worth a recording.
    run = run if call.number == training.batch_size else at_once
    losses, *found = run(f"clients {call.first} to {call.last}{part}", work, inputs, (state,))
    assert isinstance(losses, Tensor)
    grads = {name: grad for name, grad in zip(params, found, strict=True) if grad is not None}
    moments = {name: view(values, call) for name, values in state.moments.items()}
    counts = state.counts[call.first : call.last]
    if not part:
        counts.add_(1)
    decay = training.weight_decay
    match training.optimiser:
        case "sgd":
            optimisers.sgd(
                params, grads, moments, lr=lr, momentum=training.momentum, weight_decay=decay
            )
        case "adam":
            optimisers.adam(params, grads, moments, counts, lr=lr, weight_decay=decay)
    return losses
