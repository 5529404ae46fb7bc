"""From clients and their nets to private trainings, and the settings that suit them."""

from collections.abc import Mapping, Sequence
from typing import Any

from attar.core import ModelSpec, Part
from attar.errors import SettingsError
from attar.training.classifier import ClassifierTraining, fresh_preprocess
from attar.training.clients import ClientData
from attar.training.cvae import CvaeTraining
from attar.training.flags import TrainingFlags
from attar.training.options import LocalTraining
from attar.training.private_settings import PrivacySettings
from attar.training.private_training import PrivateTraining

# Measured: results/trials.json, "private-training".
EPOCHS = 20
# The images of a step share its noise, so a step has many of them, and the more the less epsilon
# there is: this share of all images at an epsilon of 1, within the bounds.
SHARE, LEAST_SHARE, MOST_SHARE = 0.32, 0.04, 0.25
LEAST_BATCH = 64
RATE = 0.5  # of sgd, for a clip of 1: the noise of a step is in units of the clip
ADAM_RATE = 2e-3


def suggest_private_training(
    spec: ModelSpec,
    images: int,
    privacy: PrivacySettings,
    given: Mapping[str, Any] | None = None,
) -> LocalTraining:
    """Return how a client trains with differential privacy unless it is told otherwise.

    Args:
        spec: The architecture.
        images: How many the client holds.
        privacy: How private.
        given: Settings of ``LocalTraining`` that are asked for.
    """
    given = dict(given or {})
    optimiser = given.get("optimiser", "adam" if spec.kind == "cvae" else "sgd")
    share = min(MOST_SHARE, max(LEAST_SHARE, SHARE / privacy.epsilon))
    suited: dict[str, Any] = {
        "epochs": EPOCHS,
        "batch_size": min(images, max(LEAST_BATCH, round(share * images))),
        "optimiser": optimiser,
        "lr": RATE / privacy.clip if optimiser == "sgd" else ADAM_RATE,
        "schedule": "cosine",
    }
    return LocalTraining(**{**suited, **given})


def make_private_stacks(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    flags: TrainingFlags,
    privacy: PrivacySettings,
    *,
    seed: int,
    device: str,
    initial: Part | None,
) -> list[PrivateTraining]:
    """Return the private training of each client: its noise depends on its number of images.

    Args:
        clients: Their data.
        specs: The architecture of each client, a classifier or a CVAE.
        flags: The hyper-parameters that are asked for.
        privacy: How private.
        seed: Decides the first weights.
        device: Where they train.
        initial: A model to start from; None for fresh nets.

    Raises:
        SettingsError: A setting looks at images past the noise.
        SpecError: A net has BatchNorm.
    """
    if initial is not None and any(spec.kind == "cvae" for spec in specs):
        raise SettingsError(
            "A CVAE cannot start from a given model, since only decoders are exchanged.",
            fix="leave --start out",
        )
    stacks = []
    for client, spec in zip(clients, specs, strict=True):
        images = len(client.labels)
        training = suggest_private_training(spec, images, privacy, flags.settings())
        training = training.fit_epochs(images)
        base: ClassifierTraining | CvaeTraining
        if spec.kind == "cvae":
            base = CvaeTraining([client], spec, training, seed, device)
        else:
            if initial is None:
                preprocess = fresh_preprocess(spec, client.image_shape, training)
            else:
                preprocess = initial.preprocess
            base = ClassifierTraining([client], spec, preprocess, training, seed, device, initial)
        stacks.append(PrivateTraining(base, privacy))
    return stacks
