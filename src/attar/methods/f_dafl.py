"""F-DAFL: data-free learning through a generator, with the ensemble of clients as discriminator.

Paper: H. Chen et al., Data-Free Learning of Student Networks, ICCV 2019 (DAFL); over the
ensemble as Co-Boosting B.1 uses it.

    repeat for T epochs:
        T_G times: x <- G(z);  G <- Adam step on L_oh + alpha L_a + beta L_ie
        pool <- pool + x, labelled by the ensemble
        for every batch x of the pool: student <- SGD step on T^2 KL(D(x) || f_S(x))

| symbol | here |
|---|---|
| L_oh | ``one_hot``: the ensemble is sure |
| L_a, alpha | minus the mean l1 norm of the clients' penultimate features; ``activation`` |
| L_ie, beta | ``information_entropy``: all classes come up; ``entropy`` |

Departures:

- DAFL trains generator and student together, without a pool. Here, as in Co-Boosting's comparison,
  the skeleton is that of DENSE and Co-Boosting, with their common settings (B.1).
- ``per_feature=True`` takes the mean of |features|, as the authors' code does, instead of the l1
  norm: a term smaller by the number of features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from attar.blocks.ensemble import combine
from attar.blocks.images import GeneratorTraining, PoolSettings
from attar.blocks.student import (
    DataFreeState,
    DistillationContext,
    StudentTraining,
    add_with_answers,
    answer_extras,
    distil_epoch,
    epoch_cost,
    frozen,
    information_entropy,
    one_hot,
    prepare_context,
    start_batch,
    start_data_free,
    start_generator,
    start_pool,
    student_result,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import NonNegative, NonNegativeInt, PositiveInt, settings


@settings()
@dataclass(frozen=True)
class FDafl:
    """DAFL over the ensemble: certain, active, evenly spread images (Chen et al. 2019)."""

    paper: ClassVar[str] = "Chen et al., ICCV 2019"
    cost: ClassVar[str] = "as dense"
    needs: ClassVar[Needs] = Needs(each=("features",))

    epochs: NonNegativeInt = 500  # T
    batch_size: PositiveInt = 128  # images in a batch
    generator: GeneratorTraining = GeneratorTraining()
    student: StudentTraining = StudentTraining(temperature=4.0)
    pool: PoolSettings = PoolSettings()
    activation: NonNegative = 0.1  # alpha
    entropy: NonNegative = 5.0  # beta
    per_feature: bool = False  # mean of |features| in place of their l1 norm

    def prepare(self, uploads: Sequence[Upload], server: Server) -> DistillationContext:
        """Put the teachers on the device."""
        return prepare_context(uploads, server)

    def start(self, context: DistillationContext) -> DataFreeState:
        """A fresh student, a fresh generator, an empty pool."""
        images = self.epochs * self.batch_size
        return start_data_free(
            context,
            self.student,
            self.epochs,
            pool=start_pool(context, self.pool, images, answer_extras(context)),
            generator=start_generator(context, self.generator),
        )

    def phases(self, context: DistillationContext) -> Sequence[Phase]:
        """The epochs."""
        cost = epoch_cost(self.generator.steps)
        return [Phase("distil", self.epochs, partial(self.epoch, context), cost)]

    def epoch(self, context: DistillationContext, state: DataFreeState) -> Metrics:
        """One of the T epochs."""
        batch = start_batch(
            context,
            state,
            self.generator_loss,
            self.generator,
            self.batch_size,
            clip=self.student.clip,
        )
        with frozen(state.student):
            for _ in range(self.generator.steps):  # T_G times
                generator_loss = batch.step()

        def answer(images: Tensor, labels: Tensor) -> Tensor:
            return self.ensemble(context, images)

        labels = self.ensemble(context, batch.images).argmax(-1)
        add_with_answers(context, state, batch.images, labels, answer)  # pool <- pool + x
        student_loss = distil_epoch(context, state, self.student, self.batch_size)
        state.schedule.step()
        return {"generator loss": generator_loss, "loss": student_loss}

    def ensemble(self, context: DistillationContext, images: Tensor) -> Tensor:
        """D(x): the mean of the clients' logits."""
        return combine("logits", context.teachers(images), context.teachers.known)

    def generator_loss(
        self, context: DistillationContext, state: DataFreeState, images: Tensor
    ) -> Tensor:
        """L_oh + alpha L_a + beta L_ie."""
        logits, measured = context.teachers.with_hooks(
            images, ["mean activation" if self.per_feature else "activation"]
        )
        (activation,) = measured.values()  # of each client
        ensemble = combine("logits", logits, context.teachers.known)
        return (
            one_hot(ensemble)
            - self.activation * activation.mean()  # alpha L_a
            + self.entropy * information_entropy(ensemble)
        )

    def result(self, context: DistillationContext, state: DataFreeState) -> Result:
        """The student and its newest images."""
        return student_result(context, state)
