"""Settings of local training as flags and recipe keys; defaults depend on the kind of net."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from attar.blocks.images import Augment
from attar.errors import SettingsError
from attar.training.feature_sums import SumsSettings
from attar.training.optimisers import Optimiser
from attar.training.options import LearningRateSchedule, Normalise
from attar.training.private_settings import PrivacySettings
from attar.training.stacking import StackMode
from attar.training.statistics import StatisticsSettings


@dataclass(frozen=True)
class TrainingFlags:
    """How clients train: what is left out is the default of the kind of net (a CVAE's are FedMHO's
    Table 3); attar train chooses for a classifier what suits the net and the number of images.
    """

    epochs: int | None = None  # 30; of a CVAE 40, or 30 to 50 by --preset
    # a client whose epochs have fewer steps in all trains more epochs: 0 = off; attar train: 600
    # unless --epochs is given
    min_steps: int | None = None
    # 128; of a CVAE 64; attar train: 16 to 128 by the number of images
    batch_size: int | None = None
    optimiser: Optimiser | None = None  # sgd; of a CVAE and attar train adam
    # 0.01; of a CVAE 0.05, 0.003 or 0.001 by --preset and size; attar train: 0.001, of a
    # transformer 0.0005, with --start 0.0002, of sgd 0.01
    lr: float | None = None
    momentum: float | None = None  # of sgd: 0.9
    weight_decay: float | None = None  # 0
    # constant (attar train: cosine); step: a tenth after 1/2 and again after 3/4 of the epochs
    schedule: LearningRateSchedule | None = None
    # share of the epochs in which the rate rises to lr: 0; attar train: 0.1
    warmup: float | None = None
    sam: float | None = None  # radius rho of sharpness-aware minimisation; 0 = off
    # largest gradient norm of a client (attar train: 1); with --backbone the longest feature that
    # is let through
    clip: float | None = None
    augment: Augment | None = None  # none
    # centred: images reach a fresh classifier in [-1, 1]; plain: in [0, 1], as they are
    normalise: Normalise | None = None
    init: Literal["shared", "separate"] | None = None  # shared
    # share of each client's images held out to report its accuracy: 0; attar train: 0.1 from 500
    # images on
    validation: float | None = None
    # epochs without a better accuracy on them after which a client ends, with its best weights:
    # 0 = off; attar train: 15, where images are held out
    patience: int | None = None
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


@dataclass(frozen=True)
class PrivacyFlags:
    """Differential privacy of what is trained, for one image: noise in every step (DP-SGD)."""

    # train with differential privacy, such as 8: each image's gradient is clipped and noise is
    # added; needs attar[dp]; counts are not sent, nets with BatchNorm are refused
    dp_epsilon: float | None = None
    dp_delta: float = 1e-5  # of differential privacy, beside --dp-epsilon; below 1 / images
    dp_clip: float = 1.0  # longest gradient of one image

    def settings(self) -> PrivacySettings | None:
        """Return how private training is; None where it is not.

        Raises:
            SettingsError: There are settings for privacy without epsilon.
        """
        if self.dp_epsilon is None:
            defaults = PrivacyFlags()
            if self != defaults:
                raise SettingsError(
                    "--dp-delta and --dp-clip: need --dp-epsilon.",
                    fix="name the epsilon, for example --dp-epsilon 8, or leave this out",
                )
            return None
        return PrivacySettings(self.dp_epsilon, self.dp_delta, self.dp_clip)


@dataclass(frozen=True)
class SumsFlags:
    """Sums of a frozen backbone's features: sent in place of a net where --backbone names one."""

    # efficientnet-lite0, efficientnet-lite1, hf:OWNER/NAME, hf:FOLDER, timm:NAME or a model folder:
    # nothing is trained, sums of its features are sent
    backbone: str | None = None
    features: int | None = None  # project the backbone's features to so many, for a smaller file
    per_class: bool = False  # a matrix of squares for each class, not one for all
    # of differential privacy for one image: noise is added to the sums; needs --clip
    epsilon: float | None = None
    delta: float = 1e-5  # of differential privacy, beside epsilon
    # also send a mixture of so many Gaussians for each class, which fedpft samples from
    mixture: int | None = None
    mixture_covariance: Literal["spherical", "diagonal", "full"] = "diagonal"  # of each of them

    def settings(self, clip: float | None, seed: int = 0) -> SumsSettings | None:
        """Return how features are summed; None where none are.

        Args:
            clip: The longest feature.
            seed: Of mixtures.

        Raises:
            SettingsError: There are settings for sums that are not sent.
        """
        if self.backbone is None:
            defaults = asdict(SumsFlags())
            changed = [name for name, value in asdict(self).items() if value != defaults[name]]
            if changed:
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
                raise SettingsError(
                    f"{flags}: needs --backbone.",
                    fix="name a backbone, for example --backbone efficientnet-lite0, or leave "
                    "this out",
                )
            return None
        return SumsSettings(
            features=self.features or 0,
            per_class=self.per_class,
            clip=clip or 0.0,
            epsilon=self.epsilon,
            delta=self.delta,
            mixture=self.mixture or 0,
            mixture_covariance=self.mixture_covariance,
            seed=seed,
        )
