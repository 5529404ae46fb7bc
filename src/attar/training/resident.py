"""Clients of one architecture on the device, for one training or round after round.

From top to bottom: the order of clients in a stack, what is resident for them, what a round adds,
the batches of an epoch, and the accuracy on images that are held out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar import seeds
from attar.blocks.execution import Runner, compile_blocks, reseed, runner_for, widest_float
from attar.core import Part, Preprocess
from attar.training import stacking
from attar.training.batches import ResidentImages, to_floats
from attar.training.clients import ClientData, split
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining
from attar.training.stacking import Call, SliceCache, slice_stack
from attar.training.step import TrainingState, Weights, restart_state, start_state

EVAL_BATCH = 512


# --- the order of a stack -------------------------------------------------------------------------


@dataclass(frozen=True)
class StackOrder:
    """Clients in the order in which they lie in a stack, and the images that each of them uses.

    Attributes:
        clients: By number of training images, largest first, then by name.
        splits: By client, which images it trains on, and which it holds out for validation.
    """

    clients: tuple[ClientData, ...]
    splits: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return [client.name for client in self.clients]

    def training_labels(self, client: ClientData) -> Tensor:
        """Return the labels of the images that a client trains on."""
        return client.labels[self.splits[client.name][0]]


def order_clients(clients: Sequence[ClientData], training: LocalTraining, seed: int) -> StackOrder:
    """Split each client's images, and sort the clients for a stack."""
    splits = {client.name: split(client, training.validation, seed) for client in clients}
    by_size = sorted(clients, key=lambda client: (-len(splits[client.name][0]), client.name))
    return StackOrder(clients=tuple(by_size), splits=splits)


# --- what is resident -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ResidentClients:
    """The clients' images on the device, the net's code and recorded steps: made once, never saved.

    Rounds come back to it with other clients. Then the stacked tensors stay where they are and are
    filled anew, since recorded steps know them by address.

    Attributes:
        net: Lends its code; the weights are those of the state.
        images: All clients' training images.
        validation: By client, the pixels and labels that it holds out.
        width: The most clients in one call.
        run: Executes steps, by recordings where that is faster.
        rest_run: Executes steps on last, smaller batches, of which there are many kinds.
        capacity: The most clients in one round.
        device: Where all of it lies.
        slicer: Slices the stacks, and remembers the views.
        states: The state of the rounds, once the first has begun.
    """

    net: nn.Module
    images: ResidentImages
    validation: Mapping[str, tuple[Tensor, Tensor]]
    width: int
    run: Runner
    rest_run: Runner
    capacity: int
    device: str
    slicer: SliceCache = field(default_factory=SliceCache)
    states: list[TrainingState] = field(default_factory=list)

    def start_state(
        self,
        weights: Sequence[Weights],
        training: LocalTraining,
        references: Mapping[str, Sequence[Tensors]],
    ) -> TrainingState:
        """Return the state of a round before its first step, in the memory of the last round's.

        Rows of clients who are not in this round hold nothing that is read.

        Args:
            weights: Of each client of the round, at most ``capacity``.
            training: Says which optimiser.
            references: By kind, what the objective compares each client's parameters with.
        """
        if self.states:
            restart_state(self.states[0], weights, references)
        else:
            spare = self.capacity - len(weights)
            padded = {name: [*rows, *[rows[-1]] * spare] for name, rows in references.items()}
            rows = [*weights, *[weights[-1]] * spare]
            self.states.append(start_state(rows, training, self.device, padded))
        return self.states[0]


def load_clients(
    clients: Sequence[ClientData],
    net: nn.Module,
    preprocess: Preprocess,
    training: LocalTraining,
    *,
    seed: int,
    device: str,
    capacity: int | None = None,
    width: int | None = None,
    run: Runner | None = None,
) -> ResidentClients:
    """Copy the clients' images and the net to the device.

    Args:
        clients: All who may train there.
        net: Their architecture, on the CPU; it is changed and moved.
        preprocess: How images reach the net.
        training: Their settings.
        seed: Decides which images are held out.
        device: Where they train.
        capacity: The most clients in one round; all of them unless given.
        width: The most clients in one call; as ``clients_per_call`` says unless given.
        run: Executes steps; as is fastest on the device unless given.
    """
    order = order_clients(clients, training, seed)
    chosen = [order.splits[client.name][0] for client in order.clients]
    capacity = capacity or len(clients)
    net.train()
    if width is None:
        batch = min(training.batch_size, len(chosen[0]))
        width = stacking.clients_per_call(
            training.stack, net, capacity, batch, preprocess.input_shape, device
        )
    if training.compile_blocks:
        compile_blocks(net)
    validation = {}
    for client in order.clients:
        rows = order.splits[client.name][1]
        validation[client.name] = (client.pixels[rows].to(device), client.labels[rows].to(device))
    return ResidentClients(
        net=net.to(device),
        images=ResidentImages.load(order.clients, chosen, device),
        validation=validation,
        width=width,
        run=run or runner_for(device),
        rest_run=run or runner_for(device, autotune=False),
        capacity=capacity,
        device=device,
    )


