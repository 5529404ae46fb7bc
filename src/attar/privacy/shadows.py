"""Attacks on a classifier by its answers: the loss alone, and calibrated by shadow nets (LiRA).

loss    the score of an image is its log-odds f(x) = log(p_y / (1 - p_y)); a net is surer of what
        it was trained on (Yeom et al., 2018)
LiRA    some images are easy for every net. Shadow nets of the same architecture are trained on
        random halves of the same images, and the score is f(x) minus its mean over the shadow
        nets that did not see x: the offline likelihood ratio of Carlini et al. (2022) with one
        variance for all images

A real attacker has no such images and fewer hints; with more shadow nets one gains a little.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attar.core import Part
from attar.errors import DivergedError
from attar.models import Classifier
from attar.privacy.attacks import Attack, measure_attack
from attar.privacy.candidates import Candidates
from attar.running import Watch
from attar.seeds import rng
from attar.training import (
    ClassifierTraining,
    ClientData,
    LocalTraining,
    suggest_training,
    train_stack,
)

LOSS = "loss threshold"
LIRA = "LiRA, offline"
SHADOWS = 8
PASSES = 1_000_000  # images that all shadow nets together go through at most
BATCH = 500


@dataclass(frozen=True)
class ShadowPlan:
    """How shadow nets are trained.

    Attributes:
        number: of nets.
        training: of each of them.
        images: that each is trained on.
        wanted: epochs of the client's own training, or of one that suits the net; more than those
            of ``training`` where time is short.
    """

    number: int
    training: LocalTraining
    images: int
    wanted: int


def plan_shadows(
    part: Part,
    candidates: Candidates,
    trained_on: int,
    *,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    number: int = SHADOWS,
    passes: int = PASSES,
) -> ShadowPlan:
    """Decide how many shadow nets are trained, on how many images and for how long.

    Args:
        part: the net under attack.
        candidates: the images that they are trained on.
        trained_on: images of the net under attack.
        settings: of its own training, by name; None: settings that suit the net.
        epochs: that it took; None: those of the settings.
        number: of shadow nets.
        passes: images that they all go through at most.
    """
    images = max(1, min(trained_on, len(candidates.images.labels) // 2))
    if settings is None:
        training = suggest_training(part.spec, images, early_stopping=False)
    else:
        training = LocalTraining(**settings)
    plain = replace(training, validation=0.0, patience=0, init="separate", compile_blocks=False)
    wanted = plain.fit_epochs(images).epochs if epochs is None else epochs
    possible = max(1, passes // (number * images))
    kept = replace(plain, epochs=min(wanted, possible), min_steps=0)
    return ShadowPlan(number, kept, images, wanted)


def attack_classifier(
    part: Part,
    candidates: Candidates,
    plan: ShadowPlan | None,
    *,
    seed: int = 0,
    device: str = "cpu",
    watch: Watch | None = None,
) -> tuple[list[Attack], str]:
    """Attack a classifier by the loss, and by shadow nets if there is a plan for them.

    Args:
        part: the net.
        candidates: members and others.
        plan: of the shadow nets; None for none.
        seed: of the shadow nets.
        device: where to compute.
        watch: told about their training.

    Returns:
        What came of it, and what was not tried of LiRA (empty where all was).
    """
    answers = log_odds(part, candidates.images, device)
    split = candidates.members
    how = "how sure the net is of the image's own class"
    attacks = [measure_attack(LOSS, how, answers[:split], answers[split:])]
    if plan is None:
        return attacks, "LiRA: no shadow nets were asked for"
    if part.spec.arch in ("graph", "frozen-backbone"):
        return attacks, f"LiRA: shadow nets of {part.spec.arch} cannot be trained from nothing"
    try:
        shadows, saw = train_shadows(part, candidates, plan, seed=seed, device=device, watch=watch)
    except DivergedError:
        return attacks, "LiRA: training of the shadow nets diverged"
    score = calibrate(answers, shadows, saw)
    short = ""
    if plan.training.epochs < plan.wanted:
        short = f" in place of the {plan.wanted} that suit it: time was short"
    how = (
        f"the same, less the mean of {plan.number} shadow nets that did not see the image, each "
        f"trained on {plan.images:,} images for {plan.training.epochs} epochs{short}"
    )
    attacks.append(measure_attack(LIRA, how, score[:split], score[split:]))
    if plan.training.epochs < plan.wanted:
        enough = plan.number * plan.images * plan.wanted
        return attacks, f"LiRA with nets trained as long as this one: --passes {enough}"
    return attacks, ""


def train_shadows(
    part: Part,
    candidates: Candidates,
    plan: ShadowPlan,
    *,
    seed: int = 0,
    device: str = "cpu",
    watch: Watch | None = None,
) -> tuple[Tensor, Tensor]:
    """Train shadow nets as one stack, each on a random part of the candidates.

    Returns:
        The log-odds (S, N) that they give, and which image each has seen, bool (S, N).
    """
    images = candidates.images
    saw = torch.zeros(plan.number, len(images.labels), dtype=torch.bool)
    owners = []
    for shadow in range(plan.number):
        order = torch.randperm(len(images.labels), generator=rng(seed, "shadow", shadow))
        rows = order[: plan.images]
        saw[shadow, rows] = True
        owners.append(
            ClientData(
                f"shadow-{shadow:03d}", images.pixels[rows], images.labels[rows], images.classes
            )
        )
    stack = ClassifierTraining(owners, part.spec, part.preprocess, plan.training, seed, device)
    uploads, _ = train_stack(stack, watch=watch)
    answers = [log_odds(upload.parts["classifier"], images, device) for upload in uploads]
    return torch.stack(answers), saw


def calibrate(answers: Tensor, shadows: Tensor, saw: Tensor) -> Tensor:
    """Return LiRA's score of each image, (N,).

    Args:
        answers: log-odds of the net under attack, (N,).
        shadows: those of the shadow nets, (S, N).
        saw: which image each shadow net was trained on, (S, N); of an image that all of them have
            seen, all are taken.
    """
    outside = ~saw | saw.all(0)
    mean = (shadows.double() * outside).sum(0) / outside.sum(0)
    return answers.double() - mean


@torch.no_grad()
def log_odds(part: Part, images: ClientData, device: str = "cpu") -> Tensor:
    """Return log(p_y / (1 - p_y)) of each image's own class, float64 (N,), on the CPU.

    Args:
        part: a classifier.
        images: with labels of their classes, each of which the net knows.
        device: where to compute.
    """
    net = Classifier(part).to(device)
    places = torch.tensor([part.classes.index(name) for name in images.classes])
    values = []
    batches = zip(images.pixels.split(BATCH), images.labels.split(BATCH), strict=True)
    for pixels, labels in batches:
        logits = net(pixels.to(device).float() / 255).double().cpu()
        own = places[labels][:, None]
        right = logits.gather(1, own).squeeze(1)
        wrong = logits.scatter(1, own, -torch.inf).logsumexp(1)
        values.append((right - wrong).nan_to_num(0.0, 1e9, -1e9))
    return torch.cat(values)
