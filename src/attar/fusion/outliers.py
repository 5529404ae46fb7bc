"""Which client does not fit in? A report per fusion, made without any data.

Every classifier is asked about synthetic images: those the method made, the server's public
ones, or, where there are neither, images inverted from the clients themselves. What counts is
whether a client, asked about images that the *other* holders of a class agree are of that class,
sees that class, too:

    agreement_k = (r_k - 1/m_k) / (1 - 1/m_k)      r_k: share of such images that k gives to the same class, mean over its classes
                                                   m_k: classes that k holds

1 is full agreement, 0 is chance. A client is asked only about classes that it holds, by label
counts or, where they are withheld, by its own answers, and each client's bias towards the
classes it has most of is taken away first. So a skewed client is not blamed for what it never
saw; one whose labels were changed falls to chance or below. ``LEAST_AGREEMENT`` lies between
what was measured of honest and of planted clients (docs/trust.md).

It is a heuristic for people to look at, never a proof: a majority of bad clients makes the good
ones look bad, and a backdoor that shows on none of these images is not seen.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import NEVER, Teachers, as_classifiers
from attar.blocks.images import Synthesis, invert_pixels
from attar.blocks.student import total_variation
from attar.core import Images, Mixture, Result, Server, Upload
from attar.nets import to_shape
from attar.seeds import derive, generator

LEAST_AGREEMENT = 0.3  # below it, a client is flagged
FEWEST_CLASSES = 3  # that a client shares with witnesses; with fewer, luck decides
# holders of a class beside the client: of a single one nobody knows which of the two is wrong
FEWEST_WITNESSES = 2
FEWEST_IMAGES = 20
UNITED = 0.3  # mean probability by which witnesses have to agree on an image
FAR_NORM = 4.0  # times larger or smaller than the others' median
FAR_LOGITS = 10.0
ENTROPY = 0.95  # of the largest possible
CONSTANT = 0.99  # share of one answer
EVEN = 3.0  # a class is held with at least a third of an even share of the client's examples

IMAGES = 240  # inverted, in all
PER_CLASS = 6
STEPS = 60
RATE = 0.05
VARIATION = 1e-3
SHIFT = 2  # pixels by which images are moved about while they are inverted
BATCH = 256


@dataclass(frozen=True)
class ClientReport:
    """What was found about one client."""

    client: str
    agreement: float | None  # with the rest; None: see unjudged
    judged_on: int  # images
    weight: float | None  # share of the ensemble that the method gave it
    weight_norm: float | None  # of its net, in norms of a fresh one
    logit_scale: float | None
    entropy: float | None  # mean, of the largest possible
    commonest: float | None  # share of its commonest answer
    flags: tuple[str, ...]  # what is suspicious, in words; empty: nothing
    unjudged: str | None = None


@dataclass(frozen=True)
class Robustness:
    """The report on all clients of a fusion."""

    images: int
    source: str
    clients: tuple[ClientReport, ...]
    unjudged: str | None = None  # why nobody at all was judged; None: somebody was

    @property
    def suspects(self) -> tuple[str, ...]:
        return tuple(report.client for report in self.clients if report.flags)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "least_agreement": LEAST_AGREEMENT, "suspects": list(self.suspects)}


@dataclass(frozen=True)
class _Jury:
    """Clients that sent a classifier, and what they answered."""

    uploads: Sequence[Upload]
    logits: Tensor  # (K, N, C), 0 where a class is unknown
    known: Tensor  # (K, C)
    held: Tensor  # (K, C) classes that each client has learned from examples
    source: Tensor  # (N,) the client that an image was inverted from; -1: nobody's

    @property
    def probabilities(self) -> Tensor:
        return self._finite.softmax(-1)

    @property
    def centred(self) -> Tensor:
        """Probabilities without what a client expects before it looks: a skewed one says its
        commonest class too readily.
        """
        logs = self._finite.log_softmax(-1)
        return (
            (logs - logs.mean(1, keepdim=True)).masked_fill(~self.known[:, None], NEVER).softmax(-1)
        )

    @property
    def _finite(self) -> Tensor:
        return self.logits.nan_to_num(0.0, 0.0, 0.0).masked_fill(~self.known[:, None], NEVER)


def examine(uploads: Sequence[Upload], server: Server, result: Result) -> Robustness:
    """Look at every client of a finished fusion."""
    uploads = as_classifiers(uploads)
    voters = [upload for upload in uploads if "classifier" in upload.parts]
    norms = {upload.client: _norm(upload) for upload in uploads}
    weights = _weights(voters, result)
    if not voters:
        reports = [_silent(upload, norms, uploads) for upload in uploads]
        silent = "nobody sent a classifier"
        return Robustness(0, silent, tuple(reports), silent)
    parts = [upload.parts["classifier"] for upload in voters]
    classes = server.task.classes
    teachers = Teachers(parts, classes, memory=server.teacher_memory, partial=True).to(
        server.device
    )
    known = teachers.known.cpu()
    images, origin, source = _samples(voters, known, teachers, server, result)
    with torch.no_grad():
        logits = torch.cat(
            [teachers(some.to(server.device)).float().cpu() for some in images.split(BATCH)], 1
        )
    jury = _Jury(voters, logits, known, _held(voters, known, logits, classes), origin)
    scales = {upload.client: _scale(logits[row], known[row]) for row, upload in enumerate(voters)}
    looks = [_looks(jury, row, norms, scales) for row in range(len(voters))]
    verdicts = judge(jury, {row for row, look in enumerate(looks) if look.flags})
    found = {
        upload.client: _report(upload, weights.get(upload.client), norms, scales, look, verdict)
        for upload, look, verdict in zip(voters, looks, verdicts, strict=True)
    }
    reports = [found.get(one.client) or _silent(one, norms, uploads) for one in uploads]
    return Robustness(len(images), source, tuple(reports), _why_nobody(verdicts, len(images)))


@dataclass(frozen=True)
class _Looks:
    """What can be said of a client's answers without asking anybody else."""

    entropy: float | None
    commonest: float
    flags: tuple[str, ...]


