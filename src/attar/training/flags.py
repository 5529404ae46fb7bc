"""Settings of local training as they come from flags and recipes, and the trainings that they
stand for.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attar.blocks.images import Augment
from attar.core import ModelSpec, Part
from attar.errors import SettingsError
from attar.training.classifier import group_clients
from attar.training.clients import ClientData
from attar.training.cvae import Preset, group_cvaes
from attar.training.groups import muster
from attar.training.loop import LocalStack
from attar.training.mutual import KNOWLEDGE
from attar.training.objectives import Mutual, Objective
from attar.training.optimisers import Optimiser
from attar.training.options import LocalTraining, Normalise, Schedule
from attar.training.resident import Visit
from attar.training.stacking import Stack
from attar.training.statistics import StatisticsSettings


@dataclass(frozen=True)
class TrainingFlags:
    """``LocalTraining`` as flags: what is left out is the default of the kind of net (a CVAE's
    are FedMHO's Table 3).
    """

    epochs: int | None = None  # 30; of a CVAE 40, or 30 to 50 by --preset
    batch_size: int | None = None  # 128; of a CVAE 64
    optimiser: Optimiser | None = None  # sgd; of a CVAE adam
    lr: float | None = None  # 0.01; of a CVAE 0.05, 0.003 or 0.001 by --preset and size
    momentum: float | None = None  # of sgd: 0.9
    weight_decay: float | None = None  # 0
    schedule: Schedule | None = (
        None  # constant; step: a tenth after 1/2 and again after 3/4 of the epochs
    )
    sam: float | None = None  # radius rho of sharpness-aware minimisation; 0 = off
    clip: float | None = None  # largest gradient norm of a client
    augment: Augment | None = None  # none
    normalise: Normalise | None = (
        None  # centred: images reach a fresh classifier in [-1, 1]; plain: in [0, 1], as they are
    )
    init: Literal["shared", "separate"] | None = None  # shared
    validation: float | None = (
        None  # share of each client's images kept back to report its accuracy: 0
    )
    stack: Stack | None = None  # auto
    compile_blocks: bool = (
        False  # of a transformer, by torch.compile: a slower start and, on a GPU, faster steps
    )

    def given(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and value is not False
        }


@dataclass(frozen=True)
class StatisticsFlags:
    """Statistics of features as flags: nothing of them is sent unless the client says so."""

    # send, for each class held, the mean of the features, their spread and the own distances
    statistics: bool = False
    statistics_dimensions: int = 64  # wider features are projected to so many
    statistics_epsilon: float | None = (
        None  # of differential privacy: noise is added to them; needs --statistics-clip
    )
    statistics_delta: float = 1e-5
    statistics_clip: float | None = None  # the longest feature that is let through

    def settings(self) -> StatisticsSettings | None:
        """How they are measured; None where they stay at home."""
        if not self.statistics:
            if self != StatisticsFlags():
                raise SettingsError(
                    "There are no statistics to protect.",
                    fix="send them with --statistics, or leave its flags out",
                )
            return None
        return StatisticsSettings(
            self.statistics_dimensions,
            epsilon=self.statistics_epsilon,
            delta=self.statistics_delta,
            clip=self.statistics_clip,
        )


def make_stacks(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    flags: TrainingFlags,
    *,
    preset: Preset,
    seed: int,
    device: str,
    initial: Part | None,
    knowledge: ModelSpec | None = None,
) -> list[LocalStack]:
    """The trainings of these clients: each net says by its kind whether it classifies or is an
    autoencoder.

    With ``knowledge`` a classifier stays at home, and this network is trained beside it and
    sent; ``initial`` is then its start.
    """
    weak = [
        (client, spec) for client, spec in zip(clients, specs, strict=True) if spec.kind == "cvae"
    ]
    strong = [
        (client, spec) for client, spec in zip(clients, specs, strict=True) if spec.kind != "cvae"
    ]
    if weak and knowledge is not None:
        raise SettingsError(
            "A CVAE has no knowledge network beside it.",
            fix="leave --knowledge out, or train classifiers",
        )
    if weak and initial is not None:
        raise SettingsError(
            "A CVAE starts from no given model: only decoders travel.", fix="leave --start out"
        )
    stacks: list[LocalStack] = []
    if strong:
        training = LocalTraining(**flags.given())
        chosen = [client for client, _ in strong], [spec for _, spec in strong]
        if knowledge is not None:
            crews = muster(
                *chosen,
                training,
                Objective(mutual=Mutual(knowledge)),
                seats=len(strong),
                seed=seed,
                device=device,
                initial=initial,
            )
            received = {} if initial is None else {KNOWLEDGE: initial}
            return stacks + [
                crew.stack([client.name for client in crew.clients], Visit(received=received))
                for crew in crews
            ]
        stacks += group_clients(*chosen, training, seed=seed, device=device, initial=initial)
    if weak:
        chosen = [client for client, _ in weak], [spec for _, spec in weak]
        stacks += group_cvaes(*chosen, flags.given(), preset=preset, seed=seed, device=device)
    return stacks
