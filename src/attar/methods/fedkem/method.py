"""FedKEM: clients send small knowledge networks; the server distils their ensemble into one.

Paper: D. P. Nguyen et al., Enhancing Heterogeneous Federated Learning with Knowledge Extraction
and Multi-Model Fusion, SC-W 2023.

    client k:  theta and theta_g teach each other, theta_g is sent          (Algorithm 1)
    server:    Theta(x) = max_k theta_g^k(x), element by element            (5)
               theta_g <- theta_g - eta gradient of KL(Theta || theta_g)    (4), Algorithm 2 line 11

The client's half is in training/mutual.py.

| symbol | here |
|---|---|
| theta_g^k | part "knowledge" of the uploads, or "classifier" |
| Theta | their ensemble by the rule ``ensemble`` |
| theta_g | ``KnowledgeState.knowledge``; starts as sent to the clients, else as their average |
| x | ``images``: the server's own ("public"), or "generated" against the mean of logits |
| eta | ``lr`` |

Departures:

- Algorithm 2 prints the fusion behind the loop over rounds; it belongs into every round.
- Learning rate, momentum, number of steps and number of server images are not given: the defaults
  are ours.
- ``variant="code"`` is the authors' code: half of the server's loss is the cross entropy of true
  labels, half ``server_distance="mse"`` (T = 20) to the mean of the probabilities, on 5,000 images
  that are drawn anew and augmented in each round, with a rate that falls to 0 in each round; at the
  clients ``peer="accumulated"`` and the distance of raw logits. Its server draws from all training
  images, the clients' own included: then the server is not without the clients' data.
- 4.2 names ResNet-18 as knowledge network, every caption ResNet-20.
- ``fusion="average"`` is the paper's first way of fusing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from attar.blocks.ensemble import Ensemble, build_mixture, use_knowledge_nets
from attar.blocks.execution import Outputs, Runner, eager, gradient_step, runner_for
from attar.blocks.images import Augment, apply_augmentation, draw_augmentation
from attar.blocks.student import (
    ASK_BATCH,
    StudentPlan,
    StudentSchedule,
    answer_phase,
    average_classifiers,
    distillation,
    new_student,
    next_batch,
    probability_gap,
    server_plan,
)
from attar.core import Images, Metrics, ModelSpec, Needs, Phase, Result, Server, Upload
from attar.methods.fedkem.generated_images import (
    GeneratedState,
    ImageGeneration,
    generate_phase,
    start_generation,
)
from attar.methods.fedkem.variants import Variant, draw_images, settings_of_variant
from attar.nets import to_shape
from attar.seeds import rng
from attar.settings import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    settings,
)
from attar.training import Distance, Mutual, Objective, Peer

SERVER_DISTANCES: dict[Distance, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": distillation,  # Eq. (4)
    "mse": probability_gap,  # the authors' code
}


@dataclass(frozen=True)
class Context:
    """What does not change.

    Attributes:
        uploads: the knowledge networks as classifiers.
        server: the task and the device.
        plan: the fused knowledge network without its weights.
        teacher: Theta.
        public: the server's images of this round, on the device; None where images are generated
            or not used.
        run: how steps run on the device.
    """

    uploads: Sequence[Upload]
    server: Server
    plan: StudentPlan
    teacher: Ensemble
    public: Images | None
    run: Runner


@dataclass
class KnowledgeState(GeneratedState):
    """The fused knowledge network, and the images on which it learns.

    Attributes:
        knowledge: theta_g.
        optimiser: of ``knowledge``.
        choices: (N, 3 or 4), how each image is augmented in this pass.
    """

    knowledge: nn.Module
    optimiser: Optimizer
    choices: Tensor


def public_images(context: Context, state: KnowledgeState, rows: Tensor | slice) -> Tensor:
    """Canonical images (B, C, H, W) that the server has."""
    assert context.public is not None, "needs.public_data was checked"
    pixels = context.public.pixels[rows].float() / 255
    return to_shape(pixels, context.server.task.input_shape)


def public_labels(context: Context, rows: Tensor) -> tuple[Tensor, ...]:
    """The labels (B,) of the images that the server has, where they are used; else nothing."""
    if context.public is None or context.public.labels is None:
        return ()
    return (context.public.labels[rows],)


def generated_images(context: Context, state: KnowledgeState, rows: Tensor | slice) -> Tensor:
    """Canonical images (B, C, H, W) that the server has generated."""
    return state.images[rows]


SERVER_IMAGES = {"public": public_images, "generated": generated_images}


@settings(settings_of_variant)
@dataclass(frozen=True)
class FedKem:
    """The ensemble of small knowledge networks is distilled into one (Nguyen et al. 2023)."""

    paper: ClassVar[str] = "Nguyen et al., SC-W 2023"
    cost: ClassVar[str] = "each image passes all knowledge networks once, then student steps"

    variant: Variant = "paper"  # whose settings: the paper's or its code's
    knowledge: str = "resnet20"  # theta_g
    # how the two nets of a client learn from each other, see training/objectives.py
    peer: Peer = "updated"
    distance: Distance = "kl"  # Eq. (2)
    # distil the clients' answers, or average their weights
    fusion: Literal["distil", "average"] = "distil"
    # Eq. (5)
    ensemble: Literal["max-logits", "mean-logits", "mean-probabilities", "vote"] = "max-logits"
    server_distance: Distance = "kl"  # Eq. (4)
    images: Literal["public", "generated"] = "public"  # the server's own, or made by a generator
    labels: Fraction = 0.0  # weight of the labels of public images beside (4)
    drawn: NonNegativeInt = 0  # public images of a round, drawn anew in each; 0: all in each
    augment: Augment = "none"  # of the server's images, anew in each pass over them
    steps: NonNegativeInt = 500  # of SGD on the student
    batch_size: PositiveInt = 64  # images in a batch
    lr: Positive = 0.01  # eta
    schedule: StudentSchedule = "constant"  # of eta; cosine: to 0 in each round
    momentum: NonNegative = 0.9  # of the student's SGD
    generation: ImageGeneration = ImageGeneration()

    def __post_init__(self) -> None:
        ModelSpec.parse(self.knowledge)

    @property
    def needs(self) -> Needs:
        """Knowledge networks, of one kind for an average; images at the server for Eq. (4)."""
        averages = self.fusion == "average"
        public = self.fusion == "distil" and self.images == "public"
        return Needs(
            parts=("knowledge", "classifier"),
            same_architecture=averages,
            different_classes=not averages,
            student=not averages,
            public_data=public,
            public_labels=public and self.labels > 0,
        )

    @property
    def objective(self) -> Objective:
        """What clients minimise: Algorithm 1, with a net of their own beside theta_g."""
        return Objective(mutual=Mutual(ModelSpec.parse(self.knowledge), self.peer, self.distance))

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Put Theta, and the server's images if they are used, on the device."""
        classifiers = use_knowledge_nets(uploads)
        mixture = build_mixture(self.ensemble, classifiers, server.task.classes)
        public = server.public if self.needs.public_data else None
        if public is not None:
            public = draw_images(public, self.drawn, server.seed)
            public = public.on(server.device, labelled=self.labels > 0)
        return Context(
            uploads=classifiers,
            server=server,
            plan=server_plan(server),
            teacher=Ensemble(mixture).to(server.device),
            public=public,
            run=runner_for(server.device),
        )

    def start(self, context: Context) -> KnowledgeState:
        """theta_g, and a generator if the server has no images."""
        server = context.server
        image_generator: nn.Module | None = None
        generated = torch.zeros(0)
        if context.public is None and self.fusion == "distil":
            image_generator, generated = start_generation(self.generation, server)
        number = len(generated if context.public is None else context.public.pixels)
        net = new_student(context.plan, context.uploads, server, "average").train()
        return KnowledgeState(
            answers=torch.zeros(number, len(server.task.classes), device=server.device),
            order=torch.arange(number, device=server.device),
            draws=rng(server.seed, "fedkem"),
            generator=image_generator,
            images=generated,
            knowledge=net,
            optimiser=SGD(net.parameters(), lr=self.lr, momentum=self.momentum),
            choices=torch.zeros_like(self.draw_choices(number, context, rng(0))),
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        """Generate images if the server has none, ask Theta about them, distil."""
        if self.fusion == "average":
            return ()
        number = self.generation.images if context.public is None else len(context.public.pixels)
        cost_of_image = len(context.uploads) / (3 * self.batch_size)
        distil = Phase("distil", self.steps, partial(self.epoch, context))
        # images that are augmented are asked about in each pass; labels alone need no answers
        asked_once = self.augment == "none" and self.labels < 1
        ask = answer_phase("ask", number, partial(self.ask, context), cost_of_image)
        learn = [ask, distil] if asked_once else [distil]
        if self.images == "public":
            return learn
        teachers = context.teacher.teachers
        generate = generate_phase(
            self.generation, self.batch_size, teachers, context.server, context.run
        )
        return [generate, *learn]

    def server_images(
        self, context: Context, state: KnowledgeState, rows: Tensor | slice
    ) -> Tensor:
        """x: canonical images (B, C, H, W), augmented as this pass augments them."""
        images = SERVER_IMAGES[self.images](context, state, rows)
        if self.augment == "none":
            return images
        return apply_augmentation(images, state.choices[rows])

    def ask(self, context: Context, state: KnowledgeState, rows: slice) -> None:
        """Store Theta(x), Eq. (5), of some of the images."""

        def answer(images: Tensor) -> Outputs:
            return (context.teacher(images).float(),)

        images = self.server_images(context, state, rows)
        run = eager if self.augment == "none" else context.run  # who asks often records it
        (state.answers[rows],) = run("ask", answer, (images,), (context.teacher,))

    def draw_choices(self, number: int, context: Context, draws: torch.Generator) -> Tensor:
        """How each of a number of images is augmented, on the server's device."""
        return draw_augmentation(self.augment, number, draws).to(context.server.device)

    def begin_pass(self, context: Context, state: KnowledgeState) -> None:
        """Augment all images anew and ask Theta about them."""
        number = len(state.order)
        state.choices = self.draw_choices(number, context, state.draws)
        if self.labels == 1:
            return
        with torch.no_grad():
            for first in range(0, number, ASK_BATCH):
                self.ask(context, state, slice(first, min(first + ASK_BATCH, number)))

    def rate(self, step: int) -> float:
        """eta of a step, counted from 0 in each round."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * step / self.steps)) / 2

    def epoch(self, context: Context, state: KnowledgeState) -> Metrics:
        """One step of Algorithm 2, line 11; phase "distil" repeats it."""
        batches = len(state.order) // min(self.batch_size, len(state.order))
        if self.augment != "none" and state.step % batches == 0:
            self.begin_pass(context, state)
        rows = next_batch(state, self.batch_size)
        images = self.server_images(context, state, rows)  # x
        answers = state.answers[rows]  # Theta(x), Eq. (5)
        labels = public_labels(context, rows)  # none for images without labels

        def loss(images: Tensor, answers: Tensor, *labels: Tensor) -> Tensor:
            student = context.plan.logits(state.knowledge, images)  # theta_g(x)
            return self.loss(student, answers, *labels)  # Eq. (4)

        # theta_g <- theta_g - eta gradient of L_d(Theta, theta_g)
        state.optimiser.param_groups[0]["lr"] = self.rate(state.step)
        inputs = (images, answers, *labels)
        last = gradient_step(context.run, "learn", state.optimiser, loss, inputs, [state.knowledge])
        return {"loss": last}

    def loss(self, student: Tensor, answers: Tensor, labels: Tensor | None = None) -> Tensor:
        """L_d, Eq. (4), of a batch; with labels, as in the authors' code, mixed with their CE.

        Args:
            student: (B, C) logits theta_g(x).
            answers: (B, C) logits Theta(x).
            labels: (B,) classes, where images with labels are used.
        """
        if labels is not None and self.labels == 1:
            return F.cross_entropy(student, labels)
        distance = SERVER_DISTANCES[self.server_distance](student, answers)
        if labels is None:
            return distance
        return (1 - self.labels) * distance + self.labels * F.cross_entropy(student, labels)

    def result(self, context: Context, state: KnowledgeState) -> Result:
        """The fused knowledge network, and which images were used for it."""
        if self.fusion == "average":
            return average_result(context)
        return distil_result(context, state, drawn_anew=self.drawn > 0)


def average_result(context: Context) -> Result:
    """The average of the knowledge networks' weights."""
    return Result(
        {"knowledge": average_classifiers(context.uploads)}, remarks=("Server images: none.",)
    )


def distil_result(context: Context, state: KnowledgeState, *, drawn_anew: bool) -> Result:
    """The distilled knowledge network, and the images that were used for it."""
    number = len(state.order)
    public = context.public
    if public is None:
        source = f"{number:,} generated against the clients' knowledge networks"
    else:
        kind = "unlabelled" if public.labels is None else "labelled"
        drawn = "drawn for this round " if drawn_anew else ""
        source = f"{number:,} {kind} {drawn}from {public.source}"
    return Result(
        {"knowledge": context.plan.part(state.knowledge)},
        remarks=(f"Server images: {source}.",),
    )
