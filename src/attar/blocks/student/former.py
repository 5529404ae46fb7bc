"""Former names of this room, until nobody uses them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from attar.blocks.execution import gradient_step
from attar.blocks.images import GeneratorTraining, Keep, Pool, PoolSettings, generate_batch
from attar.blocks.images.generator import draw_noise
from attar.blocks.student.context import DistillationContext, prepare_context
from attar.blocks.student.distil import (
    LATER_ROUNDS_CLIP,
    DataFreeState,
    StudentSchedule,
    StudentTraining,
    add_with_answers,
    answer_extras,
    cached_batches,
    epoch_cost,
    start_data_free,
    start_generator,
    start_pool,
)
from attar.blocks.student.student import frozen
from attar.core import Server

Classroom = DistillationContext
StudioState = DataFreeState
Schedule = StudentSchedule
blank_answers = answer_extras
remember = add_with_answers
resting = frozen


class GeneratorSettings(Protocol):
    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def student_lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def schedule(self) -> Any: ...
    @property
    def temperature(self) -> float: ...
    @property
    def clip(self) -> float | None: ...
    @property
    def pool_limit(self) -> int | None: ...
    @property
    def pool_bytes(self) -> bool: ...
    @property
    def generator_steps(self) -> int: ...
    @property
    def generator_lr(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def noise(self) -> int: ...
    @property
    def generator_width(self) -> int: ...
    @property
    def reset_generator(self) -> bool: ...
    @property
    def train_noise(self) -> bool: ...
    @property
    def keep(self) -> Keep: ...


def open_classroom(uploads: Any, server: Server, *, partial: bool = False) -> DistillationContext:
    return prepare_context(list(uploads), server, partial=partial)


def open_studio(
    room: DistillationContext,
    settings: Any,
    generator: nn.Module | None = None,
    *,
    start_from: str = "fresh",
    batches: int = 1,
    notes: Mapping[str, Tensor] | None = None,
) -> DataFreeState:
    training = StudentTraining(
        settings.student_lr, settings.momentum, settings.weight_decay, settings.schedule
    )
    images = settings.epochs * batches * settings.batch_size
    pool = start_pool(room, PoolSettings(settings.pool_limit, settings.pool_bytes), images, notes)
    return start_data_free(room, training, settings.epochs, pool, generator, start_from=start_from)


def _generator(settings: Any) -> GeneratorTraining:
    return GeneratorTraining(
        steps=settings.generator_steps,
        lr=settings.generator_lr,
        noise=settings.noise,
        width=settings.generator_width,
        beta1=settings.beta1,
        reset=settings.reset_generator,
        train_noise=settings.train_noise,
        keep=settings.keep,
    )


def room_generator(room: DistillationContext, settings: Any, *purpose: int) -> nn.Module:
    return start_generator(room, _generator(settings), *purpose)


def generate(
    room: DistillationContext,
    settings: Any,
    state: DataFreeState,
    loss_of: Callable[..., Tensor],
    *given: Tensor,
) -> tuple[Tensor, Tensor]:
    assert state.generator is not None
    training = _generator(settings)
    if training.reset:
        state.generator.load_state_dict(start_generator(room, training, state.step).state_dict())
    batch = generate_batch(
        state.generator,
        draw_noise(settings.batch_size, settings.noise, state.draws, room.device),
        loss_of,
        training,
        clip=settings.clip,
        run=room.run,
        captured=(state.student, state),
    )
    with frozen(state.student):
        for _ in range(training.steps):
            loss = batch.step(*given)
    return batch.images, loss


def learn(
    room: DistillationContext,
    settings: Any,
    state: DataFreeState,
    loss_of: Callable[..., Tensor],
    *inputs: Tensor,
) -> Tensor:
    clip = settings.clip
    if clip is None and "model" in room.server.memory:
        clip = LATER_ROUNDS_CLIP
    captured = (state.student, state)
    return gradient_step(room.run, "learn", state.optimiser, loss_of, inputs, captured, clip)


def remembered(
    settings: Any, state: DataFreeState, pool: Pool | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    return cached_batches(state.pool if pool is None else pool, settings.batch_size, state.draws)


def work_of_epoch(
    generator_steps: int, more: float = 0.0, *, grows: bool = True, asked: bool = False
) -> Callable[[int], float]:
    return epoch_cost(generator_steps, fixed_batches=more, grows=grows, cached=not asked)
