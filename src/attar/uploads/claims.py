"""What a manifest says of differential privacy: read, and refused where it cannot be.

A claim is a statement of the sender. Here it is only compared with the rest of the manifest and
with arithmetic that needs no accountant; ``attar privacy`` recomputes its epsilon.
"""

import math
from dataclasses import asdict, fields
from typing import Any

from attar.privacy_claim import PrivacyClaim
from attar.uploads.manifest import brief, is_int

ACCOUNTANTS = ("pld",)
UNITS = ("image",)
LARGEST = 1e6  # of a number of a claim
_KEYS = {field.name for field in fields(PrivacyClaim)}


def claim_problems(manifest: dict[str, Any]) -> list[str]:
    """Check the claim of a manifest.

    Args:
        manifest: one without ``manifest_problems``.

    Returns:
        One sentence for each problem; empty if there is no claim.
    """
    if "privacy" not in manifest:
        return []
    claim = manifest["privacy"]
    if not isinstance(claim, dict) or set(claim) != _KEYS:
        return [f"privacy must have exactly the entries {', '.join(sorted(_KEYS))}"]
    numbers = ("epsilon", "clip", "noise_multiplier")
    problems = [
        f"privacy.{key} must be a number above 0, at most {LARGEST:g}"
        for key in numbers
        if not _is_between(claim[key], LARGEST)
    ]
    if not (_is_between(claim["delta"], 1) and claim["delta"] < 1):
        problems.append("privacy.delta must be above 0 and below 1")
    if not _is_between(claim["sampling_rate"], 1):
        problems.append("privacy.sampling_rate must be above 0, at most 1")
    if not is_int(claim["steps"], 1):
        problems.append("privacy.steps must be a whole number from 1")
    for key, known in (("accountant", ACCOUNTANTS), ("unit", UNITS)):
        if claim[key] not in known:
            problems.append(f"privacy.{key} must be {' or '.join(known)}, got {brief(claim[key])}")
    return problems or _contradictions(manifest, claim)


def _is_between(value: object, most: float) -> bool:
    """Whether a JSON value is a number above 0 and at most ``most``; False for NaN, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def _contradictions(manifest: dict[str, Any], claim: dict[str, Any]) -> list[str]:
    """In what a claim cannot be true, whatever the training was."""
    problems = []
    if manifest["label_counts"] is not None:
        problems.append("privacy covers no label counts, and they are sent beside it")
    if claim["steps"] != manifest["local_steps"]:
        steps = f"{claim['steps']} steps, local_steps is {manifest['local_steps']}"
        problems.append(f"privacy is claimed for {steps}")
    if uncovered := sorted(set(manifest["parts"]) - {"classifier", "decoder"}):
        problems.append(f"privacy does not cover these parts: {', '.join(uncovered)}")
    if claim["epsilon"] < 0.999 * least_epsilon(PrivacyClaim(**claim)):
        least = least_epsilon(PrivacyClaim(**claim))
        problems.append(
            f"privacy.epsilon is {claim['epsilon']:g}, but a single step of such noise takes "
            f"{least:.3g}"
        )
    return problems


def least_epsilon(claim: PrivacyClaim) -> float:
    """Return an epsilon below which no such training can be, from one of its steps alone.

    The image takes part in a step with probability q. If it does, its gradient moves the sum by
    1 / sigma in units of the noise; the event that the sum exceeds t then has the probabilities
    p = q Phi(1 / sigma - t) + (1 - q) Phi(-t) and p' = Phi(-t), and (epsilon, delta) must allow
    p <= e^epsilon p' + delta for every t.
    """
    q = claim.sampling_rate
    shift = 1 / claim.noise_multiplier
    least = 0.0
    for step in range(-10, 61):
        threshold = shift / 2 + step / 10
        without = 0.5 * math.erfc(threshold / math.sqrt(2))
        among = 0.5 * math.erfc((threshold - shift) / math.sqrt(2))
        excess = q * among + (1 - q) * without - claim.delta
        if without > 0 and excess > without:
            least = max(least, math.log(excess / without))
    return least


def claim_from_json(manifest: dict[str, Any]) -> PrivacyClaim | None:
    """The claim of a manifest without ``claim_problems``; None where there is none."""
    if "privacy" not in manifest:
        return None
    claim = manifest["privacy"]
    return PrivacyClaim(
        epsilon=float(claim["epsilon"]),
        delta=float(claim["delta"]),
        clip=float(claim["clip"]),
        noise_multiplier=float(claim["noise_multiplier"]),
        sampling_rate=float(claim["sampling_rate"]),
        steps=claim["steps"],
        accountant=claim["accountant"],
        unit=claim["unit"],
    )


def claim_to_json(claim: PrivacyClaim) -> dict[str, Any]:
    """A claim as the entry ``privacy`` of a manifest."""
    return asdict(claim)
