"""Rows that no federation could have, because they see real images.

They bound what a method can reach, and exist in the bench alone.

    oracle-weights   the ensemble's weights, learned on real labelled images that were held out
                     (Co-Boosting Fig. 1b, "real")
    central          one net trained on the images of all clients together
    local            a client's own net (no oracle: it sees its own images)

The student distilled from the ensemble on real images that were held out (Fig. 1c, "real") is
FedDF, and a row of ``feddf``.

Departures. The paper says neither how its weights on real data are found nor which images they
see. Ours minimise the cross-entropy of A_w(x) = sum_k w_k f_k(x) by Adam over the softmax of
free numbers, on the images that the federation holds out for FedDF.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from attar.blocks.ensemble import Teachers, combine
from attar.blocks.student import ASK_BATCH
from attar.core import (
    AnyMethod,
    Metrics,
    Mixture,
    Needs,
    Part,
    Phase,
    Result,
    Server,
    State,
    Upload,
)
from attar.methods import METHODS
from attar.nets import to_shape
from attar.settings import NonNegativeInt, Positive, settings

LOCAL, CENTRAL = "local", "central"
SEES = {
    "oracle-weights": "labelled real images that were held out",
    CENTRAL: "the images of all clients",
}


@dataclass(frozen=True)
class Context:
    """What does not change while the weights are learned.

    Attributes:
        members: The clients' classifiers.
        server: The task and the device.
        labels: int64 (N,), of the held-out images.
        logits: (K, N, C), of the clients.
        known: bool (K, C), the classes that each client knows.
    """

    members: tuple[Part, ...]
    server: Server
    labels: Tensor
    logits: Tensor
    known: Tensor


class Scores(nn.Module):
    """One free number for each client: w = softmax(scores)."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(clients))

    def forward(self) -> Tensor:
        return self.values.softmax(0)


@dataclass
class WeightsState(State):
    """The scores and what updates them."""

    scores: Scores
    optimiser: Optimizer


@settings()
@dataclass(frozen=True)
class OracleWeights:
    """An ensemble whose weights are learned on real held-out images (Co-Boosting Fig. 1b)."""

    paper: ClassVar[str] = "Dai et al., ICLR 2024, Fig. 1b"
    cost: ClassVar[str] = "each image passes all clients once"

    steps: NonNegativeInt = 500
    lr: Positive = 0.05

    @property
    def needs(self) -> Needs:
        return Needs(public_data=True, student=False)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context:
        public = server.public
        assert public is not None, "needs.public_data was checked"
        assert public.labels is not None, "the bench gives oracles labelled images"
        members = tuple(upload.parts["classifier"] for upload in uploads)
        teachers = Teachers(members, server.task.classes).to(server.device)
        images = to_shape(public.pixels.to(server.device).float() / 255, server.task.input_shape)
        with torch.no_grad():
            logits = torch.cat([teachers(batch).float() for batch in images.split(ASK_BATCH)], 1)
        return Context(
            members=members,
            server=server,
            labels=public.labels.to(server.device),
            logits=logits,
            known=teachers.known,
        )

    def start(self, context: Context) -> WeightsState:
        scores = Scores(len(context.members)).to(context.server.device)
        return WeightsState(scores, Adam(scores.parameters(), lr=self.lr))

    def phases(self, context: Context) -> Sequence[Phase]:
        def learn(state: WeightsState) -> Metrics:
            state.optimiser.zero_grad()
            ensemble = combine("logits", context.logits, context.known, state.scores())
            loss = F.cross_entropy(ensemble, context.labels)
            loss.backward()
            state.optimiser.step()
            return {"loss": loss.detach()}

        return (Phase("learn", self.steps, learn),)

    def result(self, context: Context, state: WeightsState) -> Result:
        weights = state.scores().detach().cpu()
        learned = Mixture(context.members, "logits", weights, context.server.task.classes)
        return Result(
            {"ensemble": learned},
            {"weights": weights},
            remarks=(f"oracle: sees {SEES['oracle-weights']}",),
        )


ORACLES: dict[str, type[AnyMethod]] = {"oracle-weights": OracleWeights}


def find_kind(method: str) -> type[AnyMethod] | None:
    """The class of a method or an oracle; None where it is not available."""
    return ORACLES.get(method) or METHODS.get(method)