def _looks(
    jury: _Jury, row: int, norms: Mapping[str, float], scales: Mapping[str, float | None]
) -> _Looks:
    name, known = jury.uploads[row].client, jury.known[row]
    probabilities = jury.probabilities[row]
    foreign = jury.source != row
    answers = probabilities[foreign if bool(foreign.any()) else slice(None)].argmax(-1)
    commonest = float(answers.bincount(minlength=len(known)).max() / len(answers))
    entropy, choices = None, int(known.sum())
    if choices > 1:
        entropy = float(
            -(probabilities * probabilities.clamp(min=1e-12).log()).sum(-1).mean()
            / math.log(choices)
        )
    flags = []
    if not bool(torch.isfinite(jury.logits[row]).all()):
        flags.append("gives NaN or infinite logits")
    if entropy is not None and entropy > ENTROPY:
        flags.append(
            f"answers as if it knew nothing (entropy {100 * entropy:.0f} % of the largest)"
        )
    if commonest >= CONSTANT and int(jury.held[row].sum()) >= FEWEST_CLASSES:
        flags.append(f"gives {100 * commonest:.0f} % of the images to one class")
    flags += _far("its weights are", name, norms, FAR_NORM) + _far(
        "its logits are", name, scales, FAR_LOGITS
    )
    return _Looks(entropy, commonest, tuple(flags))


def _report(
    upload: Upload,
    weight: float | None,
    norms: Mapping[str, float],
    scales: Mapping[str, float | None],
    look: _Looks,
    verdict: "Verdict",
) -> ClientReport:
    agreement, name = verdict.agreement, upload.client
    flags = look.flags
    if agreement is not None and agreement < LEAST_AGREEMENT:
        flags = (f"hardly agrees with the rest ({agreement:.2f}, below {LEAST_AGREEMENT})", *flags)
    return ClientReport(
        name,
        agreement,
        verdict.images,
        weight,
        norms[name],
        scales[name],
        look.entropy,
        look.commonest,
        flags,
        verdict.unjudged,
    )


def _silent(upload: Upload, norms: Mapping[str, float], uploads: Sequence[Upload]) -> ClientReport:
    """A client without a classifier cannot be asked; its weights can be looked at."""
    alike = {one.client: norms[one.client] for one in uploads if "classifier" not in one.parts}
    flags = tuple(_far("its weights are", upload.client, alike, FAR_NORM))
    told = f"sent no classifier but: {', '.join(upload.parts)}"
    return ClientReport(
        upload.client, None, 0, None, norms[upload.client], None, None, None, flags, told
    )


@dataclass(frozen=True)
class Verdict:
    """How far a client agrees with the rest, on how many images; or why that cannot be said."""

    agreement: float | None
    images: int
    unjudged: str | None = None
    shared: int = 0  # classes that it has in common with enough others


def judge(jury: _Jury, suspects: Set[int] = frozenset()) -> list[Verdict]:
    """Everybody's agreement with the rest. Who falls below the threshold is no witness against
    the others any more.

    One at a time, the lowest first: an honest client that few share classes with must not be
    blamed for contradicting a liar.
    """
    out = set(suspects)
    while True:
        verdicts = [agreement_of(jury, row, out) for row in range(len(jury.uploads))]
        low = [
            (v.agreement, row)
            for row, v in enumerate(verdicts)
            if row not in out and v.agreement is not None
        ]
        if not low or min(low)[0] >= LEAST_AGREEMENT:
            return verdicts
        out.add(min(low)[1])


