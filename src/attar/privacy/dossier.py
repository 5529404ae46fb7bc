"""A privacy dossier: what an upload gives away, measured at the client before it is sent.

It joins the attacks of this package to one answer, with the reasons and with what was not looked
at. ``dossier_page.py`` writes it as a page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attar.core import Part, Upload
from attar.errors import DataError
from attar.privacy.attacks import Answer, Attack
from attar.privacy.candidates import Candidates, pick_candidates
from attar.privacy.decoder_check import PrivacyCheck
from attar.privacy.describe import list_revelations
from attar.privacy.findings import (
    Finding,
    claim_finding,
    decoder_finding,
    join_answers,
    membership_finding,
    reconstruction_finding,
    sums_finding,
)
from attar.privacy.part_attacks import attack_decoder, attack_statistics, attack_sums
from attar.privacy.reconstruction import try_reconstruction
from attar.privacy.shadows import PASSES, SHADOWS, attack_classifier, plan_shadows
from attar.running import Watch
from attar.training import ClientData, split_trained
from attar.uploads import Received

MOST_OF_SUMS = (1_000, 2_000)  # members and others: a backbone is slow on a CPU
BEST_OF_SUMS = (10_000, 20_000)
LIMITS = (
    "A stronger or newer attack may find what these did not. Only differential privacy bounds all "
    "of them.",
    "The unit is one image. Whether a person with several images took part is easier to tell.",
    "What the file states openly (names, counts, the architecture) is listed above and no attack.",
    "Partners who hold several of your files, of other rounds or other trainings, learn more than "
    "from one.",
    "Whether the images may be used at all is not a technical question.",
)


@dataclass(frozen=True)
class Audit:
    """How much work goes into a dossier.

    Attributes:
        shadows: nets that are trained for LiRA; 0 for none.
        passes: images that they all go through at most.
        seed: of everything random.
        device: where to compute.
        watch: told about the training of shadow nets.
    """

    shadows: int = SHADOWS
    passes: int = PASSES
    seed: int = 0
    device: str = "cpu"
    watch: Watch | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Dossier:
    """What was found about one upload file.

    Attributes:
        client: who will send it.
        file: its name.
        bytes: its size.
        sha256: the hash over all of it.
        parts: its parts and their nets.
        members: training images that were looked at.
        others: other images that they were compared with.
        duplicates: other images that were left out, since they are training images.
        source: where the others are from.
        reveals: what the file states openly.
        findings: one after the other.
        limits: what was not looked at.
    """

    client: str
    file: str
    bytes: int
    sha256: str
    parts: tuple[tuple[str, str], ...]
    members: int
    others: int
    duplicates: int
    source: str
    reveals: tuple[str, ...]
    findings: tuple[Finding, ...]
    limits: tuple[str, ...] = LIMITS

    @property
    def answer(self) -> Answer:
        """Whether the file may be sent, as far as all findings show."""
        return join_answers([found.answer for found in self.findings if found.answer is not None])

    @property
    def verdict(self) -> str:
        """Why, in a sentence or two."""
        deciding = [found.sentence for found in self.findings if found.answer == self.answer]
        if self.answer == "yes":
            return (
                "As far as the attacks below show: none of them recognised or reconstructed "
                "training images."
            )
        return " ".join(deciding)

    @property
    def advice(self) -> str:
        """What to do now."""
        steps = [found.advice for found in self.findings if found.answer == self.answer]
        if self.answer == "yes":
            steps = ["Send it, and keep this page beside it."]
        return " ".join(dict.fromkeys(step for step in steps if step))

    def as_json(self) -> dict[str, Any]:
        """Everything but the pictures."""
        return {
            "answer": self.answer,
            "verdict": self.verdict,
            "advice": self.advice,
            "sha256": self.sha256,
            "members": self.members,
            "others": self.others,
            "non_members": self.source,
            "findings": [_finding_as_json(found) for found in self.findings],
        }


def _finding_as_json(found: Finding) -> dict[str, Any]:
    return {
        "title": found.title,
        "answer": found.answer,
        "sentence": found.sentence,
        "facts": dict(found.facts),
        "attacks": [
            {
                "name": attack.name,
                "answer": attack.answer,
                "auc": attack.auc,
                "auc_interval": list(attack.auc_interval),
                "rates": [
                    {
                        "false_positives": rate.target,
                        "others": rate.others,
                        "members": rate.members,
                        "found": rate.found,
                        "share": rate.share,
                        "interval": list(rate.interval),
                        "answer": rate.answer,
                    }
                    for rate in attack.rates
                ],
            }
            for attack in found.attacks
        ],
    }


def make_dossier(
    received: Received,
    owner: ClientData,
    others: ClientData,
    *,
    source: str = "",
    metadata: Mapping[str, Any] | None = None,
    check: PrivacyCheck | None = None,
    audit: Audit | None = None,
) -> Dossier:
    """Attack an upload in every way that fits its parts.

    Args:
        received: the file.
        owner: the images that its client had, held-out ones included.
        others: images that it did not have; what it held out is added to them.
        source: where the others are from, in words.
        metadata: how it was trained, from the note beside it.
        check: of its decoder, if it has one.
        audit: how much work to do.

    Returns:
        What was found.

    Raises:
        DataError: if these cannot be the client's images.
    """
    audit = audit or Audit()
    upload = received.upload
    inside, held_out = split_trained(metadata, owner)
    _check_owner(upload, owner, len(inside), known=metadata is not None)
    members = _take(owner, inside)
    if len(held_out):
        others = _join(_take(owner, held_out), others)
    most = MOST_OF_SUMS if "sums" in upload.parts else BEST_OF_SUMS
    candidates = pick_candidates(members, others, most=most, seed=audit.seed)
    findings = [claim_finding(upload)]
    if check is not None:
        findings.append(decoder_finding(check))
    findings += _attack_parts(upload, candidates, len(inside), metadata, audit)
    return Dossier(
        client=upload.client,
        file=received.path.name,
        bytes=received.bytes,
        sha256=received.sha256,
        parts=tuple((name, str(part.spec)) for name, part in upload.parts.items()),
        members=candidates.members,
        others=candidates.others,
        duplicates=candidates.duplicates,
        source=source + (f", and {len(held_out):,} held out in training" if len(held_out) else ""),
        reveals=tuple(list_revelations(upload)),
        findings=tuple(findings),
    )


def _attack_parts(
    upload: Upload,
    candidates: Candidates,
    trained_on: int,
    metadata: Mapping[str, Any] | None,
    audit: Audit,
) -> list[Finding]:
    """The findings about each part that can be attacked."""
    findings = []
    comparable = bool(candidates.others and candidates.members)
    for name, part in upload.parts.items():
        attacks: list[Attack] = []
        skipped = ""
        if name in ("classifier", "knowledge"):
            if comparable:
                attacks, skipped = _attack_net(
                    upload, part, candidates, trained_on, metadata, audit
                )
            findings.append(membership_finding(name, attacks, skipped))
            inverted = try_reconstruction(part, candidates, seed=audit.seed, device=audit.device)
            findings.append(reconstruction_finding(inverted))
        elif name == "statistics":
            if comparable:
                attacks = [attack_statistics(upload, candidates, audit.device)]
            findings.append(membership_finding(name, attacks))
        elif name == "sums":
            if comparable:
                attack, skipped = attack_sums(upload, candidates, audit.device)
                attacks = [] if attack is None else [attack]
            findings += [sums_finding(upload), membership_finding(name, attacks, skipped)]
        elif name == "decoder":
            if comparable:
                attacks = [attack_decoder(upload, candidates, seed=audit.seed, device=audit.device)]
            findings.append(membership_finding(name, attacks))
    return findings


def _attack_net(
    upload: Upload,
    part: Part,
    candidates: Candidates,
    trained_on: int,
    metadata: Mapping[str, Any] | None,
    audit: Audit,
) -> tuple[list[Attack], str]:
    """Loss and LiRA on a classifier, with shadow nets that train as it did, as far as is known."""
    plan = None
    if audit.shadows:
        known = (metadata or {}).get("training")
        # Shadow nets have no noise, so settings that were made for it do not suit them.
        usable = isinstance(known, dict) and upload.privacy is None
        settings = known if usable else None
        epochs = None
        if settings is not None and upload.local_steps:
            batches = -(-trained_on // int(settings.get("batch_size", 128)))
            epochs = max(1, round(upload.local_steps / batches))
        plan = plan_shadows(
            part,
            candidates,
            trained_on,
            settings=settings,
            epochs=epochs,
            number=audit.shadows,
            passes=audit.passes,
        )
    return attack_classifier(
        part, candidates, plan, seed=audit.seed, device=audit.device, watch=audit.watch
    )


def _take(client: ClientData, rows: Tensor) -> ClientData:
    return replace(client, pixels=client.pixels[rows], labels=client.labels[rows])


def _join(first: ClientData, second: ClientData) -> ClientData:
    """Images of two sources under the classes of the first; others of the second are left out."""
    known = {name: place for place, name in enumerate(first.classes)}
    places = torch.tensor([known.get(name, -1) for name in second.classes])
    labels = places[second.labels] if len(second.labels) else second.labels
    if first.image_shape != second.image_shape:  # pick_candidates names both shapes
        return second if len(labels) else first
    kept = labels >= 0
    return replace(
        first,
        pixels=torch.cat([first.pixels, second.pixels[kept]]),
        labels=torch.cat([first.labels, labels[kept]]),
    )


def _check_owner(upload: Upload, owner: ClientData, trained_on: int, *, known: bool) -> None:
    """Raise where these cannot be the images that an upload was trained on."""
    problems = []
    for name, part in upload.parts.items():
        unknown = sorted(set(_held(owner)) - set(part.classes))
        if unknown:
            problems.append(f"part {name} does not know the classes {', '.join(unknown[:5])}")
    noisy = any(dict(part.spec.options).get("epsilon") for part in upload.parts.values())
    if known and not noisy and upload.num_examples != trained_on:
        problems.append(
            f"the upload is of {upload.num_examples:,} images, these are {trained_on:,}"
        )
    if problems:
        raise DataError(
            "These are not the images that the upload was made from:",
            problems=problems,
            fix="name the data that it was trained on",
        )


def _held(owner: ClientData) -> Sequence[str]:
    return [owner.classes[label] for label in owner.labels.unique().tolist()]
