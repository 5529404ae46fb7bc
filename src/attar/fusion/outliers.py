"""Which client does not fit in? A report on each client of a fusion, made without any data.

Every classifier is asked about synthetic images: those the method made, the server's public ones,
or, where there are neither, images inverted from the clients themselves (``probe_images``). A
client is flagged where its answers hardly agree with those of the others (``agreement``), where
they are constant or know nothing, and where its weights or logits are far from the others'.

It is a heuristic for people to look at, never a proof: a majority of bad clients makes the good
ones look bad, and a backdoor that shows on none of these images is not seen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attar.blocks.ensemble import Teachers, use_knowledge_nets
from attar.core import Mixture, Result, Server, Upload
from attar.fusion.agreement import (
    FEWEST_CLASSES,
    FEWEST_WITNESSES,
    LEAST_AGREEMENT,
    Agreement,
    ClientAnswers,
    explain_no_agreement,
    held_classes,
    measure_agreements,
)
from attar.fusion.probe_images import STEPS, collect_images
from attar.seeds import derive

FAR_NORM = 4.0  # times larger or smaller than the others' median
FAR_LOGITS = 10.0
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
        weight: Its share of the ensemble, where the method gave one.
        weight_norm: Norm of its net's weights, in norms of a fresh one.
        logit_scale: Standard deviation of its logits.
        entropy: Mean entropy of its answers, as a share of the largest possible.
        commonest: Share of its commonest answer.
        flags: What is suspicious, in words; empty: nothing.
        unjudged: Why it could not be compared with the others.
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


@dataclass(frozen=True)
class OutlierReport:
    """The report on all clients of a fusion.

    Attributes:
        images: How many images the clients were asked about.
        source: Where these come from, in words.
        clients: A report on each client.
        unjudged: Why no client could be compared with the others; None: some were.
    """

    images: int
    source: str
    clients: tuple[ClientReport, ...]
    unjudged: str | None = None

    @property
    def suspects(self) -> tuple[str, ...]:
        """Names of the clients that are flagged."""
        return tuple(report.client for report in self.clients if report.flags)

    def as_json(self) -> dict[str, Any]:
        """The report as the record has it."""
        return {**asdict(self), "least_agreement": LEAST_AGREEMENT, "suspects": list(self.suspects)}


def find_outliers(
    uploads: Sequence[Upload], server: Server, result: Result, *, inversion_steps: int = STEPS
) -> OutlierReport:
    """Examine every client of a finished fusion.

    Args:
        uploads: What was fused.
        server: Its public images are used where it has enough.
        result: Of the fusion; its images and ensemble weights are used.
        inversion_steps: Steps in which images are inverted from a client.
    """
    uploads = use_knowledge_nets(uploads)
    norms = {upload.client: _relative_norm(upload) for upload in uploads}
    voters = [upload for upload in uploads if "classifier" in upload.parts]
    if not voters:
        reports = [_report_without_classifier(upload, norms, uploads) for upload in uploads]
        why = "nobody sent a classifier"
        return OutlierReport(images=0, source=why, clients=tuple(reports), unjudged=why)
    answers, source = _ask_clients(voters, server, result, inversion_steps)
    scales = {
        upload.client: _logit_scale(answers.logits[row], answers.known[row])
        for row, upload in enumerate(voters)
    }
    alone = [_examine_alone(answers, row, norms, scales) for row in range(len(voters))]
    suspects = {row for row, report in enumerate(alone) if report.flags}
    agreements = measure_agreements(answers, suspects)
    weights = _ensemble_weights(voters, result)
    reports_of_voters = {
        upload.client: ClientReport(
            client=upload.client,
            agreement=agreement.agreement,
            judged_on=agreement.images,
            weight=weights.get(upload.client),
            weight_norm=norms[upload.client],
            logit_scale=scales[upload.client],
            entropy=report.entropy,
            commonest=report.commonest,
            flags=(*_agreement_flags(agreement), *report.flags),
            unjudged=agreement.unjudged,
        )
        for upload, report, agreement in zip(voters, alone, agreements, strict=True)
    }
    images = answers.logits.shape[1]
    return OutlierReport(
        images=images,
        source=source,
        clients=tuple(
            reports_of_voters.get(upload.client)
            or _report_without_classifier(upload, norms, uploads)
            for upload in uploads
        ),
        unjudged=explain_no_agreement(agreements, images),
    )


def _ask_clients(
    voters: Sequence[Upload], server: Server, result: Result, inversion_steps: int
) -> tuple[ClientAnswers, str]:
    """The answers of all classifiers, and where the images come from in words."""
    classes = server.task.classes
    teachers = Teachers(
        [upload.parts["classifier"] for upload in voters],
        classes,
        memory=server.teacher_memory,
        partial=True,
    ).to(server.device)
    known = teachers.known.cpu()
    images, source, words = collect_images(voters, known, teachers, server, result, inversion_steps)
    with torch.no_grad():
        batches = [teachers(batch.to(server.device)).float().cpu() for batch in images.split(BATCH)]
    logits = torch.cat(batches, 1)
    held = held_classes(voters, known, logits, classes)
    answers = ClientAnswers(uploads=voters, logits=logits, known=known, held=held, source=source)
    return answers, words


@dataclass(frozen=True)
class _AloneReport:
    """What can be said of a client's answers without comparing them."""

    entropy: float | None
    commonest: float
    flags: tuple[str, ...]


