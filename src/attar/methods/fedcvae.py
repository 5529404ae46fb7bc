"""FEDCVAE-ENS and FEDCVAE-KD: clients send CVAE decoders, a fresh classifier learns their images.

Paper: C. E. Heinbaugh et al., Data-Free One-Shot Federated Learning Under Very High Statistical
Heterogeneity, ICLR 2023; "FEDCVAE" in FedMHO's tables is ENS.

    ENS: D_s <- S images of the clients' decoders, by data amount and label counts,
                with z ~ truncated normal
         w   <- CE on D_s

    KD:  D_k <- S images of the clients' decoders, as for ENS
         theta <- reconstruction loss on D_k, at the (z, y) of which its images were made
         D_s <- S images of the server's decoder theta, equally many of each class
         w   <- CE on D_s

| symbol | here |
|---|---|
| S, D_s, w | ``samples``; ``CvaeState.pool`` and ``student`` |
| D_k, theta | ``CvaeState.lessons`` and ``decoder``, of KD alone |

Departures:

- The paper was not at hand; the settings are those of the authors' code (there ``truncation`` is 1
  by default and 3 in the tuning script). The numbers of images and epochs are those of FedMHO's
  code (the authors': 5,000 images, 10 or 5 epochs).
- FedMHO's code draws equally many images of each class, and from clients by squared counts, for its
  FEDCVAE, too: ``allocation``, ``count_exponent``.
- The numbers of images per client and class are the expected ones, not drawn.
- The code enlarges images to 32 x 32 and has a CVAE of its own; here decoders are those that the
  clients sent.
- Of a code, a decoder with a smaller latent size uses the first entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from attar.blocks.execution import gradient_step
from attar.blocks.images import Allocation, Pool, apportion, draw_codes, new_decoder
from attar.blocks.student import (
    SyntheticSet,
    SyntheticState,
    add_class,
    blank_grids,
    fill_grid_row,
    mean_loss,
    new_student,
    plan_synthetic_set,
    reconstruction,
)
from attar.core import Metrics, Needs, Phase, Result, Server, Upload
from attar.nets.cvae import Decoder
from attar.seeds import rng
from attar.settings import NonNegative, NonNegativeInt, Positive, PositiveInt, settings

CLIENTS_GRID = "synthetic"
SERVER_GRID = "of the server's decoder"


@dataclass(frozen=True)
class Context:
    """What does not change.

    Attributes:
        synthetic: which client's decoder makes how many images, and the student.
        latent: length of the codes that clients and server share (KD); None for ENS.
        codes: (S, latent) codes of the clients' images, in their order (KD); empty for ENS.
        server_counts: images of each class from the server's decoder (KD).
        identity: (C, C), whose rows are the one-hot labels that decoders expect.
    """

    synthetic: SyntheticSet
    latent: int | None
    codes: Tensor
    server_counts: Sequence[int]
    identity: Tensor


@dataclass
class CvaeState(SyntheticState):
    """A student, its synthetic images, and the server's decoder of KD.

    Attributes:
        lessons: the clients' images, from which the server's decoder learns (KD).
        decoder: the server's own (KD); None for ENS.
        decoder_optimiser: of ``decoder``.
    """

    lessons: Pool
    decoder: nn.Module | None
    decoder_optimiser: Optimizer | None


@settings()
@dataclass(frozen=True)
class FedCvae:
    """A fresh classifier learns from images of every client's decoder (Heinbaugh et al. 2023)."""

    paper: ClassVar[str] = "Heinbaugh et al., ICLR 2023"
    cost: ClassVar[str] = "a set of images, then epochs over it"
    needs: ClassVar[Needs] = Needs(parts=("decoder",), label_counts_with=("decoder",))

    mode: Literal["ens", "kd"] = "ens"  # ens: all decoders; kd: one decoder learned from them
    samples: PositiveInt = 6000  # S
    epochs: NonNegativeInt = 20  # of the student on the images
    batch_size: PositiveInt = 32  # images in a batch
    lr: Positive = 1e-3  # of Adam on the student
    truncation: Positive | None = 3.0  # of z, on both sides; none: not truncated
    allocation: Allocation = "labels"  # of the clients' images to classes
    count_exponent: NonNegative = 1.0  # of a client's counts when images are shared out; 0: equally
    decoder_epochs: NonNegativeInt = 20  # of the server's decoder (KD)
    decoder_lr: Positive = 1e-3  # of Adam on the one decoder (kd)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        """Decide which decoder makes how many images, and draw the codes of KD."""
        synthetic = plan_synthetic_set(
            uploads, server, self.samples, self.count_exponent, self.allocation
        )
        identity = torch.eye(len(synthetic.plan.classes), device=server.device)
        if self.mode == "ens":
            return Context(
                synthetic=synthetic,
                latent=None,
                codes=torch.zeros(0),
                server_counts=(),
                identity=identity,
            )
        latent = synthetic.decoders.largest_latent()
        codes = [
            synthetic.decoders.draw_codes(row, column, number, self.truncation, latent)
            for column, numbers in enumerate(synthetic.image_counts.T.tolist())
            for row, number in enumerate(numbers)
        ]
        made = torch.tensor(synthetic.class_counts) > 0
        return Context(
            synthetic=synthetic,
            latent=latent,
            codes=torch.cat(codes).to(server.device),
            server_counts=apportion(made.double(), self.samples).tolist(),
            identity=identity,
        )

    def start(self, context: Context) -> CvaeState:
        """A fresh student, empty pools, and for KD a fresh decoder."""
        synthetic = context.synthetic
        server = synthetic.server
        shape = server.task.input_shape
        student = new_student(synthetic.plan, (), server).train()
        decoder = new_decoder(synthetic.decoders) if self.mode == "kd" else None
        return CvaeState(
            student=student,
            optimiser=Adam(student.parameters(), lr=self.lr),
            pool=Pool(shape, self.samples, server.device),
            sheets=blank_grids(server, CLIENTS_GRID, SERVER_GRID),
            draws=rng(server.seed, "fedcvae"),
            answers={},
            lessons=Pool(shape, 1 if decoder is None else self.samples, server.device),
            decoder=decoder,
            decoder_optimiser=(
                None if decoder is None else Adam(decoder.parameters(), lr=self.decoder_lr)
            ),
        )

    def phases(self, context: Context) -> Sequence[Phase]:
        """Those of ``mode``."""
        return self.kd_phases(context) if self.mode == "kd" else self.ens_phases(context)

    def ens_phases(self, context: Context) -> Sequence[Phase]:
        """FEDCVAE-ENS."""

        def generate(state: CvaeState) -> Metrics:
            return self.generate(context, state, state.pool)  # D_s

        work = sum(context.synthetic.class_counts) / 3
        return [
            Phase("generate", 1, generate, lambda _: work, learns=False),
            self._train_phase(context),
        ]

    def kd_phases(self, context: Context) -> Sequence[Phase]:
        """FEDCVAE-KD."""

        def generate(state: CvaeState) -> Metrics:
            return self.generate(context, state, state.lessons)  # D_k

        fit = partial(self.fit_decoder, context)
        again = partial(self.generate_again, context)
        work = sum(context.synthetic.class_counts) / 3
        work_again = sum(context.server_counts) / 3
        samples = float(self.samples)
        return [
            Phase("generate", 1, generate, lambda _: work, learns=False),
            Phase("fit decoder", self.decoder_epochs, fit, lambda _: samples, learns=False),
            Phase("generate again", 1, again, lambda _: work_again, learns=False),
            self._train_phase(context),
        ]

    def _train_phase(self, context: Context) -> Phase:
        work = float(sum(context.synthetic.class_counts))
        return Phase("train", self.epochs, partial(self.epoch, context), lambda _: work)

    def generate(self, context: Context, state: CvaeState, pool: Pool) -> Metrics:
        """S images of the clients' decoders, class by class, into a pool of the state."""
        synthetic = context.synthetic
        for label in range(len(synthetic.class_counts)):
            images = synthetic.generate(label, self.truncation, context.latent)
            add_class(pool, images, label)
            fill_grid_row(state.sheets[CLIENTS_GRID], label, images)
        return {}

    def fit_decoder(self, context: Context, state: CvaeState) -> Metrics:
        """KD: one epoch of the server's decoder on the clients' images D_k."""
        pool = state.lessons
        decoder = _server_decoder(state)
        assert state.decoder_optimiser is not None, "made with the decoder"

        def loss(places: Tensor) -> Tensor:
            codes = context.codes[places, : decoder.latent]  # z
            labels = context.identity[pool.labels(places)]  # y
            return reconstruction(decoder.logits(codes, labels), pool.images(places)).mean()

        losses = []
        for run, places in context.synthetic.batches(pool, self.batch_size, state.draws):
            batch_loss = gradient_step(
                run, "fit decoder", state.decoder_optimiser, loss, (places,), (state, pool)
            )
            losses.append(batch_loss)
        return mean_loss(losses)

    @torch.no_grad()
    def generate_again(self, context: Context, state: CvaeState) -> Metrics:
        """KD: S images of the server's decoder, equally many of each class, are D_s."""
        server = context.synthetic.server
        decoder = _server_decoder(state)
        for label, number in enumerate(context.server_counts):
            draws = rng(server.seed, "codes", label)
            codes = draw_codes(number, decoder.latent, self.truncation, draws).to(server.device)
            labels = context.identity[label].expand(number, -1)
            images: Tensor = decoder(codes, labels)
            add_class(state.pool, images, label)
            fill_grid_row(state.sheets[SERVER_GRID], label, images)
        return {}

    def epoch(self, context: Context, state: CvaeState) -> Metrics:
        """ENS and KD: one epoch of the classifier w on D_s with CE."""
        synthetic = context.synthetic
        pool = state.pool

        def loss(places: Tensor) -> Tensor:
            logits = synthetic.plan.logits(state.student, pool.images(places))
            return F.cross_entropy(logits, pool.labels(places))

        losses = []
        for run, places in synthetic.batches(pool, self.batch_size, state.draws):
            batch_loss = gradient_step(
                run, "train", state.optimiser, loss, (places,), (state, pool)
            )
            losses.append(batch_loss)
        return mean_loss(losses)

    def result(self, context: Context, state: CvaeState) -> Result:
        """The student, and sample grids of the images."""
        return context.synthetic.result(state)


def _server_decoder(state: CvaeState) -> Decoder:
    decoder = state.decoder
    assert isinstance(decoder, Decoder), "KD has a decoder at the server"
    return decoder
