"""A set of images made by the clients' decoders, as phases of a run: made class by class, shown,
asked about, learned from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attar.blocks.execution import Run, at_once, gradient_step, run_on
from attar.blocks.images import Allocation, Decoders, Pool, allot
from attar.blocks.student.student import StudentPlan, server_plan
from attar.core import Metrics, Phase, Result, Server, State, Upload

ASK_BATCH = 500
SHOWN = 5  # images of a class on a sheet, as in FedMHO's Fig. 9
SHOWN_CLASSES = 50
PROBED = 100  # images that a student is asked about before it is handed over
FILTERED = "synthetic before filter", "synthetic after filter", "dropped by filter"


@dataclass(frozen=True)
class Workshop:
    """Decoders, what each of them makes, and the plan of the student: made by ``prepare``, never
    changed.
    """

    uploads: Sequence[Upload]
    server: Server
    strong: Sequence[Upload]  # who sent a classifier
    weak: Sequence[Upload]  # who sent a decoder
    decoders: Decoders
    plan: StudentPlan
    allotted: Tensor  # int64 (weak, C): images that each decoder makes of each class
    run: Run  # how steps run on the device

    @property
    def numbers(self) -> list[int]:
        """Images of each class."""
        made: list[int] = self.allotted.sum(0).tolist()
        return made

    def make(self, column: int, width: float | None = None, latent: int | None = None) -> Tensor:
        """All images of one class."""
        return self.decoders.of_class(column, self.allotted[:, column], width, latent)

    def learn_phase(
        self,
        name: str,
        epochs: int,
        batch_size: int,
        loss: Callable[[Tensor, Tensor, Any], Tensor],
        optimiser: Callable[[Any], Optimizer] = lambda state: state.optimiser,
    ) -> Phase:
        """Epochs of the student over the pool on ``loss(logits, places, state)``."""

        def step(state: SyntheticState) -> Metrics:
            def loss_of(places: Tensor) -> Tensor:
                return loss(
                    self.plan.logits(state.student, state.pool.images(places)), places, state
                )

            return self.pass_over(name, state.pool, batch_size, state, optimiser(state), loss_of)

        return Phase(name, epochs, step, lambda _: float(sum(self.numbers)))

    def pass_over(
        self,
        name: str,
        pool: Pool,
        batch_size: int,
        state: "SyntheticState",
        optimiser: Optimizer,
        loss_of: Callable[[Tensor], Tensor],
    ) -> Metrics:
        """One epoch: a step on ``loss_of(places)`` for every batch of places in the pool; the mean loss.

        A batch of a single image is doubled: BatchNorm cannot normalise one.
        """
        losses = []
        for places in pool.batches(batch_size, state.draws):
            run = (
                self.run if len(places) == batch_size else at_once
            )  # the last, smaller batch is not worth a recording
            places = places if len(places) > 1 else places.repeat(2)
            losses.append(gradient_step(run, name, optimiser, loss_of, (places,), (state, pool)))
        return {"loss": torch.stack(losses).mean()} if losses else {}

    def result(self, state: "SyntheticState") -> Result:
        """The student, who made how many images of what, the sheets, and the classes that nobody
        could make.
        """
        rows = {upload.client: row for row, upload in enumerate(self.weak)}
        table = torch.zeros(len(self.uploads), len(self.plan.classes))
        for place, upload in enumerate(self.uploads):
            if upload.client in rows:
                table[place] = self.allotted[rows[upload.client]].float()
        absent = [
            name for name, number in zip(self.plan.classes, self.numbers, strict=True) if not number
        ]
        unmade = (
            [f"No image was made of: {', '.join(absent)} (no decoder holds enough of it)."]
            if absent
            else []
        )
        remarks = (*unmade, *self._one_answer_for_all(state))
        return Result(
            {"student": self.plan.part(state.student)},
            {"images made": table},
            drawn_sheets(state),
            remarks,
        )

    def _one_answer_for_all(self, state: "SyntheticState") -> tuple[str, ...]:
        """A warning where the student takes images of all classes, spread over the pool, for the
        same one.
        """
        spread = torch.linspace(0, max(0, len(state.pool) - 1), min(PROBED, len(state.pool)))
        places = spread.round().long().to(state.pool.device)
        if not len(places) or len(state.pool.labels(places).unique()) < 2:
            return ()
        answers = (
            self.plan.rested_logits(state.student, state.pool.images(places)).argmax(-1).unique()
        )
        if len(answers) > 1:
            return ()
        same = self.plan.classes[int(answers)]
        return (
            f"The student takes all of {len(places)} synthetic images, of several classes, for {same}. Look at the sheet of "
            "synthetic images: where its rows look alike, the decoders have learned too little. Where they do not, the student has: "
            "a short run wants more epochs, a loss that stays where it began a smaller lr (--set lr=1e-5).",
        )


def open_workshop(
    uploads: Sequence[Upload],
    server: Server,
    samples: int,
    exponent: float = 1.0,
    allocation: Allocation = "labels",
) -> Workshop:
    strong = [upload for upload in uploads if "classifier" in upload.parts]
    weak = [upload for upload in uploads if "decoder" in upload.parts]
    allotted = allot(weak, server, samples, exponent, allocation)
    decoders, run = Decoders(weak, server), run_on(server.device)
    return Workshop(uploads, server, strong, weak, decoders, server_plan(server), allotted, run)


@dataclass
class SyntheticState(State):
    """Student, the synthetic set, what of it is shown, and the order in which it is learned from."""

    student: nn.Module
    optimiser: Optimizer
    pool: Pool  # D_s
    sheets: dict[str, Tensor]  # name -> (classes, SHOWN, C, H, W)
    draws: torch.Generator
    answers: dict[str, Tensor]  # what somebody said about every image of the pool


def blank_sheets(server: Server, *names: str) -> dict[str, Tensor]:
    """White, a row for each of the first classes of the task."""
    rows = min(SHOWN_CLASSES, len(server.task.classes))
    return {name: torch.ones(rows, SHOWN, *server.task.input_shape) for name in names}


def show(sheet: Tensor, row: int, images: Tensor) -> None:
    """Put images, spread evenly over those given, on a class's row."""
    if row < len(sheet):
        number = min(SHOWN, len(images))
        chosen = torch.linspace(0, max(0, len(images) - 1), number).round().long().to(images.device)
        sheet[row, :number] = images[chosen].cpu()


