"""Accord: a teacher that weights clients by class and by image, distilled through sketches.

A method of attar; docs/methods/accord.md derives every factor and says what each costs.

    p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c

    if label counts were withheld: for client k and class c move pixels down CE(f_k(x), c);
        n_kc = n_k u_kc / sum_c u_kc
    if decoders were sent: draw their images, with their labels
    draw sketches, images of a program's making; the teacher answers them
    repeat for T epochs:
        if a generator is asked for:  T_G times: x <- G(z);  G <- Adam step on the hard-sample loss
                                      pool <- pool + x
        for batches x of the pools and of sketches:
            student <- SGD step on T^2 KL(p(x) || f_S(x))
            mean <- d mean + (1 - d) student
    deliver the mean

| symbol | here |
|---|---|
| s_kc | share of client k in class c: ``evidence_shares`` of the label counts n_kc |
| gate_k(x) | softmax over clients of -b score_k(x): ``GatedTeachers`` |
| b | ``familiarity`` for scores from feature statistics, ``spread`` for scores from BatchNorm |
| t | ``teacher_temperature`` |
| u_kc | FedHydra's Eq. (2) with max L over all classes of the client: ``client_guidance`` |
| T, d | ``temperature`` of the distillation, ``averaging`` |

The student starts from the average of the clients of its architecture. Inversion is FedHydra's
(Bai, Song et al.), decoders are FedMHO's (Yao et al.), hard images Co-Boosting's (Dai et al. 2024).

Departures: none; there is no other paper.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import (
    GeneratorTraining,
    PoolSettings,
    SyntheticBatch,
    allocate_images,
    draw_labels,
)
from attar.blocks.student import (
    GALLERY,
    DistillationContext,
    StudentTraining,
    add_to_pool,
    adversarial,
    answer_extras,
    cached_batches,
    distillation,
    epoch_cost,
    follow,
    frozen,
    hard_sample,
    prepare_context,
    start_batch,
    start_data_free,
    start_generator,
    start_pool,
    student_result,
    student_step,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.errors import SettingsError
from attar.methods.accord.phases import (
    AccordContext,
    AccordState,
    Guessing,
    Sketching,
    draw_phase,
    guess_phase,
    sketch_batches,
    sketch_phase,
)
from attar.methods.accord.teacher import TeacherSettings, build_teacher
from attar.settings import Fraction, NonNegative, NonNegativeInt, PositiveInt, flat, settings

NEEDS = Needs(
    parts=("classifier", "decoder"), at_least=(("classifier", 1),), label_counts_with=("decoder",)
)


@dataclass(frozen=True)
class HardImages(GeneratorTraining):
    """Images of a generator that looks for what the teacher is unsure of (Co-Boosting).

    All settings of this group matter only with ``generator_steps`` above 0.

    Attributes:
        steps: T_G; 0: no such images.
        hard_generation: whether the generator's loss is Co-Boosting's Eq. (6), in place of cross
            entropy.
        adversarial: weight of Co-Boosting's Eq. (7), by which images divide teacher and student.
        pool: of these images.
    """

    steps: NonNegativeInt = flat("generator_steps", 0)  # T_G of hard images; 0: none
    hard_generation: bool = True  # Co-Boosting's Eq. (6); False: cross entropy
    adversarial: NonNegative = 0.0  # weight of (7): images on which both disagree
    pool: PoolSettings = PoolSettings()


@settings()
@dataclass(frozen=True)
class Accord:
    """A teacher that weights clients by class and image, distilled through sketches."""

    paper: ClassVar[str] = "attar"
    cost: ClassVar[str] = (
        "one pass of every client over the sketches, then student steps;"
        " withheld counts: 40 passes a client"
    )
    needs: ClassVar[Needs] = NEEDS

    epochs: NonNegativeInt = 50  # T
    batch_size: PositiveInt = 128  # images in a batch
    teacher: TeacherSettings = TeacherSettings()
    guessing: Guessing = Guessing()
    sketching: Sketching = Sketching()
    drawn: NonNegativeInt = 6000  # images that decoders make, where some came
    start_from: Literal["average", "fresh"] = "average"  # of the clients of the student's net
    # clip bounds the gradients of both nets: the student starts trained, and images made against it
    # would break it; temperature 1: p is a probability, not a logit to be softened
    student: StudentTraining = StudentTraining(clip=1.0)
    averaging: Fraction = 0.98  # d of the mean of weights that is delivered; 0: the last weights
    hard_images: HardImages = HardImages()

    def __post_init__(self) -> None:
        if not self.hard_images.steps and not self.sketching.number:
            raise SettingsError(
                "The student would have nothing to learn from.",
                fix="ask for generator_steps, sketches or both",
            )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> AccordContext:
        """Put the teachers on the device, weight them, and allot the decoders' images."""
        strong = [upload for upload in uploads if "classifier" in upload.parts]
        weak = [upload for upload in uploads if "decoder" in upload.parts]
        context = prepare_context(strong, server, partial=bool(weak))
        return AccordContext(
            **vars(context),
            teacher=build_teacher(context, self.teacher),
            weak=weak,
            allotted=allocate_images(weak, server, self.drawn, 1.0, "classes"),
        )

    def start(self, context: AccordContext) -> AccordState:
        """The student, its running mean, and an empty pool for each kind of image."""
        hard = self.hard_images
        extras = answer_extras(context)
        pool = start_pool(
            context, hard.pool, self.epochs * self.batch_size if hard.steps else 0, extras
        )
        generator = start_generator(context, hard) if hard.steps else None
        base = start_data_free(
            context, self.student, self.epochs, pool, generator, start_from=self.start_from
        )
        as_bytes = PoolSettings(as_bytes=True)
        return AccordState(
            **vars(base),
            drawn=start_pool(context, PoolSettings(), int(context.allotted.sum()), extras),
            sketched=start_pool(context, as_bytes, self.sketching.number, extras),
            mean={name: weight.clone() for name, weight in base.student.state_dict().items()},
            learned=0,
        )

    def phases(self, context: AccordContext) -> Sequence[Phase]:
        """Guess counts and draw images where that is asked for, then the epochs."""
        phases = []
        if context.teacher.guesses:
            phases.append(guess_phase(context, self.guessing))
        if context.weak:
            phases.append(draw_phase(context, self.batch_size))
        if self.sketching.number:
            phases.append(sketch_phase(context, self.sketching.number, self.batch_size))
        sketched = self.sketching.of_epoch if self.sketching.number else 0
        work = epoch_cost(
            self.hard_images.steps,
            fixed_batches=(float(context.allotted.sum()) + sketched) / self.batch_size,
            grows=self.hard_images.steps > 0,
        )
        return [*phases, Phase("distil", self.epochs, partial(self.epoch, context), work)]

    def epoch(self, context: AccordContext, state: AccordState) -> Metrics:
        """One of T epochs."""
        metrics = {}
        if self.hard_images.steps:  # if a generator is asked for
            labels = self.draw_labels(context, state)
            batch = self.start_hard_images(context, state)
            with frozen(state.student):
                for _ in range(self.hard_images.steps):  # T_G times
                    loss = batch.step(labels)  # x <- G(z);  G <- Adam step
            add_to_pool(context, state, batch.images, labels)  # pool <- pool + x
            metrics["generator loss"] = loss
        losses = []
        for x, p in self.batches(state):  # of the pools and of sketches, with the teacher's p(x)
            loss = student_step(context, state, self.student, self.distillation_loss, x, p)
            losses.append(loss)
            state.learned += 1
            # mean <- d mean + (1 - d) student
            follow(state.mean, state.student, self.averaging, state.learned)
        state.schedule.step()
        return {**metrics, "loss": torch.stack(losses).mean()}

    def draw_labels(self, context: AccordContext, state: AccordState) -> Tensor:
        """Target labels of a batch, uniform over the classes that some classifier knows, (B,)."""
        known = context.teachers.known.any(0)
        return draw_labels(self.batch_size, context.num_classes, state.draws, context.device, known)

    def start_hard_images(self, context: AccordContext, state: AccordState) -> SyntheticBatch:
        """A batch of the generator on fresh noise."""
        return start_batch(
            context,
            state,
            self.generator_loss,
            self.hard_images,
            self.batch_size,
            clip=self.student.clip,
        )

    def batches(self, state: AccordState) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch: all of both pools, and some of the sketches.

        Yields:
            Images (B, C, H, W), and the teacher's answers log p(c|x) (B, C).
        """
        return chain(
            cached_batches(state.pool, self.batch_size, state.draws),
            cached_batches(state.drawn, self.batch_size, state.draws),
            sketch_batches(state.sketched, state.draws, self.sketching.of_epoch, self.batch_size),
        )

    def generator_loss(
        self, context: DistillationContext, state: AccordState, images: Tensor, labels: Tensor
    ) -> Tensor:
        """Co-Boosting's Eq. (6) of the teacher, or cross entropy; plus its Eq. (7)."""
        answers = context.ensemble(state, images, labels)
        loss = (
            hard_sample(answers, labels)
            if self.hard_images.hard_generation
            else F.cross_entropy(answers, labels)
        )
        if not self.hard_images.adversarial:
            return loss
        student = context.student_logits(state.student, images)
        return loss + self.hard_images.adversarial * adversarial(answers, student)

    def distillation_loss(
        self, context: DistillationContext, state: AccordState, images: Tensor, answers: Tensor
    ) -> Tensor:
        """T^2 KL(p(x) || f_S(x))."""
        student = context.student_logits(state.student, images)
        return distillation(student, answers, self.student.temperature)

    def result(self, context: AccordContext, state: AccordState) -> Result:
        """The mean student, the teacher, their images, and the sources of the shares."""
        result = student_result(context, state, weights=state.mean)
        teacher = context.teacher
        models = dict(result.models)
        if teacher.knows_all:  # else a class that decoders alone know is missing in the teacher
            models["teacher"] = teacher.deploy(state.guidance)
        images = dict(result.images)
        if self.sketching.number:
            images["sketches"] = state.sketched.newest(GALLERY)
        arrays = {"shares": teacher.shares(state.guidance)}
        return Result(models=models, arrays=arrays, images=images, remarks=teacher.remarks())