def _examine_alone(
    answers: ClientAnswers,
    row: int,
    norms: Mapping[str, float],
    scales: Mapping[str, float | None],
) -> _AloneReport:
    name = answers.uploads[row].client
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
    if not bool(torch.isfinite(answers.logits[row]).all()):
        flags.append("gives NaN or infinite logits")
    if entropy is not None and entropy > ENTROPY:
        flags.append(
            f"answers as if it knew nothing (entropy {100 * entropy:.0f} % of the largest)"
        )
    if commonest >= CONSTANT and int(answers.held[row].sum()) >= FEWEST_CLASSES:
        flags.append(f"gives {100 * commonest:.0f} % of the images to one class")
    flags += _distance_flags("its weights are", name, norms, FAR_NORM)
    flags += _distance_flags("its logits are", name, scales, FAR_LOGITS)
    return _AloneReport(entropy=entropy, commonest=commonest, flags=tuple(flags))


def _agreement_flags(measured: Agreement) -> list[str]:
    if measured.agreement is None or measured.agreement >= LEAST_AGREEMENT:
        return []
    return [f"hardly agrees with the rest ({measured.agreement:.2f}, below {LEAST_AGREEMENT})"]


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
        flags=tuple(_distance_flags("its weights are", upload.client, alike, FAR_NORM)),
        unjudged=f"sent no classifier but: {', '.join(upload.parts)}",
    )


def _logit_scale(logits: Tensor, known: Tensor) -> float | None:
    """Standard deviation of the logits over the classes that a client knows; None for one class
    or infinite answers.
    """
    of_known = logits[:, known]
    if of_known.shape[1] < 2 or not bool(torch.isfinite(of_known).all()):
        return None
    return float(of_known.std(-1).mean())


def _relative_norm(upload: Upload) -> float:
    """The norm of a client's weights in norms of a fresh net of its kind, so that architectures
    compare.
    """
    total = fresh = 0.0
    for part in upload.parts.values():
        if part.spec.kind in ("sums", "mixtures"):  # nothing in it was trained
            continue
        net = part.spec.build(
            part.preprocess.input_shape, len(part.classes), derive(0, "robustness")
        )
        names = {name for name, _ in net.named_parameters()}
        fresh += sum(float(value.detach().double().square().sum()) for value in net.parameters())
        total += sum(
            float(part.state[name].double().square().sum()) for name in names if name in part.state
        )
    return math.sqrt(total / fresh) if fresh else 1.0


def _distance_flags(
    what: str, name: str, values: Mapping[str, float | None], times: float
) -> list[str]:
    """Flag a number that is many times larger or smaller than the median of the other clients'."""
    value = values.get(name)
    others = [other for client, other in values.items() if client != name and other is not None]
    if value is None or len(others) < FEWEST_WITNESSES:
        return []
    usual = median(others)
    if value > times * usual:
        return [f"{what} {_ratio(value, usual)} as large as the others'"]
    if value * times < usual:
        return [f"{what} {_ratio(usual, value)} smaller than the others'"]
    return []


def _ratio(large: float, small: float) -> str:
    return f"{large / small:.3g} times" if small > 0 else "infinitely many times"


def _ensemble_weights(voters: Sequence[Upload], result: Result) -> dict[str, float]:
    """Each client's share of the ensemble, where the method delivers weights of all clients."""
    tables = [
        model.weights
        for model in result.models.values()
        if isinstance(model, Mixture)
        and model.weights is not None
        and len(model.members) == len(voters)
    ]
    tables += [
        table
        for name, table in result.arrays.items()
        if name == "weights" and len(table) == len(voters)
    ]
    if not tables:
        return {}
    table = tables[0].detach().cpu().double()
    shares = table if table.dim() == 1 else table.mean(1)
    total = float(shares.sum())
    if not math.isfinite(total) or total == 0:
        return {}
    return {
        upload.client: float(share) / total for upload, share in zip(voters, shares, strict=True)
    }
