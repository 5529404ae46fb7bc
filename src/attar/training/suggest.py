"""Settings of local training that suit a net and a client's number of images.

They are what ``attar train`` and ``train_classifiers`` use where nothing else is asked for. The
defaults of ``LocalTraining`` are those of the papers' recipes; with few images they take too few
steps to learn anything. What is chosen here was measured: results/trials.json, "training-defaults".
"""

import math
from collections.abc import Mapping
from typing import Any

from attar.core import ModelSpec
from attar.internal.text import list_some
from attar.nets import find
from attar.training.clients import count_training_images
from attar.training.cvae import Preset, paper_training
from attar.training.flags import TrainingFlags
from attar.training.loop import LocalStack
from attar.training.options import LocalTraining

EPOCHS = 30
MIN_STEPS = 600
BATCHES = ((256, 16), (1024, 32), (8192, 64))  # up to so many images: the batch size
LARGEST_BATCH = 128
RATE, RATE_OF_TRANSFORMERS, RATE_FROM_START = 1e-3, 5e-4, 2e-4  # of Adam
RATE_OF_SGD = 0.01
WARMUP = 0.1
CLIP = 1.0
FEWEST_TO_HOLD_OUT = 500  # images of a client that holds some out
HELD_OUT = 0.1
PATIENCE = 2  # a client ends after half the epochs without a better one
LEAST_PATIENCE = 15


def suggest_training(
    spec: ModelSpec,
    images: int,
    given: Mapping[str, Any] | None = None,
    *,
    from_start: bool = False,
    early_stopping: bool = True,
) -> LocalTraining:
    """Return how a client trains a classifier unless it is told otherwise.

    Args:
        spec: The architecture.
        images: How many the client holds.
        given: Settings of ``LocalTraining`` that are asked for; the others are chosen to go with
            them. Epochs that are given are not raised to a floor of steps.
        from_start: Whether weights are given to start from.
        early_stopping: Whether images may be held out and training may end early.
    """
    given = dict(given or {})
    suited: dict[str, Any] = {
        "batch_size": next((size for most, size in BATCHES if images <= most), LARGEST_BATCH),
        "optimiser": "adam",
        "schedule": "cosine",
        "warmup": WARMUP,
        "clip": CLIP,
        "epochs": EPOCHS,
        "min_steps": 0 if "epochs" in given else MIN_STEPS,
    }
    if given.get("optimiser") == "sgd":
        suited["lr"] = RATE_OF_SGD
    elif from_start:
        suited["lr"] = RATE_FROM_START
    else:
        suited["lr"] = RATE_OF_TRANSFORMERS if find(spec.arch).tokens else RATE
    enough = images >= FEWEST_TO_HOLD_OUT or bool(given.get("patience"))
    if early_stopping and enough and given.get("validation", HELD_OUT):
        suited |= {
            "validation": HELD_OUT,
            "patience": max(LEAST_PATIENCE, given.get("epochs", EPOCHS) // PATIENCE),
        }
    return LocalTraining(**{**suited, **given})


def explain_floor(stack: LocalStack, flags: TrainingFlags, preset: Preset = "auto") -> str | None:
    """Say how far ``min_steps`` raised the epochs of a stack; None where it did not.

    Args:
        stack: Who trains.
        flags: What was asked for.
        preset: Of CVAEs, as in ``make_stacks``.
    """
    first = stack.clients[0]
    training = stack.training
    if flags.epochs is not None:
        epochs = flags.epochs
    elif stack.spec.kind == "cvae":
        epochs = paper_training(stack.spec, first.image_shape, len(first.classes), preset).epochs
    else:
        epochs = EPOCHS
    if training.epochs <= epochs:
        return None
    images = count_training_images(first, training.validation)
    batches = math.ceil(images / training.batch_size)
    names = list_some([client.name for client in stack.clients])
    return (
        f"{names}: {epochs} epochs would be {epochs * batches} steps: training "
        f"{training.epochs * batches} steps ({training.epochs} epochs)"
    )
