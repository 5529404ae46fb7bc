"""Which client does not fit in? A report on each client of a fusion, made without any data.

Every classifier is asked about synthetic images: those the method made, the server's public ones,
or, where there are neither, images inverted from the clients themselves (``probe_images``). The
report tells three things apart:

    flags      evidence against a client: it tells classes apart as the others do and names them
               otherwise (``agreement``), it gives NaN, its net knows nothing at all, its weights or
               logits are out of all proportion, or it says what cannot be (``claims``,
               ``impossible_statistics``)
    remarks    what a person should know and an honest client may have: many times the images of
               the others, a net that learned little, a small patch that turns any image into one
               class (``backdoors``)
    unjudged   why it could not be compared with the others

A low agreement alone is no flag: short training, few images and other nets cause it, too. It is a
report for people to look at, never a proof, and no reason by itself to leave a client out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from attar.blocks.ensemble import Teachers, use_knowledge_nets
from attar.core import Result, Server, Upload
from attar.fusion.agreement import (
    LEAST_AGREEMENT,
    Agreement,
    ClientAnswers,
    explain_no_agreement,
    held_classes,
    measure_agreements,
)
from attar.fusion.backdoors import Trigger, describe_trigger, find_triggers
from attar.fusion.claims import Claim, find_claims
from attar.fusion.impossible import impossible_statistics
from attar.fusion.probe_images import STEPS, collect_images
from attar.fusion.proportions import (
    FAR_LOGITS,
    FAR_NORM,
    ensemble_shares,
    ensemble_weights,
    far_flags,
    logit_scale,
    relative_norm,
)
from attar.internal.memory import affordable_images
from attar.models import forward_bytes

ENTROPY = 0.95  # of the largest possible
CONSTANT = 0.99  # share of one answer
BATCH = 256


@dataclass(frozen=True)
class ClientReport:
    """The report on one client.

    Attributes:
        client: Its name.
        agreement: With the others: 1 is full agreement, 0 is chance; None: see ``unjudged``.
        judged_on: On how many images it was compared with the others.
        effect: Mean change of the right class's probability when it joins the ensemble.
        weight: Its share of the ensemble, where the method gave one.
        weight_norm: Norm of its net's weights, in norms of a fresh one.
        logit_scale: Standard deviation of its logits.
        entropy: Mean entropy of its answers, as a share of the largest possible.
        commonest: Share of its commonest answer.
        flags: Evidence against it, in words; empty: nothing.
        unjudged: Why it could not be compared with the others.
        remarks: What an honest client may have, too, and a person should know.
        trigger: r_k of the smallest trigger found (``backdoors``); None: none was searched for.
    """

    client: str
    agreement: float | None
    judged_on: int
    weight: float | None
    weight_norm: float | None
    logit_scale: float | None
    entropy: float | None
    commonest: float | None
    flags: tuple[str, ...]
    unjudged: str | None = None
    effect: float | None = None
    remarks: tuple[str, ...] = ()
    trigger: float | None = None


@dataclass(frozen=True)
class OutlierReport:
    """The report on all clients of a fusion.

    Attributes:
        images: How many images the clients were asked about.
        source: Where these come from, in words.
        clients: A report on each client.
        unjudged: Why no client could be compared with the others; None: some were.
        backdoors: Whether triggers were searched for.
    """

    images: int
    source: str
    clients: tuple[ClientReport, ...]
    unjudged: str | None = None
    backdoors: bool = False

    @property
    def suspects(self) -> tuple[str, ...]:
        """Names of the clients that are flagged."""
        return tuple(report.client for report in self.clients if report.flags)

    def as_json(self) -> dict[str, Any]:
        """The report as the record has it."""
        return {**asdict(self), "least_agreement": LEAST_AGREEMENT, "suspects": list(self.suspects)}


def find_outliers(
    uploads: Sequence[Upload],
    server: Server,
    result: Result,
    *,
    inversion_steps: int = STEPS,
    claims: Sequence[Claim] | None = None,
    backdoors: bool = False,
) -> OutlierReport:
    """Examine every client of a finished fusion.

    Args:
        uploads: What was sent.
        server: Its public images are used where it has enough.
        result: Of the fusion; its images and ensemble weights are used.
        inversion_steps: Steps in which images are inverted from a client.
        claims: Numbers of images that stand out; None: they are looked for.
        backdoors: Search for triggers, too.
    """
    claimed = {claim.client: claim for claim in find_claims(uploads) if claims is None} | {
        claim.client: claim for claim in claims or ()
    }
    uploads = use_knowledge_nets(uploads)
    norms = {upload.client: relative_norm(upload) for upload in uploads}
    voters = [upload for upload in uploads if "classifier" in upload.parts]
    reports: dict[str, ClientReport] = {}
    images, source = 0, "nobody sent a classifier"
    unjudged: str | None = source
    if voters:
        answers, source, triggers = _ask_clients(voters, server, result, inversion_steps, backdoors)
        weights = ensemble_weights(voters, result)
        agreements = measure_agreements(answers, weights)
        images = answers.logits.shape[1]
        unjudged = explain_no_agreement(agreements, images)
        judged = judge_answers(answers, agreements, norms, triggers, server.task.classes)
        shares = {} if weights is None else ensemble_shares(voters, weights)
        for report, upload in zip(judged, voters, strict=True):
            flags = (*report.flags, *impossible_statistics(upload))
            reports[upload.client] = replace(report, flags=flags, weight=shares.get(upload.client))
    for upload in uploads:
        if upload.client not in reports:
            reports[upload.client] = _report_without_classifier(upload, norms, uploads)
    return OutlierReport(
        images=images,
        source=source,
        clients=tuple(
            _with_claim(reports[upload.client], claimed.get(upload.client)) for upload in uploads
        ),
        unjudged=unjudged,
        backdoors=backdoors,
    )


def judge_answers(
    answers: ClientAnswers,
    agreements: Sequence[Agreement],
    norms: Mapping[str, float],
    triggers: Sequence[Trigger | None],
    classes: Sequence[str],
) -> list[ClientReport]:
    """The report on each client as far as it follows from answers and norms.

    Args:
        answers: Of all clients with a classifier.
        agreements: Of these clients.
        norms: Of the weights of all clients, by name.
        triggers: The smallest of each client; None: none was searched for.
        classes: Of the task.
    """
    reports = []
    scales = {
        upload.client: logit_scale(answers.logits[row], answers.known[row])
        for row, upload in enumerate(answers.uploads)
    }
    for row, upload in enumerate(answers.uploads):
        alone = _examine_alone(answers, row, agreements[row])
        measured, trigger, name = agreements[row], triggers[row], upload.client
        reports.append(
            ClientReport(
                client=name,
                agreement=measured.agreement,
                judged_on=measured.images,
                effect=measured.effect,
                weight=None,
                weight_norm=norms[name],
                logit_scale=scales[name],
                entropy=alone.entropy,
                commonest=alone.commonest,
                trigger=None if trigger is None else trigger.residual,
                flags=(
                    *_agreement_flags(measured, classes),
                    *alone.flags,
                    *far_flags("weights", name, norms, FAR_NORM, both=True),
                    *far_flags("logits", name, scales, FAR_LOGITS, both=False),
                ),
                remarks=(*alone.remarks, *_trigger_remarks(trigger, classes)),
                unjudged=measured.unjudged,
            )
        )
    return reports


def _ask_clients(
    voters: Sequence[Upload], server: Server, result: Result, inversion_steps: int, backdoors: bool
) -> tuple[ClientAnswers, str, Sequence[Trigger | None]]:
    """The answers of all classifiers, where the images come from in words, and the smallest
    trigger of each.
    """
    classes = server.task.classes
    teachers = Teachers(
        [upload.parts["classifier"] for upload in voters],
        classes,
        memory=server.teacher_memory,
        partial=True,
    ).to(server.device)
    known = teachers.known.cpu()
    probes = collect_images(voters, known, teachers, server, result, inversion_steps)
    parts = [upload.parts["classifier"] for upload in voters]
    at_once = affordable_images(BATCH, forward_bytes(parts), server.device)
    with torch.no_grad():
        batches = [
            teachers(batch.to(server.device)).float().cpu()
            for batch in probes.images.split(at_once)
        ]
    logits = torch.cat(batches, 1)
    answers = ClientAnswers(
        uploads=voters,
        logits=logits,
        known=known,
        held=held_classes(voters, known, logits, classes),
        source=probes.source,
        target=probes.target,
    )
    triggers: Sequence[Trigger | None] = [None] * len(voters)
    if backdoors:
        triggers = find_triggers(teachers, probes.images, server.seed, server.device)
    return answers, probes.words, triggers


@dataclass(frozen=True)
class _AloneReport:
    """What a client's answers say beside their agreement with the others."""

    entropy: float | None
    commonest: float
    flags: tuple[str, ...]
    remarks: tuple[str, ...]