@dataclass(frozen=True)
class RoundInput:
    """What a round adds to local training.

    Attributes:
        round: Its number, from 1.
        broadcast: The parts that the server sent.
        client_state: By client, the parts that it stored in earlier rounds.
        resident: What lies on the device from earlier rounds; None to make it anew.
    """

    round: int = 1
    broadcast: Mapping[str, Part] = field(default_factory=dict)
    client_state: Mapping[str, Mapping[str, Part]] = field(default_factory=dict)
    resident: ResidentClients | None = None


ONLY_ROUND = RoundInput()  # one-shot training


# --- an epoch -------------------------------------------------------------------------------------


def epoch_batches(
    resident: ResidentClients,
    images: ResidentImages,
    epoch: int,
    training: LocalTraining,
    preprocess: Preprocess,
    seed: int,
    dtype: torch.dtype,
) -> Iterator[tuple[Call, Tensor, Tensor]]:
    """Yield the calls of one epoch with their images (k, B, ...) and labels (k, B).

    The global random state is seeded on the way, so the loop over it belongs into
    ``isolate_randomness``.

    Args:
        resident: What lies on the device.
        images: Those of the clients that train, a selection of the resident ones.
        epoch: Its number, counted through all rounds: each epoch has an order of its own.
        training: The clients' settings.
        preprocess: How images reach the net.
        seed: Of the run.
        dtype: The precision of the images.
    """
    width = min(len(images.names), resident.width)
    order = images.shuffle(seed, epoch, training.augment)
    resident.net.train()
    calls = stacking.plan_calls(images.sizes, training.batch_size, width)
    for number, call in enumerate(calls):
        if number == 0 or (width == 1 and call.start == 0):
            # One by one, each client has random numbers of its own; a stack has one stream for all.
            name = (images.names[call.first],) if width == 1 else ()
            reseed(resident.device, seeds.derive(seed, "epoch", epoch, *name))
        inputs, labels = images.batch(call, order, preprocess, dtype)
        yield call, inputs, labels


class EpochLoss:
    """Adds up the losses of an epoch, client by client."""

    def __init__(self, images: ResidentImages) -> None:
        device = images.pixels.device
        self._sums = torch.zeros(len(images.sizes), dtype=widest_float(device), device=device)
        self._sizes = torch.tensor(images.sizes, device=device)

    def add(self, call: Call, losses: Tensor) -> None:
        """Add the mean losses (k,) of the clients of one call."""
        self._sums[call.first : call.last] += losses * call.number

    def mean(self) -> Tensor:
        """Return the mean over clients of the mean loss over each one's images."""
        return (self._sums / self._sizes).mean()


def validation_accuracies(
    resident: ResidentClients,
    names: Sequence[str],
    state: TrainingState,
    preprocess: Preprocess,
    choose_logits: Callable[[Any], Tensor] = lambda output: output,
) -> dict[str, Tensor]:
    """Return the accuracy of each client on the images that it holds out, as
    ``validation_scores`` does.
    """
    scores = validation_scores(resident, names, state, preprocess, choose_logits)
    return {name: accuracy for name, (accuracy, _) in scores.items()}


@torch.no_grad()
def validation_scores(
    resident: ResidentClients,
    names: Sequence[str],
    state: TrainingState,
    preprocess: Preprocess,
    choose_logits: Callable[[Any], Tensor] = lambda output: output,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the accuracy and the cross entropy of each client on the images that it holds out.

    Args:
        resident: What lies on the device.
        names: The clients in the order of the stack.
        state: Their weights.
        preprocess: How images reach the net.
        choose_logits: Takes the logits from what the net returns.

    Returns:
        By name; clients too small to hold any image out are absent.
    """
    resident.net.eval()
    scores = {}
    for index, name in enumerate(names):
        pixels, labels = resident.validation[name]
        if len(labels) == 0:
            continue
        alone = Call(index, index + 1, 0, 0)
        params = slice_stack(state.params, alone)
        buffers = slice_stack(state.buffers, alone)
        right = torch.zeros((), dtype=widest_float(resident.device), device=resident.device)
        loss = torch.zeros_like(right)
        batches = zip(pixels.split(EVAL_BATCH), labels.split(EVAL_BATCH), strict=True)
        for some, truth in batches:
            inputs = preprocess(to_floats(some, state.dtype))[None]
            logits = choose_logits(stacking.forward(resident.net, params, buffers, inputs))[0]
            right += (logits.argmax(1) == truth).sum()
            loss += F.cross_entropy(logits.to(loss.dtype), truth, reduction="sum")
        scores[name] = (right / len(labels), loss / len(labels))
    return scores
