"""F-DAFL: data-free learning through a generator, with the ensemble of the clients as its
discriminator.

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

Departures. DAFL trains generator and student together, without a pool; here, as in Co-Boosting's
comparison, the skeleton is that of DENSE and Co-Boosting, with their common settings (B.1).
``per_feature=True`` takes the mean of |features|, as the authors' code does, instead of the l1
norm: a term smaller by the number of features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attar.blocks.ensemble import combine
from attar.blocks.images.inversion import Keep
from attar.blocks.student import (
    Classroom,
    Schedule,
    StudioState,
    blank_answers,
    distil_pool,
    generate,
    information_entropy,
    one_hot,
    open_classroom,
    open_studio,
    remember,
    room_generator,
    student_result,
    work_of_epoch,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.settings import require


@dataclass(frozen=True)
class FDafl:
    """DAFL over the ensemble: sure, active and evenly spread images from a generator (Chen et
    al. 2019).
    """

    paper: ClassVar[str] = "Chen et al., ICCV 2019"
    cost: ClassVar[str] = "as dense"
    needs: ClassVar[Needs] = Needs(each=("features",))

    epochs: int = 500  # T
    generator_steps: int = 30  # T_G
    batch_size: int = 128
    generator_lr: float = 1e-3
    student_lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    activation: float = 0.1  # alpha
    entropy: float = 5.0  # beta
    per_feature: bool = False
    temperature: float = 4.0
    clip: float | None = None
    noise: int = 256
    generator_width: int = 64
    beta1: float = 0.9
    reset_generator: bool = False
    train_noise: bool = False
    keep: Keep = "last"
    pool_limit: int | None = None
    pool_bytes: bool = False

    def __post_init__(self) -> None:
        require(self, may_be_zero="epochs momentum weight_decay activation entropy beta1")

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Classroom:
        return open_classroom(uploads, server)

    def start(self, context: Classroom) -> StudioState:
        return open_studio(
            context, self, room_generator(context, self), notes=blank_answers(context)
        )

    def phases(self, context: Classroom) -> Sequence[Phase]:
        teachers = context.teachers

        def ensemble(images: Tensor) -> Tensor:
            return combine("logits", teachers(images), teachers.known)

        def generator_loss(images: Tensor) -> Tensor:
            logits, found = teachers.probed(
                images, ["mean activation" if self.per_feature else "activation"]
            )
            (strength,) = found.values()
            answers = combine("logits", logits, teachers.known)
            return (
                one_hot(answers)
                - self.activation * strength.mean()
                + self.entropy * information_entropy(answers)
            )

        def epoch(state: StudioState) -> Metrics:
            images, made = generate(context, self, state, generator_loss)
            remember(context, state, images, ensemble(images).argmax(-1), lambda x, _: ensemble(x))
            learned = distil_pool(context, self, state)
            state.schedule.step()
            return {"generator loss": made, "loss": learned}

        return [Phase("distil", self.epochs, epoch, work_of_epoch(self.generator_steps))]

    def result(self, context: Classroom, state: StudioState) -> Result:
        return student_result(context, state)
