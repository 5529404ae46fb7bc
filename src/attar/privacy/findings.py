"""What a privacy dossier finds, one statement at a time, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attar.core import Upload
from attar.errors import SettingsError
from attar.privacy.attacks import MOST_AUC, MOST_FOUND, NEEDED, Answer, Attack
from attar.privacy.decoder_check import PrivacyCheck
from attar.privacy.describe import FEW, list_small_classes
from attar.privacy.reconstruction import Reconstruction
from attar.privacy_claim import PrivacyClaim
from attar.training import SUMS, gaussian_delta, gaussian_mu, spent_epsilon

LESS = (
    "train fewer epochs, or with early stopping, or on more images, and look again; or train with "
    "--dp-epsilon 8"
)
MORE = "name more images that were not trained on, by --non-members SOURCE"


@dataclass(frozen=True)
class Finding:
    """One statement of a dossier.

    Attributes:
        title: what it is about.
        answer: whether the file may be sent, as far as this shows; None for a statement only.
        sentence: what was found.
        advice: what to do; empty where there is nothing.
        attacks: what it rests on.
        facts: further numbers, by name.
        pictures: (n, 2, C, H, W) in [0, 1], of the file and of the data; None without.
        captions: of each pair of pictures.
        subject: the part that was attacked, where there are attacks.
    """

    title: str
    answer: Answer | None
    sentence: str
    advice: str = ""
    attacks: tuple[Attack, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    pictures: Tensor | None = None
    captions: tuple[str, ...] = ()
    subject: str = ""


def join_answers(answers: Sequence[Answer | None]) -> Answer:
    """Join the answers of findings: one "no" decides, then one "cannot tell"."""
    if "no" in answers:
        return "no"
    return "yes" if "yes" in answers and "cannot tell" not in answers else "cannot tell"


def membership_finding(what: str, attacks: Sequence[Attack], skipped: str = "") -> Finding:
    """State how well members were told from other images.

    Args:
        what: the part under attack.
        attacks: that were tried, none where there are no other images.
        skipped: why an attack was not tried; empty where all were.
    """
    answer = join_answers([attack.answer for attack in attacks])
    sentence, advice = _explain_attacks(answer, attacks)
    return Finding(
        title=f"Can a training image be recognised from the {what}?",
        answer=answer,
        sentence=sentence,
        advice=advice,
        attacks=tuple(attacks),
        facts=(("not tried", skipped),) if skipped else (),
        subject=what,
    )


def _explain_attacks(answer: Answer, attacks: Sequence[Attack]) -> tuple[str, str]:
    """What attacks found, and what to do."""
    if not attacks:
        return (
            "No attack could be tried: there are no other images of these classes, or what it "
            "needs is missing.",
            f"{MORE}: at least {_needed(0.01)}.",
        )
    wanted = [attack for attack in attacks if attack.answer == answer]
    best = max(wanted, key=lambda attack: (attack.rates[0].share, attack.auc))
    rate = best.rates[0]
    low, high = rate.interval
    found = f"{_percent(rate.share)} of the training images ({_percent(low)} to {_percent(high)})"
    if answer == "no" and "no" in [one.answer for one in best.rates]:
        return (
            f"Yes, too often. The attack {best.name} finds {found} while it accuses 1 % of other "
            f"images; guessing finds 1 %, and the limit is {_percent(MOST_FOUND[0.01])}.",
            f"Do not send it: {LESS}.",
        )
    if answer == "no":
        return (
            f"Yes, on average. By the attack {best.name} a training image scores above another "
            f"one with probability {best.auc:.2f}; guessing has 0.5, and the limit is {MOST_AUC}. "
            f"Single images it does not find for certain: {found} at 1 % false alarms.",
            f"Do not send it: {LESS}.",
        )
    if rate.others < rate.needed:
        return (
            f"There are {rate.others:,} other images to compare with. 1 % false alarms need "
            f"{_needed(0.01)}, 0.1 % need {_needed(0.001)}.",
            f"{MORE}.",
        )
    if answer == "cannot tell":
        return (
            f"The best attack, {best.name}, finds {found} at 1 % false alarms: the intervals "
            f"reach across the limits ({_percent(MOST_FOUND[0.01])} at 1 %, "
            f"{_percent(MOST_FOUND[0.001])} at 0.1 %, {MOST_AUC} on average).",
            f"To be safe, {LESS}.",
        )
    few = ""
    if rate.others < NEEDED[0.001]:
        few = f" Of 0.1 % nothing can be said with {rate.others:,} other images."
    return (
        f"Hardly. The best attack, {best.name}, finds {found} at 1 % false alarms; guessing finds "
        f"1 %, and the limit is {_percent(MOST_FOUND[0.01])}.{few}",
        "",
    )


def _needed(rate: float) -> str:
    """How many others a rate of false positives needs, in words."""
    return f"{NEEDED[rate]:,}"


def decoder_finding(check: PrivacyCheck) -> Finding:
    """State whether a decoder repeats training images."""
    pairs = check.singled_out
    return Finding(
        "Does the decoder repeat training images?",
        check.answer,
        check.verdict,
        check.advice,
        facts=(
            ("synthetic images", f"{check.samples:,}"),
            ("median distance to the nearest training image", f"{check.median_distance:.4f}"),
            ("between training images", f"{check.median_real_distance:.4f}"),
            ("FID", f"{check.fid:.2f}, of noise {check.fid_noise:.2f} ({check.features})"),
        ),
        pictures=torch.stack([pair.pictures for pair in pairs]),
        captions=tuple(
            f"made as {pair.label}; beside it the nearest training image ({pair.real_label}), "
            f"{pair.relative:.2f} of the distance to its next neighbour"
            for pair in pairs
        ),
    )


def reconstruction_finding(found: Reconstruction | None) -> Finding:
    """State what inversion of a classifier brought to light."""
    title = "Can training images be reconstructed from the classifier?"
    if found is None:
        return Finding(
            title, "cannot tell", "There are too few images to compare with.", f"{MORE}."
        )
    share = f"{found.nearer} of {found.pictures}"
    facts = (
        ("pictures made by inversion", f"{found.pictures}"),
        ("compared with", f"{found.images:,} training images and as many others"),
        ("nearer to a training image than to any other", f"{share}; half is chance"),
        ("smallest distance to a training image against that to another", f"{found.least:.2f}"),
    )
    captions = tuple(
        f"made as {label}; beside it the nearest training image" for label in found.labels
    )
    sentences = {
        "yes": (
            "This try found none: what inversion makes is about as far from training images as "
            "from other images.",
            "Look at the pairs once: a picture that shows what only one image shows is a reason "
            "not to send.",
        ),
        "no": (
            "A picture made from the net alone is far nearer to a training image than to any "
            "other image.",
            f"Do not send it: {LESS}.",
        ),
        "cannot tell": (
            "A picture made from the net alone lies nearer to a training image than to any other, "
            "though it is no copy.",
            f"Look at the pairs; to be safe, {LESS}.",
        ),
    }
    sentence, advice = sentences[found.answer]
    return Finding(title, found.answer, sentence, advice, (), facts, found.shown, captions)


def sums_finding(upload: Upload) -> Finding:
    """State whether sums of features are of so few images that they show single ones."""
    title = "Do the sums show single images?"
    if few := list_small_classes(upload.parts[SUMS]):
        return Finding(
            title,
            "no",
            f"{len(few)} classes have fewer than {FEW} images in a half: the sum over one image "
            "is that image's features, from which a picture like it can be made.",
            "Leave these classes out, add images, or add noise (--epsilon with --clip).",
            facts=(("classes", ", ".join(few[:10])),),
        )
    return Finding(
        title, "yes", f"No class has fewer than {FEW} images in a half, or noise was added."
    )


def claim_finding(upload: Upload) -> Finding:
    """State what differential privacy the file claims, with its epsilon recomputed."""
    title = "Differential privacy"
    claim = upload.privacy
    parts = [
        (name, dict(part.spec.options))
        for name, part in upload.parts.items()
        if dict(part.spec.options).get("epsilon")
    ]
    if claim is None and not parts:
        return Finding(
            title,
            None,
            "None: no noise was added, so nothing bounds what a stronger attack than those below "
            "may find.",
            "attar train --dp-epsilon 8 gives a bound.",
        )
    facts: list[tuple[str, str]] = []
    if claim is not None:
        facts += _claim_facts(claim)
    for name, options in parts:
        epsilon, delta = float(options["epsilon"]), float(options["delta"])
        mu = gaussian_mu(epsilon, delta)
        spent = gaussian_delta(mu, epsilon)
        facts.append(
            (
                f"part {name}",
                f"({epsilon:g}, {delta:g}) for one image, features clipped at "
                f"{float(options['clip']):g}; Gaussian mechanism with mu = {mu:.4g}, whose delta "
                f"at this epsilon is {spent:.3g}",
            )
        )
    if claim is not None:
        recomputed = _recompute(claim)
        if isinstance(recomputed, float) and recomputed > 1.01 * claim.epsilon:
            return Finding(
                title,
                "no",
                f"The file claims an epsilon of {claim.epsilon:g}, but its own parameters give "
                f"{recomputed:.3g}: the claim is wrong.",
                "Train again; do not send a claim that does not hold.",
                facts=tuple(facts),
            )
    return Finding(
        title,
        None,
        "The file states a bound that holds against every attack, if it was trained as it says.",
        "",
        facts=tuple(facts),
    )


def _claim_facts(claim: PrivacyClaim) -> list[tuple[str, str]]:
    recomputed = _recompute(claim)
    epsilon = f"{recomputed:.4g}" if isinstance(recomputed, float) else recomputed
    return [
        ("claimed", f"({claim.epsilon:g}, {claim.delta:g}) for one {claim.unit}"),
        ("epsilon, recomputed from the parameters below", epsilon),
        ("accountant", f"{claim.accountant.upper()} of dp-accounting"),
        ("clip", f"{claim.clip:g}"),
        ("noise multiplier", f"{claim.noise_multiplier:.4g}"),
        ("sampling rate", f"{claim.sampling_rate:.4g}"),
        ("steps", f"{claim.steps:,}"),
    ]


def _recompute(claim: PrivacyClaim) -> float | str:
    try:
        return spent_epsilon(claim.noise_multiplier, claim.sampling_rate, claim.steps, claim.delta)
    except SettingsError as error:
        return f"not recomputed: {error.what}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