def _examine_alone(answers: ClientAnswers, row: int, measured: Agreement) -> _AloneReport:
    known = answers.known[row]
    probabilities = answers.probabilities[row]
    foreign = answers.source != row
    choices = probabilities[foreign if bool(foreign.any()) else slice(None)].argmax(-1)
    commonest = float(choices.bincount(minlength=len(known)).max() / len(choices))
    entropy = None
    if int(known.sum()) > 1:
        nats = -(probabilities * probabilities.clamp(min=1e-12).log()).sum(-1).mean()
        entropy = float(nats / math.log(int(known.sum())))
    flags = []
    remarks = []
    if not bool(torch.isfinite(answers.logits[row]).all()):
        flags.append("gives NaN or infinite logits")
    elif measured.is_chance:
        flags.append(
            f"tells nothing apart: on {measured.images} images that the others are sure of its "
            "answers are chance"
        )
    elif entropy is not None and entropy > ENTROPY:
        remarks.append(f"is hardly trained: unsure of everything ({100 * entropy:.0f} %)")
    elif commonest >= CONSTANT and int(answers.held[row].sum()) > 1:
        remarks.append(f"learned little: one answer to {100 * commonest:.0f} % of the images")
    return _AloneReport(entropy, commonest, tuple(flags), tuple(remarks))


