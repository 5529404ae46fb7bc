"""Where clients of one architecture train, once or round after round, and how one epoch goes
there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attar import seeds
from attar.blocks.execution import Run, compile_blocks, run_on
from attar.core import Part, Preprocess
from attar.training import stacking
from attar.training.batches import Resident, canonical
from attar.training.clients import ClientData, split
from attar.training.optimisers import Tensors
from attar.training.options import LocalTraining
from attar.training.randomness import own_randomness, reseed
from attar.training.stacking import Call, Views, sliced
from attar.training.step import Row, TrainingState, restart, start_state

EVAL_BATCH = 512

Given = Mapping[str, Sequence[Tensors]]


@dataclass(frozen=True)
class Workplace:
    """Images on the device, the net's code and recorded steps: made once, never saved.

    Rounds come back to it with other clients. Then the stacked tensors stay, too, and are filled
    anew in place: recorded steps know them by address. There are as many seats as clients may
    come in one round.
    """

    net: nn.Module  # lends its code; the weights are those of the state
    everybody: Resident
    kept: Mapping[str, tuple[Tensor, Tensor]]  # each client's validation pixels and labels
    limit: int  # clients that share a call at most
    run: Run
    seats: int
    device: str
    view: Views = field(default_factory=Views)
    taken: list[TrainingState] = field(
        default_factory=list
    )  # the stack, once somebody has sat down

    def seat(self, rows: Sequence[Row], training: LocalTraining, given: Given) -> TrainingState:
        """The state of a round's clients; free seats behind them hold nothing that anybody reads."""
        if not self.taken:
            spare = self.seats - len(rows)
            filled = {name: [*values, *[values[-1]] * spare] for name, values in given.items()}
            self.taken.append(
                start_state([*rows, *[rows[-1]] * spare], training, self.device, filled)
            )
        else:
            restart(self.taken[0], rows, given)
        return self.taken[0]


@dataclass(frozen=True)
class Visit:
    """What a round adds to local training: its number, what the server sent, what each client
    has at home, where they train.
    """

    round: int = 1
    received: Mapping[str, Part] = field(default_factory=dict)
    homes: Mapping[str, Mapping[str, Part]] = field(default_factory=dict)
    workplace: Workplace | None = None


@dataclass(frozen=True)
class Seating:
    """Clients in the order in which they lie in a stack, and which of their images each trains
    and validates on.
    """

    ordered: tuple[ClientData, ...]  # by number of training images, largest first, then by name
    splits: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def names(self) -> list[str]:
        return [client.name for client in self.ordered]

    def train_labels(self, client: ClientData) -> Tensor:
        return client.labels[self.splits[client.name][0]]


def seating(clients: Sequence[ClientData], training: LocalTraining, seed: int) -> Seating:
    splits = {client.name: split(client, training.validation, seed) for client in clients}
    return Seating(
        tuple(sorted(clients, key=lambda client: (-len(splits[client.name][0]), client.name))),
        splits,
    )


def open_workplace(
    clients: Sequence[ClientData],
    net: nn.Module,
    preprocess: Preprocess,
    training: LocalTraining,
    *,
    seed: int,
    device: str,
    seats: int | None = None,
) -> Workplace:
    """A workplace for everybody who may train there, ``seats`` of them at a time (all unless
    given). ``net`` is on the CPU.
    """
    seated, seats = seating(clients, training, seed), seats or len(clients)
    ordered, splits = seated.ordered, seated.splits
    batch = min(training.batch_size, len(splits[ordered[0].name][0]))
    limit = stacking.width(
        training.stack, net.train(), seats, batch, preprocess.input_shape, device
    )
    if training.compile_blocks:
        compile_blocks(net)
    kept = {}
    for client in ordered:
        rows = splits[client.name][1]
        kept[client.name] = (client.pixels[rows].to(device), client.labels[rows].to(device))
    resident = Resident.of(ordered, [splits[client.name][0] for client in ordered], device)
    return Workplace(net.to(device), resident, kept, limit, run_on(device), seats, device)


Step = Callable[[Call, Tensor, Tensor], Tensor]


def one_epoch(
    place: Workplace,
    names: Sequence[str],
    epoch: int,
    training: LocalTraining,
    preprocess: Preprocess,
    seed: int,
    dtype: torch.dtype,
    step: Step,
) -> Tensor:
    """``step(call, images, labels)`` for every batch of these clients' epoch; the mean over
    clients of their mean loss.
    """
    train, width = place.everybody.seated(names), min(len(names), place.limit)
    walk = train.walk(seed, epoch, training.augment)
    totals = torch.zeros(len(names), dtype=torch.float64, device=place.device)
    place.net.train()
    with own_randomness(place.device):
        for number, call in enumerate(stacking.plan(train.sizes, training.batch_size, width)):
            if number == 0 or (width == 1 and call.start == 0):
                # One by one, each client has a stream of its own; a stack has one for all.
                name = (names[call.first],) if width == 1 else ()
                reseed(place.device, seeds.derive(seed, "epoch", epoch, *name))
            images, labels = train.batch(call, walk, preprocess, dtype)
            totals[call.first : call.last] += step(call, images, labels) * call.number
    return (totals / torch.tensor(train.sizes, device=place.device)).mean()


@torch.no_grad()
def kept_accuracies(
    place: Workplace,
    names: Sequence[str],
    state: TrainingState,
    preprocess: Preprocess,
    logits_of: Callable[[Any], Tensor] = lambda output: output,
) -> dict[str, Tensor]:
    """Accuracy of each client on the images it kept back; clients too small to keep any are absent."""
    dtype = next(iter(state.params.values())).dtype
    place.net.eval()
    found = {}
    for index, name in enumerate(names):
        pixels, labels = place.kept[name]
        if len(labels):
            alone = Call(index, index + 1, 0, 0)
            params, buffers = sliced(state.params, alone), sliced(state.buffers, alone)
            right = torch.zeros((), dtype=torch.float64, device=place.device)
            for some, truth in zip(
                torch.split(pixels, EVAL_BATCH), torch.split(labels, EVAL_BATCH), strict=True
            ):
                inputs = preprocess(canonical(some, dtype))[None]
                logits = logits_of(stacking.forward(place.net, params, buffers, inputs))
                right += (logits[0].argmax(1) == truth).sum()
            found[name] = right / len(labels)
    return found