def agreement_of(jury: _Jury, row: int, suspects: Set[int] = frozenset()) -> Verdict:
    """A client's agreement with the others that are no suspects."""
    held, rest = (
        jury.held[row],
        [other for other in range(len(jury.uploads)) if other != row and other not in suspects],
    )
    witnesses = jury.held[rest]  # (K - 1, C)
    shared = held & (witnesses.sum(0) >= FEWEST_WITNESSES)
    common = int(shared.sum())
    if common < FEWEST_CLASSES:
        classes = "1 class" if common == 1 else f"{common} classes"
        told = f"shares {classes} with {FEWEST_WITNESSES} or more others, {FEWEST_CLASSES} such classes are needed"
        return Verdict(None, 0, told, common)
    probabilities = jury.centred
    # Each says its probabilities on what it holds; one vote each, so no client is heard more by
    # being louder.
    says = (probabilities[rest] * witnesses[:, None]).sum(0) / witnesses.sum(0).clamp(min=1)
    sure, consensus = says.max(-1)
    counted = (jury.source != row) & (sure >= UNITED) & shared[consensus]
    answer = probabilities[row].masked_fill(~held, -1.0).argmax(-1)
    asked = [
        label
        for label in shared.nonzero().squeeze(1).tolist()
        if int((counted & (consensus == label)).sum()) >= 2
    ]
    number = int((counted & torch.isin(consensus, torch.tensor(asked, dtype=torch.int64))).sum())
    if len(asked) < FEWEST_CLASSES or number < FEWEST_IMAGES:
        told = f"the others agree on {number} images of {len(asked)} classes that it holds: too few"
        return Verdict(None, number, told, common)
    recalls = [
        float((answer[counted & (consensus == label)] == label).float().mean()) for label in asked
    ]
    chance = 1 / int(held.sum())
    return Verdict((sum(recalls) / len(recalls) - chance) / (1 - chance), number, None, common)


def _why_nobody(verdicts: Sequence[Verdict], images: int) -> str | None:
    """What a judgement would take, where nobody is judged; None where somebody is."""
    if any(verdict.agreement is not None for verdict in verdicts):
        return None
    if max(verdict.shared for verdict in verdicts) < FEWEST_CLASSES:
        return f"it takes {FEWEST_WITNESSES + 1} classifiers that share {FEWEST_CLASSES} classes"
    return f"the classifiers agree on too few of the {images} images"


def _held(
    uploads: Sequence[Upload], known: Tensor, logits: Tensor, classes: Sequence[str]
) -> Tensor:
    """(K, C): classes of which a client has enough examples, or, where counts are withheld, that
    it gives as answers.
    """
    held = torch.zeros_like(known)
    for row, upload in enumerate(uploads):
        part = upload.parts["classifier"]
        if upload.label_counts is None:
            answers = (
                logits[row].nan_to_num(0.0, 0.0, 0.0).masked_fill(~known[row], NEVER).argmax(-1)
            )
            shares = answers.bincount(minlength=len(classes)) / len(answers)
            held[row] = known[row] & (shares * EVEN * int(known[row].sum()) >= 1)
        else:
            even = upload.num_examples / len(part.classes)
            for name, count in zip(part.classes, upload.label_counts, strict=True):
                held[row, classes.index(name)] = count * EVEN >= even
    return held


def _samples(
    uploads: Sequence[Upload], known: Tensor, teachers: Teachers, server: Server, result: Result
) -> tuple[Tensor, Tensor, str]:
    """Images, whose they are, and where they come from in words."""
    made = [
        images.float().cpu()
        for images in result.images.values()
        if images.dim() == 4 and len(images)
    ]
    shape = server.task.input_shape
    if server.public is not None and len(server.public.pixels) >= IMAGES:
        images = _some_of(server.public, server.seed)
        return (
            to_shape(images, shape),
            torch.full((len(images),), -1),
            f"public images of the server: {server.public.source}",
        )
    inverted, origin = invert_clients(uploads, known, teachers, server)
    if not made:
        return inverted, origin, "images inverted from the clients"
    own = torch.cat([to_shape(images, shape) for images in made]).clamp(0, 1)
    both = torch.cat([inverted, own])
    origin = torch.cat([origin, torch.full((len(own),), -1)])
    return (
        both,
        origin,
        f"{len(own)} images of the method, {len(inverted)} inverted from the clients",
    )


def _some_of(images: Images, seed: int) -> Tensor:
    chosen = torch.randperm(len(images.pixels), generator=generator(seed, "robustness"))[:IMAGES]
    return images.pixels[chosen].float() / 255


