"""FedKEM: small knowledge networks travel, are fused by distilling their ensemble, and teach
every client's own model at home.

Paper: D. P. Nguyen et al., Enhancing Heterogeneous Federated Learning with Knowledge Extraction
and Multi-Model Fusion, SC-W 2023.

    client k:  theta and theta_g teach each other, theta_g is sent               (Algorithm 1: local/mutual.py)
    server:    Theta(x) = max_k theta_g^k(x), element by element                  (5)
               theta_g <- theta_g - eta gradient of KL(Theta, theta_g), repeatedly (4), Algorithm 2 line 11

| symbol | here |
|---|---|
| theta_g^k, Theta | part "knowledge" of the uploads (or "classifier"), their ensemble by the rule ``ensemble`` |
| theta_g | starts as what was sent to the clients; without that, as the clients' average |
| images of (4) | ``images``: the server's own ("public"), or "generated" against the mean of logits (blocks/imagine.py) |

Departures. Algorithm 2 prints the fusion behind the loop over rounds; it belongs into every
round. Learning rate, momentum, number of steps and of server images are not given: these
settings are ours. The authors' code distils on *labelled training images*, half of the loss on
their labels, half (T = 20) ``server_distance="mse"`` to the ``ensemble="mean-probabilities"``:
with ``labels=0.5`` that is its server, and the record says so; but its 5,000 images are drawn
anew and its lr falls in each round, ours stay. 4.2 names ResNet-18 as knowledge network, every
caption ResNet-20. ``fusion="average"`` is the paper's first way of fusing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from attar.blocks.ensemble import Ensemble, as_classifiers, build_mixture
from attar.blocks.execution import Run, gradient_step, run_on
from attar.blocks.student import (
    StudentPlan,
    ask_phase,
    averaged,
    distillation,
    new_student,
    next_batch,
    probability_gap,
    server_plan,
)
from attar.core import Images, Metrics, ModelSpec, Needs, Phase, Result, Server, Upload
from attar.methods.fedkem.generated_images import ImaginedState, imagine_phase, studio
from attar.nets import to_shape
from attar.seeds import generator
from attar.settings import require
from attar.training import Distance, Mutual, Objective, Peer


@dataclass(frozen=True)
class Context:
    uploads: Sequence[Upload]  # knowledge networks as classifiers
    server: Server
    plan: StudentPlan
    teacher: Ensemble  # Theta
    shown: Images | None  # on the device; None: images are generated, or none are used
    run: Run


@dataclass
class KnowledgeState(ImaginedState):
    knowledge: nn.Module  # theta_g
    optimiser: Optimizer


@dataclass(frozen=True)
class FedKem:
    """Distils the ensemble of small knowledge networks, which teach each client's own model at
    home (Nguyen et al. 2023).
    """

    paper: ClassVar[str] = "Nguyen et al., SC-W 2023"
    cost: ClassVar[str] = "each image passes all knowledge networks once, then student steps"

    knowledge: str = "resnet20"  # theta_g
    peer: Peer = (
        "updated"  # how the two nets of a client learn from each other, see local/objectives.py
    )
    distance: Distance = "kl"  # Eq. (2)
    fusion: Literal["distil", "average"] = "distil"
    ensemble: Literal["max-logits", "mean-logits", "mean-probabilities", "vote"] = (
        "max-logits"  # Eq. (5)
    )
    server_distance: Distance = "kl"  # Eq. (4)
    images: Literal["public", "generated"] = "public"
    labels: float = 0.0  # weight of the labels of public images beside (4)
    steps: int = 500
    batch_size: int = 64
    lr: float = 0.01  # eta
    momentum: float = 0.9
    generated: int = 5000  # images
    generator_steps: int = 30  # for each batch of them
    generator_lr: float = 1e-3
    noise: int = 256
    generator_width: int = 64

    def __post_init__(self) -> None:
        require(self, may_be_zero="labels steps momentum", at_most_one="labels")
        ModelSpec.parse(self.knowledge)

    @property
    def needs(self) -> Needs:
        alike, shown = self.fusion == "average", self.fusion == "distil" and self.images == "public"
        truth = shown and self.labels > 0
        return Needs(("knowledge", "classifier"), same_architecture=alike, different_classes=not alike, student=not alike,
                     public_data=shown, public_labels=truth)  # fmt: skip

    @property
    def objective(self) -> Objective:
        return Objective(mutual=Mutual(ModelSpec.parse(self.knowledge), self.peer, self.distance))

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        sent = as_classifiers(uploads)
        teacher = Ensemble(build_mixture(self.ensemble, sent, server.task.classes)).to(
            server.device
        )
        asked = server.public if self.needs.public_data else None
        shown = None if asked is None else asked.on(server.device, labelled=self.labels > 0)
        return Context(sent, server, server_plan(server), teacher, shown, run_on(server.device))

    def start(self, context: Context) -> KnowledgeState:
        server, painter, images = context.server, None, torch.zeros(0)
        if context.shown is None and self.fusion == "distil":
            painter, images = studio(self, server)
        number = len(images if context.shown is None else context.shown.pixels)
        net = new_student(context.plan, context.uploads, server, "average").train()
        answers = torch.zeros(number, len(server.task.classes), device=server.device)
        order, draws = torch.arange(number, device=server.device), generator(server.seed, "fedkem")
        descent = SGD(net.parameters(), lr=self.lr, momentum=self.momentum)
        return KnowledgeState(answers, order, draws, painter, images, net, descent)

    def phases(self, context: Context) -> Sequence[Phase]:
        if self.fusion == "average":
            return ()
        shown = context.shown

        def images(state: KnowledgeState, rows: Tensor | slice) -> Tensor:
            if shown is None:
                return state.images[rows]
            return to_shape(shown.pixels[rows].float() / 255, context.server.task.input_shape)

        def distil(state: KnowledgeState) -> Metrics:
            rows = next_batch(state, self.batch_size)

            def loss(images: Tensor, answers: Tensor, *truth: Tensor) -> Tensor:
                logits = context.plan.logits(state.knowledge, images)
                kept = (distillation if self.server_distance == "kl" else probability_gap)(
                    logits, answers
                )  # Eq. (4)
                return (
                    (1 - self.labels) * kept + self.labels * F.cross_entropy(logits, truth[0])
                    if truth
                    else kept
                )

            truth = () if shown is None or shown.labels is None else (shown.labels[rows],)
            inputs = (images(state, rows), state.answers[rows], *truth)
            return {
                "loss": gradient_step(
                    context.run, "learn", state.optimiser, loss, inputs, [state.knowledge]
                )
            }

        number = self.generated if shown is None else len(shown.pixels)
        ask = ask_phase(context.teacher, images, number, len(context.uploads), self.batch_size)
        first = (
            ()
            if shown is not None
            else (imagine_phase(self, context.teacher.teachers, context.server, context.run),)
        )
        return [*first, ask, Phase("distil", self.steps, distil)]

    def result(self, context: Context, state: KnowledgeState) -> Result:
        if self.fusion == "average":
            return Result(
                {"knowledge": averaged(context.uploads)}, remarks=("Server images: none.",)
            )
        source = f"{len(state.order):,} generated against the clients' knowledge networks"
        if (shown := context.shown) is not None:
            source = f"{len(state.order):,} {'unlabelled' if shown.labels is None else 'labelled'} from {shown.source}"
        return Result(
            {"knowledge": context.plan.part(state.knowledge)},
            remarks=(f"Server images: {source}.",),
        )
