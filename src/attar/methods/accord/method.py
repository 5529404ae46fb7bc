"""Accord: a teacher that knows who knows what, distilled through sketches. A method of our own.

    p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / t)_c                                          the teacher

    s_kc      how much client k's word counts about class c: from label counts, sent or, where they were withheld, guessed by
              inversion; with no gate, times belief in whoever saw little else
    gate_k    softmax over k of -b z_k(x), how familiar x looks to client k: from feature statistics, or from BatchNorm, or left out
    t         a temperature on every client's probabilities

    where counts must be guessed: for client k and class c move pixels down CE(f_k(x), c);  u = (max_k - min) / min of that
        loss, max_k the client's highest of any class;  n_kc = n_k u_kc / sum_c u_kc
    where decoders came: their images, with the labels they were drawn for, are a pool of their own
    draw sketches, images of a program's making, and ask the teacher about them once
    repeat for T epochs:
        where a generator is asked for, T_G times: x <- G(z);  G <- Adam step on the hard-sample loss of the teacher; x joins a pool
        for batches x of sketches, every class equally often, and all batches of the pools:
            student <- SGD step on T^2 KL(p(x) || f_S(x));  mean <- d mean + (1 - d) student
    deliver the mean

The student starts from the average of clients of its kind. Inversion is FedHydra's (Bai, Song et
al.), decoders are FedMHO's (Yao et al.), hard images Co-Boosting's (Dai et al. 2024).
docs/methods/accord.md derives every factor and says what each costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.images import Keep, allot, draw_labels
from attar.blocks.student import (
    GALLERY,
    Schedule,
    adversarial,
    distillation,
    follow,
    generate,
    hard_sample,
    learn,
    open_classroom,
    remember,
    remembered,
    student_result,
    work_of_epoch,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.errors import SettingsError
from attar.methods.accord.phases import (
    AccordState,
    Context,
    preparations,
    sketch_batches,
    start_accord,
)
from attar.methods.accord.teacher import Shares, Teacher, Use, build_teacher
from attar.settings import require

NEEDS = Needs(
    parts=("classifier", "decoder"), at_least=(("classifier", 1),), label_counts_with=("decoder",)
)


@dataclass(frozen=True)
class Accord:
    """A teacher that knows who holds what and to whom an image looks familiar, distilled through
    sketches (ours).
    """

    paper: ClassVar[str] = "attar"
    cost: ClassVar[str] = (
        "one pass of every client over the sketches, then student steps; withheld counts: 40 passes a client"
    )
    needs: ClassVar[Needs] = NEEDS

    epochs: int = 50  # T
    batch_size: int = 128
    student_lr: float = 0.01
    # what of the uploads may be used: "models" alone, with label "counts", with "statistics"
    use: Use = "all"
    shares: Shares = "sent"  # "guessed" by inversion although they were sent, or "even": left out
    familiarity: float = 0.25  # b of the gate from statistics; 0: none
    spread: float = 1.0  # b of the gate from BatchNorm, where there are no statistics; 0: none
    teacher_temperature: float = 1.5  # t
    guess_steps: int = 20  # of the inversion that guesses withheld counts
    guess_lr: float = 0.05
    repeats: int = 2  # its beginnings
    guidance_floor: float = 1e-4
    sketches: int = 12000  # images that a program draws; 0: none
    sketches_of_epoch: int = 2560  # so many of them are learned in every epoch
    averaging: float = (
        0.98  # d of the mean of the student's weights that is delivered; 0: its last ones
    )
    start_from: Literal["average", "fresh"] = "average"  # of the clients whose net is the student's
    drawn: int = 6000  # images that decoders make, where some came
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    temperature: float = 1.0  # of the distillation: p is a probability, not a logit to be softened
    clip: float | None = (
        # of both nets' gradients: the student starts trained, and images made against it would
        # break it
        1.0
    )
    generator_steps: int = 0  # T_G of hard images beside the sketches; 0: none
    generator_lr: float = 1e-3
    hard_generation: bool = True
    adversarial: float = 0.0  # how much these images shall divide teacher and student
    noise: int = 256
    generator_width: int = 64
    beta1: float = 0.9
    reset_generator: bool = False
    train_noise: bool = False
    keep: Keep = "last"
    pool_limit: int | None = None
    pool_bytes: bool = False

    def __post_init__(self) -> None:
        zero = "epochs generator_steps momentum weight_decay familiarity spread adversarial sketches averaging drawn beta1"
        require(self, may_be_zero=zero, at_most_one="averaging")
        if not self.generator_steps and not self.sketches:
            raise SettingsError(
                "The student would have nothing to learn from.",
                fix="ask for generator_steps, sketches or both",
            )

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        weak = [upload for upload in uploads if "decoder" in upload.parts]
        room = open_classroom(
            [upload for upload in uploads if "classifier" in upload.parts],
            server,
            partial=bool(weak),
        )
        teacher = build_teacher(
            room,
            use=self.use,
            shares=self.shares,
            familiarity=self.familiarity,
            spread=self.spread,
            temperature=self.teacher_temperature,
        )
        return Context(teacher, weak, allot(weak, server, self.drawn, 1.0, "classes"))

    def start(self, context: Context) -> AccordState:
        return start_accord(context, self, start_from=self.start_from)

    def phases(self, context: Context) -> Sequence[Phase]:
        fixed = (
            float(context.allotted.sum()) + self.sketches_of_epoch * bool(self.sketches)
        ) / self.batch_size
        work = work_of_epoch(self.generator_steps, fixed, grows=self.generator_steps > 0)
        learning = Phase(
            "distil", self.epochs, lambda state: self._epoch(context.teacher, state), work
        )
        return [*preparations(context, self), learning]

    def _epoch(self, teacher: Teacher, state: AccordState) -> Metrics:
        room = teacher.context

        def generator_loss(images: Tensor, labels: Tensor) -> Tensor:
            answers = teacher.answer(images, state)
            loss = (
                hard_sample(answers, labels)
                if self.hard_generation
                else F.cross_entropy(answers, labels)
            )
            if not self.adversarial:
                return loss
            return loss + self.adversarial * adversarial(
                answers, room.plan.logits(state.student, images)
            )

        def distil(x: Tensor, answers: Tensor) -> Tensor:
            return distillation(room.plan.logits(state.student, x), answers, self.temperature)

        told = dict[str, Tensor]()
        if self.generator_steps:
            labels = draw_labels(
                self.batch_size,
                room.num_classes,
                state.draws,
                room.device,
                room.teachers.known.any(0),
            )
            images, told["generator loss"] = generate(room, self, state, generator_loss, labels)
            remember(room, state, images, labels, lambda x, _: teacher.answer(x, state))
        made_up, drawn, losses = remembered(self, state), remembered(self, state, state.drawn), []
        for batch in chain(
            made_up,
            drawn,
            sketch_batches(state.sketched, state.draws, self.sketches_of_epoch, self.batch_size),
        ):
            losses.append(learn(room, self, state, distil, *batch))
            state.learned += 1
            follow(state.mean, state.student, self.averaging, state.learned)
        state.schedule.step()
        return {**told, "loss": torch.stack(losses).mean()}

    def result(self, context: Context, state: AccordState) -> Result:
        made, teacher = (
            student_result(context.teacher.context, state, weights=state.mean),
            context.teacher,
        )
        whole = (
            teacher.knows_all
        )  # a class that decoders alone know is learned, but not from a teacher
        models = {**made.models, **({"teacher": teacher.deploy(state.guidance)} if whole else {})}
        images = {
            **made.images,
            **({"sketches": state.sketched.newest(GALLERY)} if self.sketches else {}),
        }
        return Result(models, {"shares": teacher.shares(state.guidance)}, images, teacher.remarks())
