"""A set of images from the clients' decoders, from which a student learns.

FedMHO and FEDCVAE share what is here: who makes how many images of which class, the pool that
holds the images, sample grids that show some of them, batches of the pool, and the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attar.blocks.execution import Runner, eager, runner_for
from attar.blocks.images import Allocation, Decoders, Pool, allocate_images
from attar.blocks.student.student import StudentPlan, server_plan
from attar.core import Metrics, Result, Server, State, Upload

GRID_COLUMNS = 5  # images of a class on a sample grid, as in FedMHO's Fig. 9
GRID_ROWS = 50  # classes on a sample grid
PROBED = 100  # images on which the answers of the finished student are checked


@dataclass(frozen=True)
class SyntheticSet:
    """Who makes how many images of which class, and which student learns from them.

    ``prepare`` makes it and nothing changes it. The images themselves are in
    ``SyntheticState.pool``.

    Attributes:
        uploads: of all clients.
        server: the task and the device.
        strong: the uploads with a classifier.
        weak: the uploads with a decoder.
        decoders: the decoders of ``weak``.
        plan: the student without its weights.
        image_counts: int64 (weak, C), the images that each decoder makes of each class.
        run: how steps run on the device.
    """

    uploads: Sequence[Upload]
    server: Server
    strong: Sequence[Upload]
    weak: Sequence[Upload]
    decoders: Decoders
    plan: StudentPlan
    image_counts: Tensor
    run: Runner

    @property
    def class_counts(self) -> list[int]:
        """Images of each class."""
        counts: list[int] = self.image_counts.sum(0).tolist()
        return counts

    def generate(
        self, column: int, truncation: float | None = None, latent: int | None = None
    ) -> Tensor:
        """All images of one class, (n, C, H, W); for the arguments see ``Decoders.generate``."""
        return self.decoders.generate(column, self.image_counts[:, column], truncation, latent)

    def batches(
        self, pool: Pool, batch_size: int, draws: torch.Generator
    ) -> Iterator[tuple[Runner, Tensor]]:
        """One pass over a pool in random order.

        The last batch may be smaller. It runs without a recording, which it is not worth. A batch
        of a single image is doubled, because BatchNorm cannot normalise one image.

        Yields:
            How the step on a batch runs, and the places of its images in the pool.
        """
        for places in pool.batches(batch_size, draws):
            run = self.run if len(places) == batch_size else eager
            yield run, places if len(places) > 1 else places.repeat(2)

    def result(self, state: "SyntheticState") -> Result:
        """The student, how many images each client's decoder made, the sample grids, and remarks.

        The remarks name classes without images, and a student that has learned nothing.
        """
        rows = {upload.client: row for row, upload in enumerate(self.weak)}
        table = torch.zeros(len(self.uploads), len(self.plan.classes))
        for place, upload in enumerate(self.uploads):
            if upload.client in rows:
                table[place] = self.image_counts[rows[upload.client]].float()
        return Result(
            models={"student": self.plan.part(state.student)},
            arrays={"images made": table},
            images=used_grids(state.sheets),
            remarks=(*self._classes_without_images(), *self._constant_student(state)),
        )

    def _classes_without_images(self) -> list[str]:
        """A remark on the classes of which no decoder made an image."""
        counts = zip(self.plan.classes, self.class_counts, strict=True)
        if absent := [name for name, number in counts if not number]:
            names = ", ".join(absent)
            return [f"No image was made of: {names} (no decoder holds enough of it)."]
        return []

    def _constant_student(self, state: "SyntheticState") -> list[str]:
        """A remark where the student gives images of several classes one and the same label."""
        number = min(PROBED, len(state.pool))
        spread = torch.linspace(0, max(0, len(state.pool) - 1), number)
        places = spread.round().long().to(state.pool.device)
        if not number or len(state.pool.labels(places).unique()) < 2:
            return []
        logits = self.plan.eval_logits(state.student, state.pool.images(places))
        predictions = logits.argmax(-1).unique()
        if len(predictions) > 1:
            return []
        return [
            f"The student takes all of {number} synthetic images, of several classes, for "
            f"{self.plan.classes[int(predictions)]}. Look at the sample grid of synthetic images. "
            "If its rows look alike, the decoders have learned too little. If they differ, the "
            "student has learned too little: train it for more epochs, or, if its loss does not "
            "fall, with a smaller learning rate (--set lr=1e-5)."
        ]


def plan_synthetic_set(
    uploads: Sequence[Upload],
    server: Server,
    samples: int,
    exponent: float = 1.0,
    allocation: Allocation = "labels",
) -> SyntheticSet:
    """Decide which decoder makes how many images of which class.

    Args:
        uploads: of all clients; those with a decoder have label counts.
        server: the task, the student and the device.
        samples: images in all.
        exponent: of the label counts, see ``allocate_images``.
        allocation: the rule, see ``allocate_images``.
    """
    weak = [upload for upload in uploads if "decoder" in upload.parts]
    return SyntheticSet(
        uploads=uploads,
        server=server,
        strong=[upload for upload in uploads if "classifier" in upload.parts],
        weak=weak,
        decoders=Decoders(weak, server),
        plan=server_plan(server),
        image_counts=allocate_images(weak, server, samples, exponent, allocation),
        run=runner_for(server.device),
    )


@dataclass
class SyntheticState(State):
    """A student and the synthetic images that it learns from.

    Attributes:
        student: the net in training.
        optimiser: of the student.
        pool: the synthetic images with their labels, D_s.
        sheets: sample grids by name, see ``blank_grids``.
        draws: order of the images in each pass.
        answers: logits of teachers on every image of the pool, by the teacher's name.
    """

    student: nn.Module
    optimiser: Optimizer
    pool: Pool
    sheets: dict[str, Tensor]
    draws: torch.Generator
    answers: dict[str, Tensor]


def mean_loss(losses: Sequence[Tensor]) -> Metrics:
    """The mean loss of a pass as a metric; no metric where there was no step."""
    return {"loss": torch.stack(list(losses)).mean()} if losses else {}


def blank_grids(server: Server, *names: str) -> dict[str, Tensor]:
    """White sample grids by name, (classes, GRID_COLUMNS, C, H, W): a row for each class."""
    rows = min(GRID_ROWS, len(server.task.classes))
    return {name: torch.ones(rows, GRID_COLUMNS, *server.task.input_shape) for name in names}


def fill_grid_row(grid: Tensor, row: int, images: Tensor) -> None:
    """Put some images of a class, evenly spaced among all of them, on its row of a sample grid.

    Classes beyond the rows of the grid are not shown.
    """
    if row < len(grid):
        number = min(GRID_COLUMNS, len(images))
        spread = torch.linspace(0, max(0, len(images) - 1), number)
        grid[row, :number] = images[spread.round().long().to(images.device)].cpu()


def used_grids(grids: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sample grids that show an image."""
    return {name: grid for name, grid in grids.items() if bool((grid < 1).any())}


def add_class(pool: Pool, images: Tensor, label: int) -> None:
    """Add images of one class to a pool."""
    pool.add(images, torch.full((len(images),), label, device=images.device))