def drawn_sheets(state: SyntheticState) -> dict[str, Tensor]:
    """The sheets that have something on them."""
    return {name: sheet for name, sheet in state.sheets.items() if bool((sheet < 1).any())}


def make_phase(
    name: str,
    numbers: Sequence[int],
    make: Callable[[Any, int], Tensor],
    sheet: str,
    pool: Callable[[Any], Pool],
) -> Phase:
    """One step: the images of every class, ``make(state, class)``, go to a pool of the state."""

    def step(state: SyntheticState) -> Metrics:
        for label in range(len(numbers)):
            images = make(state, label)
            show(state.sheets[sheet], label, images)
            pool(state).add(images, _labels(images, label))
        return {}

    return Phase(name, 1, step, lambda _: float(sum(numbers)) / 3, learns=False)


def filter_phase(
    name: str,
    numbers: Sequence[int],
    make: Callable[[int], Tensor],
    choose: Callable[[Tensor, int], Tensor],
) -> Phase:
    """One step: of the images of every class, those whose indices ``choose(images, class)``
    gives go to the pool.
    """

    def step(state: SyntheticState) -> Metrics:
        for label in range(len(numbers)):
            images = make(label)
            stays = torch.zeros(len(images), dtype=torch.bool, device=images.device)
            stays[choose(images, label)] = True
            for sheet, some in zip(FILTERED, (images, images[stays], images[~stays]), strict=True):
                show(state.sheets[sheet], label, some)
            state.pool.add(images[stays], _labels(images[stays], label))
        return {}

    return Phase(name, 1, step, lambda _: float(sum(numbers)) / 3, learns=False)


def _labels(images: Tensor, label: int) -> Tensor:
    return torch.full((len(images),), label, device=images.device)


def ask_phase(
    name: str, images: int, who: str, ask: Callable[[Any, Tensor], Tensor], work: float = 1.0
) -> Phase:
    """Every image of the pool once: ``ask(state, images)`` becomes ``answers[who]``."""

    def step(state: SyntheticState) -> Metrics:
        first, last = state.step * ASK_BATCH, min((state.step + 1) * ASK_BATCH, len(state.pool))
        if first < last:
            with torch.no_grad():
                said = ask(
                    state, state.pool.images(torch.arange(first, last, device=state.pool.device))
                )
            state.answers[who][first:last] = said.float()
        return {}

    def cost(row: int) -> float:
        return work * min(ASK_BATCH, images - row * ASK_BATCH) / 3

    return Phase(name, -(-images // ASK_BATCH), step, cost, learns=False)