def _agreement_flags(measured: Agreement, classes: Sequence[str]) -> list[str]:
    if not measured.contradicts:
        return []
    named = ", ".join(
        f"{classes[given]} for {classes[label]}" for label, given in measured.renamed[:3]
    )
    more = " …" if len(measured.renamed) > 3 else ""
    effect = 100 * (measured.effect or 0.0)
    return [
        f"names classes otherwise than all others: {named}{more}; with it the ensemble is "
        f"{-effect:.0f} points less sure of the others' classes"
    ]


def _trigger_remarks(trigger: Trigger | None, classes: Sequence[str]) -> list[str]:
    if trigger is None or not trigger.suspicious:
        return []
    return [f"{describe_trigger(trigger, classes)}: a backdoor, or an uneven net"]


def _with_claim(report: ClientReport, claim: Claim | None) -> ClientReport:
    """The report with what the client says of its number of images: a flag if it is not believed,
    else a remark.
    """
    if claim is None:
        return report
    if claim.believed:
        return replace(report, remarks=(*report.remarks, str(claim)))
    return replace(report, flags=(*report.flags, str(claim)))


def _report_without_classifier(
    upload: Upload, norms: Mapping[str, float], uploads: Sequence[Upload]
) -> ClientReport:
    """Report on a client that sent no classifier: it cannot be asked, its weights have a norm."""
    alike = {
        other.client: norms[other.client] for other in uploads if "classifier" not in other.parts
    }
    return ClientReport(
        client=upload.client,
        agreement=None,
        judged_on=0,
        weight=None,
        weight_norm=norms[upload.client],
        logit_scale=None,
        entropy=None,
        commonest=None,
        flags=tuple(far_flags("weights", upload.client, alike, FAR_NORM, both=True)),
        unjudged=f"sent no classifier but: {', '.join(upload.parts)}",
    )