def invert_clients(
    uploads: Sequence[Upload], known: Tensor, teachers: Teachers, server: Server
) -> tuple[Tensor, Tensor]:
    """A few images of each class that a client holds, by a short inversion of its net alone; and
    whose they are.

    Of very many clients or classes, some are drawn: there are never more than ``IMAGES`` images,
    or one for each client.
    """
    draws = generator(server.seed, "robustness")
    shape, device = server.task.input_shape, server.device
    claimed = [
        _claimed(upload, known[row], server.task.classes) for row, upload in enumerate(uploads)
    ]
    pairs = sum(len(labels) for labels in claimed)
    each = max(1, min(PER_CLASS, IMAGES // pairs))
    most = max(1, IMAGES // len(uploads))
    images, origin = [], []
    for row, labels in enumerate(claimed):
        wanted = labels.repeat(each)
        wanted = wanted[torch.randperm(len(wanted), generator=draws)[:most]].to(device)
        coarse = torch.rand(len(wanted), shape[0], 7, 7, generator=draws)
        start = to_shape(coarse, shape).to(device)
        moves = torch.randint(-SHIFT, SHIFT + 1, (STEPS, 2), generator=draws).tolist()
        columns = known[row].to(device)

        def loss(
            pictures: Tensor,
            targets: Tensor,
            row: int = row,
            columns: Tensor = columns,
            moves: list[list[int]] = moves,
        ) -> Tensor:
            down, right = moves.pop()
            logits = teachers.one(row, pictures.roll((down, right), (2, 3))).masked_fill(
                ~columns, NEVER
            )
            return F.cross_entropy(logits, targets) + VARIATION * total_variation(pictures)

        made, _ = invert_pixels(start, loss, Synthesis(STEPS, RATE), [wanted])
        images.append(made.clamp(0, 1).nan_to_num(0.5).cpu())
        origin.append(torch.full((len(wanted),), row))
    return torch.cat(images), torch.cat(origin)


def _claimed(upload: Upload, known: Tensor, classes: Sequence[str]) -> Tensor:
    """Columns of the classes that a client says it has examples of; all it knows where counts
    are withheld.
    """
    part = upload.parts["classifier"]
    if upload.label_counts is None:
        return known.nonzero().squeeze(1)
    names = [name for name, count in zip(part.classes, upload.label_counts, strict=True) if count]
    return torch.tensor([classes.index(name) for name in names])


def _scale(logits: Tensor, known: Tensor) -> float | None:
    """Standard deviation of the logits over the classes that a client knows; None for one class
    or infinite answers.
    """
    own = logits[:, known]
    if own.shape[1] < 2 or not bool(torch.isfinite(own).all()):
        return None
    return float(own.std(-1).mean())


def _norm(upload: Upload) -> float:
    """The norm of a client's weights in norms of a fresh net of its kind, so that architectures
    compare.
    """
    total = fresh = 0.0
    for part in upload.parts.values():
        net = part.spec.build(
            part.preprocess.input_shape, len(part.classes), derive(0, "robustness")
        )
        names = {name for name, _ in net.named_parameters()}
        fresh += sum(float(value.detach().double().square().sum()) for value in net.parameters())
        total += sum(
            float(part.state[name].double().square().sum()) for name in names if name in part.state
        )
    return math.sqrt(total / fresh) if fresh else 1.0


def _far(what: str, name: str, values: Mapping[str, float | None], times: float) -> list[str]:
    """A word where a client's number is many times larger or smaller than the median of the others'."""
    own = values.get(name)
    others = [value for other, value in values.items() if other != name and value is not None]
    if own is None or len(others) < FEWEST_WITNESSES:
        return []
    usual = median(others)
    if own > times * usual:
        return [f"{what} {_times(own, usual)} as large as the others'"]
    if own * times < usual:
        return [f"{what} {_times(usual, own)} smaller than the others'"]
    return []


def _times(large: float, small: float) -> str:
    return f"{large / small:.3g} times" if small > 0 else "infinitely many times"


def _weights(voters: Sequence[Upload], result: Result) -> dict[str, float]:
    """Each client's share of the ensemble, where the method delivers one that weighs all clients."""
    found = [
        model.weights
        for model in result.models.values()
        if isinstance(model, Mixture)
        and model.weights is not None
        and len(model.members) == len(voters)
    ]
    found += [
        table
        for name, table in result.arrays.items()
        if name == "weights" and len(table) == len(voters)
    ]
    if not found:
        return {}
    table = found[0].detach().cpu().double()
    shares = table if table.dim() == 1 else table.mean(1)
    total = float(shares.sum())
    if not math.isfinite(total) or total == 0:
        return {}
    return {
        upload.client: float(share) / total for upload, share in zip(voters, shares, strict=True)
    }
