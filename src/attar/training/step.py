"""What changes while a stack of clients trains, and a step: gradients and the optimiser."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attar.blocks.execution import Outputs, Runner, eager
from attar.core import State
from attar.training.optimisers import Moments, Tensors, adam_step, sgd_step, start_moments
from attar.training.options import LocalTraining
from attar.training.stacking import Call, refill_stack, slice_stack, stack_tensors

Slicer = Callable[[Tensors, Call], dict[str, Tensor]]  # ``slice_stack`` or a ``SliceCache``


@dataclass
class TrainingState(State):
    """Everything that changes, stacked over the clients in the order of their ``StackOrder``.

    Attributes:
        params: Stacked parameters (K, ...), by name.
        buffers: Stacked buffers (K, ...), by name.
        moments: The optimiser's memory of each parameter, by kind and name.
        counts: int64 (K,), the steps that each client has taken.
        given: The references that an objective compares with, by kind and parameter. They do not
            change. Checkpoints store them under this name; read them as ``references``.
    """

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    counts: Tensor
    given: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def references(self) -> dict[str, dict[str, Tensor]]:
        """What the objective compares with."""
        return self.given

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return next(iter(self.params.values())).dtype


# --- the weights of one client --------------------------------------------------------------------

Weights = tuple[Tensors, Tensors]  # one client's parameters and buffers


def weights_of(net: nn.Module) -> Weights:
    """Return the parameters and buffers of a net."""
    return dict(net.named_parameters()), dict(net.named_buffers())


def weights_from(net: nn.Module, state: Tensors) -> Weights:
    """Return the parameters and buffers of ``net`` with the values of a state dict.

    They have the precision of the state dict, but at least single: a model in double precision is
    trained in double.

    Args:
        net: The architecture; buffers that a state dict does not store are taken from it.
        state: A state dict of that architecture.
    """
    stored = next(value.dtype for value in state.values() if value.is_floating_point())
    dtype = torch.promote_types(stored, torch.float32)
    buffers = {}
    for name, buffer in net.named_buffers():
        default = buffer.to(dtype) if buffer.is_floating_point() else buffer
        buffers[name] = state.get(name, default).to(default.dtype)
    return {name: state[name].to(dtype) for name, _ in net.named_parameters()}, buffers


# --- states ---------------------------------------------------------------------------------------


def start_state(
    weights: Sequence[Weights],
    training: LocalTraining,
    device: str,
    references: Mapping[str, Sequence[Tensors]] | None = None,
) -> TrainingState:
    """Return the state before the first step.

    Args:
        weights: Each client's weights, in the order of the stack.
        training: Says which optimiser.
        device: Where the stack lies.
        references: By kind, what the objective compares each client's parameters with.
    """
    params = stack_tensors([params for params, _ in weights], device)
    return TrainingState(
        params=params,
        buffers=stack_tensors([buffers for _, buffers in weights], device),
        moments=start_moments(training.optimiser, params, training.momentum),
        counts=torch.zeros(len(weights), dtype=torch.int64, device=device),
        given={name: stack_tensors(rows, device) for name, rows in (references or {}).items()},
    )


def restart_state(
    state: TrainingState,
    weights: Sequence[Weights],
    references: Mapping[str, Sequence[Tensors]],
) -> None:
    """Make a state what ``start_state`` would return, in place.

    Args:
        state: Of at least as many clients as there are now; the rows of the others are not read.
        weights: Each client's weights.
        references: By kind, what the objective compares each client's parameters with.
    """
    refill_stack(state.params, [params for params, _ in weights])
    refill_stack(state.buffers, [buffers for _, buffers in weights])
    for name, rows in references.items():
        refill_stack(state.references[name], rows)
    for moment in state.moments.values():
        for value in moment.values():
            value.zero_()
    state.counts.zero_()
    state.phase = 0
    state.step = 0


def fetch_weights(state: TrainingState, clients: int, prefix: str = "") -> dict[str, Tensor]:
    """Copy the weights of the first clients to the CPU, still stacked.

    Each tensor is one transfer from the device.

    Args:
        state: Of at least so many clients.
        clients: How many.
        prefix: Only weights whose names begin with it.
    """
    weights = {**state.params, **state.buffers}
    return {
        name: value[:clients].cpu() for name, value in weights.items() if name.startswith(prefix)
    }


# --- a step ---------------------------------------------------------------------------------------


def compute_gradients(
    gradients: Callable[..., tuple[Tensor, Tensors]],
    inputs: Sequence[Tensor],
    state: TrainingState,
    call: Call,
    run: Runner,
    *,
    part: str = "",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the losses (k,) and gradients of the clients of one call.

    Args:
        gradients: Gives both for the inputs. ``run`` may record it, so it reads nothing but the
            inputs and the state.
        inputs: Images, labels and whatever else ``gradients`` takes.
        state: What the recording may read and write beside the inputs.
        call: Which clients.
        run: Executes the work, by a recording where there is one.
        part: Tells several recordings for the same clients apart.
    """

    def work(*values: Tensor) -> Outputs:
        losses, grads = gradients(*values)
        return losses, *(grads.get(name) for name in state.params)

    name = f"clients {call.first} to {call.last}{part}"
    losses, *values = run(name, work, inputs, (state,))
    assert losses is not None
    grads = zip(state.params, values, strict=True)
    return losses, {name: grad for name, grad in grads if grad is not None}


def apply_gradients(
    grads: Tensors,
    state: TrainingState,
    call: Call,
    training: LocalTraining,
    lr: float,
    *,
    is_new_step: bool = True,
    slicer: Slicer = slice_stack,
) -> None:
    """Take a step of the optimiser for the clients of one call, in place.

    Args:
        grads: Their gradients, by parameter.
        state: Of all clients.
        call: Which clients.
        training: Says which optimiser.
        lr: Learning rate.
        is_new_step: Whether it counts as a step; of a step in several parts, only the first does.
        slicer: How stacks are sliced.
    """
    params = slicer(state.params, call)
    moments = {name: slicer(values, call) for name, values in state.moments.items()}
    counts = state.counts[call.first : call.last]
    update_weights(params, grads, moments, counts, training, lr, is_new_step=is_new_step)


def update_weights(
    params: Tensors,
    grads: Tensors,
    moments: Moments,
    counts: Tensor,
    training: LocalTraining,
    lr: float | Tensor,
    *,
    is_new_step: bool = True,
) -> None:
    """Take a step of the optimiser for some clients, in place.

    Args:
        params: Stacked parameters (k, ...), by name.
        grads: Their gradients.
        moments: The optimiser's memory of them.
        counts: (k,), the steps that each client has taken.
        training: Says which optimiser.
        lr: Learning rate; a tensor () where the step is recorded.
        is_new_step: Whether it counts as a step; of a step in several parts, only the first does.
    """
    if is_new_step:
        counts.add_(1)
    decay = training.weight_decay
    match training.optimiser:
        case "sgd":
            momentum = training.momentum
            sgd_step(params, grads, moments, lr=lr, momentum=momentum, weight_decay=decay)
        case "adam":
            adam_step(params, grads, moments, counts, lr=lr, weight_decay=decay)


def choose_runner(run: Runner, call: Call, batch_size: int) -> Runner:
    """Return how a call is executed: a smaller batch, once an epoch, is not worth a recording."""
    return run if call.number == batch_size else eager
