"""Settings of local training as flags and recipe keys; defaults depend on the kind of net."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from attar.blocks.images import Augment
from attar.errors import SettingsError
from attar.training.optimisers import Optimiser
from attar.training.options import LearningRateSchedule, Normalise
from attar.training.stacking import StackMode
from attar.training.statistics import StatisticsSettings


@dataclass(frozen=True)
class TrainingFlags:
    """How clients train: what is left out is the default of the kind of net (a CVAE's are FedMHO's
    Table 3).
    """

    epochs: int | None = None  # 30; of a CVAE 40, or 30 to 50 by --preset
    batch_size: int | None = None  # 128; of a CVAE 64
    optimiser: Optimiser | None = None  # sgd; of a CVAE adam
    lr: float | None = None  # 0.01; of a CVAE 0.05, 0.003 or 0.001 by --preset and size
    momentum: float | None = None  # of sgd: 0.9
    weight_decay: float | None = None  # 0
    # constant; step: a tenth after 1/2 and again after 3/4 of the epochs
    schedule: LearningRateSchedule | None = None
    sam: float | None = None  # radius rho of sharpness-aware minimisation; 0 = off
    clip: float | None = None  # largest gradient norm of a client
    augment: Augment | None = None  # none
    # centred: images reach a fresh classifier in [-1, 1]; plain: in [0, 1], as they are
    normalise: Normalise | None = None
    init: Literal["shared", "separate"] | None = None  # shared
    # share of each client's images held out to report its accuracy: 0
    validation: float | None = None
    stack: StackMode | None = None  # auto
    # of a transformer, by torch.compile: a slower start and, on a GPU, faster steps
    compile_blocks: bool = False

    def settings(self) -> dict[str, Any]:
        """Return the flags that are given, by name: arguments for ``LocalTraining``."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and value is not False
        }


@dataclass(frozen=True)
class StatisticsFlags:
    """Statistics of features: nothing of them is sent without --statistics."""

    # send, for each class held, the mean of the features, their spread and the own distances
    statistics: bool = False
    statistics_dimensions: int = 64  # wider features are projected to so many
    # of differential privacy: noise is added to them; needs --statistics-clip
    statistics_epsilon: float | None = None
    statistics_delta: float = 1e-5  # of differential privacy, beside epsilon
    statistics_clip: float | None = None  # the longest feature that is let through

    def settings(self) -> StatisticsSettings | None:
        """Return how statistics are measured; None where none are sent.

        Raises:
            SettingsError: There are settings for statistics that are not sent.
        """
        if not self.statistics:
            defaults = asdict(StatisticsFlags())
            changed = [name for name, value in asdict(self).items() if value != defaults[name]]
            if changed:
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
                raise SettingsError(
                    f"{flags}: needs --statistics.",
                    fix="send statistics by --statistics, or leave this out",
                )
            return None
        return StatisticsSettings(
            dimensions=self.statistics_dimensions,
            epsilon=self.statistics_epsilon,
            delta=self.statistics_delta,
            clip=self.statistics_clip,
        )
