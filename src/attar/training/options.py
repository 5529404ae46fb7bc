"""The hyper-parameters of local training."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from attar.blocks.images import Augment
from attar.errors import SettingsError
from attar.training.optimisers import Optimiser
from attar.training.stacking import StackMode

LearningRateSchedule = Literal["constant", "cosine", "step"]
Normalise = Literal["centred", "plain"]


@dataclass(frozen=True)
class LocalTraining:
    """How clients train; the fields are the flags of ``attar train``.

    Raises:
        SettingsError: A value is out of range; the error names all of them.
    """

    epochs: int = 30
    # a client whose epochs have fewer steps in all trains more epochs; 0 = off
    min_steps: int = 0
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 0.01
    momentum: float = 0.9  # of sgd
    weight_decay: float = 0.0
    # step: a tenth after 1/2 and again after 3/4 of the epochs
    schedule: LearningRateSchedule = "constant"
    warmup: float = 0.0  # share of the epochs in which the rate rises to lr
    sam: float = 0.0  # radius rho of sharpness-aware minimisation; 0 = off
    clip: float | None = None  # largest gradient norm of a client
    augment: Augment = "none"
    # images reach a fresh classifier in [-1, 1]; plain: in [0, 1], as they are
    normalise: Normalise = "centred"
    # of fresh nets; with a start for other classes, of the fresh heads
    init: Literal["shared", "separate"] = "shared"
    validation: float = 0.0  # share of each client's images held out to report its accuracy
    # epochs without a better accuracy on them after which a client ends, with its best weights;
    # 0 = off: all epochs, and the last weights
    patience: int = 0
    stack: StackMode = "auto"
    # of a transformer, by torch.compile: a slower start and, on a GPU, faster steps
    compile_blocks: bool = False

    def __post_init__(self) -> None:
        checks = {
            "epochs: at least 0": self.epochs >= 0,
            "min_steps: at least 0": self.min_steps >= 0,
            "batch_size: at least 1": self.batch_size >= 1,
            "lr: above 0": self.lr > 0,
            "momentum: from 0 to below 1": 0 <= self.momentum < 1,
            "weight_decay: at least 0": self.weight_decay >= 0,
            "warmup: from 0 to below 1": 0 <= self.warmup < 1,
            "sam: at least 0 (a radius such as 0.05)": self.sam >= 0,
            "clip: above 0, or none": self.clip is None or self.clip > 0,
            "validation: from 0 to below 1": 0 <= self.validation < 1,
            "patience: at least 0": self.patience >= 0,
            "patience: 0 without validation": not self.patience or self.validation > 0,
        }
        wrong = [
            f"{rule}, got {getattr(self, rule.split(':')[0])}"
            for rule, holds in checks.items()
            if not holds
        ]
        if wrong:
            raise SettingsError("Settings of local training that do not fit:", problems=wrong)

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        rising = round(self.warmup * self.epochs)
        if epoch < rising:
            return self.lr * (epoch + 1) / (rising + 1)
        match self.schedule:
            case "cosine":
                return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
            case "step":
                tenths = (2 * epoch >= self.epochs) + (4 * epoch >= 3 * self.epochs)
                return self.lr * 0.1**tenths
            case "constant":
                return self.lr

    def describe(self) -> dict[str, Any]:
        """Return the settings, without those that are newer than release 0.1 and off.

        So a training that an older version has begun, or finished, is still recognised.
        """
        return {
            name: value
            for name, value in asdict(self).items()
            if value or name not in ("min_steps", "warmup", "patience")
        }

    def fit_epochs(self, images: int) -> "LocalTraining":
        """Return the training of a client, with as many epochs as ``min_steps`` asks for.

        More than needed by up to an eighth: so clients of about one size have the same number, and
        train as one stack.

        Args:
            images: How many the client trains on.
        """
        if not self.min_steps or not self.epochs:
            return self
        batches = math.ceil(images / self.batch_size)
        fewest = math.ceil(self.min_steps / batches)
        unit = max(1, fewest // 8)
        return replace(self, epochs=max(self.epochs, math.ceil(fewest / unit) * unit))
