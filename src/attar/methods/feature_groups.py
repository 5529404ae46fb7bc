"""What methods for sums of features share: groups of clients with one backbone, and their model.

Clients whose sums have one fingerprint form a group, whose sums are added. Every group gets a
head. Several groups, and classifiers of clients without sums, become one model by the rule
``log-odds``: the heads' logits are divided by their temperatures before, so that a head that is
surer than it should be does not outvote the others.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attar.backbones import Backbone, backbone_of, load_backbone, read_variant
from attar.blocks.heads import (
    SUMS,
    Head,
    LinearHead,
    QuadraticHead,
    Totals,
    add_clients,
    fingerprint_of,
    group_problems,
    options_of,
    part_problems,
    totals_problems,
)
from attar.core import Deployable, KeptSums, Mixture, ModelSpec, Part, Server, Upload
from attar.errors import AttarError, NeedsError

CLASSIFIER = "classifier"
# Clients whose covariances are looked at each; of more, those of all together, which takes the time
# of one.
CHECKED_ONE_BY_ONE = 64


@dataclass(frozen=True, eq=False)
class Group:
    """Clients with one backbone.

    Attributes:
        backbone: that they share.
        named: the ``sums`` part of each client, by its name.
        totals: their sums, added.
        examples: images of all of them.
    """

    backbone: Backbone
    named: Mapping[str, Part]
    totals: Totals
    examples: int

    @property
    def options(self) -> dict[str, Any]:
        """Of a client's sums."""
        return options_of(next(iter(self.named.values())))

    @property
    def title(self) -> str:
        """The backbone's name and the first digits of the fingerprint."""
        return f"{self.options['backbone']} ({str(self.options['fingerprint'])[:8]})"

    def part(self, head: Head) -> Part:
        """The backbone with a head: a model."""
        width = self.totals.width
        options = self.options
        dimensions, clip = int(options["dimensions"]), float(options["clip"])
        classes = self.totals.classes
        if isinstance(head, LinearHead):
            return self.backbone.classifier(head.weight, head.bias, classes, dimensions, clip)
        nothing = torch.zeros(len(classes), width)
        linear = self.backbone.classifier(nothing, nothing[:, 0], classes, dimensions, clip)
        return _with_quadratic_head(linear, head)

    def kept(self) -> KeptSums:
        """The sums as one part, to be kept beside the model."""
        first = next(iter(self.named.values()))
        part = self.totals.as_part(first.spec, first.preprocess)
        return KeptSums(part, tuple(self.named), self.examples)


def make_groups(uploads: Sequence[Upload], server: Server) -> tuple[Group, ...]:
    """Add the sums of all clients, backbone by backbone, one client at a time.

    The groups are in the order of their fingerprints, which does not depend on that of the clients.

    Args:
        uploads: those without sums are left out.
        server: gives the order of the classes, and the backbones.

    Raises:
        NeedsError: if sums contradict each other or cannot be those of images, with every client
            and reason; or if a backbone is not there.
    """
    by_fingerprint: dict[str, list[Upload]] = defaultdict(list)
    for upload in uploads:
        if SUMS in upload.parts:
            by_fingerprint[fingerprint_of(upload.parts[SUMS])].append(upload)
    return tuple(_make_group(group, server) for _, group in sorted(by_fingerprint.items()))


def _make_group(uploads: Sequence[Upload], server: Server) -> Group:
    named = {upload.client: upload.parts[SUMS] for upload in uploads}
    problems = group_problems(list(named.items()))
    if problems:
        raise NeedsError("Sums of one backbone do not fit together:", problems=problems)
    backbone = find_backbone(next(iter(named.values())), server)
    totals = add_clients(named, server.task.classes)
    problems = totals_problems(totals, len(named))
    if problems or len(named) <= CHECKED_ONE_BY_ONE:
        reasons = [
            f"{client}: {reason}"
            for client, part in named.items()
            for reason in part_problems(part)
        ]
        problems = reasons or problems
    if problems:
        raise NeedsError(
            "These sums cannot be those of images:",
            problems=problems,
            fix="ask these clients for their files again, or leave them out with --exclude",
        )
    return Group(backbone, named, totals, sum(upload.num_examples for upload in uploads))


def find_backbone(part: Part, server: Server) -> Backbone:
    """The backbone that sums were made with.

    Args:
        part: sums of a client.
        server: its own backbones are tried first, then what attar finds by name.

    Raises:
        NeedsError: if it is not there, or the one of that name is another one.
    """
    options = options_of(part)
    name, wanted = str(options["backbone"]), str(options["fingerprint"])
    agreed = int(options["dimensions"]), float(options["clip"]), int(options["bits"])
    missing = ""
    for backbone in _candidates(name, server):
        if isinstance(backbone, AttarError):
            missing = f" {backbone.what}"
        elif (found := backbone.fingerprint(*agreed)) == wanted:
            return backbone
        else:
            missing = (
                f" What is called {name} here has the fingerprint {found[:12]}, theirs is "
                f"{wanted[:12]}: other weights, input or grid."
            )
    raise NeedsError(
        f"The backbone {name} of these sums is not at the server.{missing}",
        fix="name it with --backbone (its folder, or the name by which it is found here), or "
        "install it (`attar[backbone]`)",
    )


def _candidates(name: str, server: Server) -> Iterator[Backbone | AttarError]:
    _, variant = read_variant(name)
    for own, part in {**server.backbones, name: server.backbones.get(name)}.items():
        try:
            if part is None:
                yield load_backbone(own, variant)
            else:
                yield backbone_of(own, part, variant)
        except AttarError as error:
            yield error


def combine_heads(
    heads: Sequence[tuple[Group, Head]],
    temperatures: Sequence[float],
    uploads: Sequence[Upload],
    server: Server,
) -> Deployable:
    """One model of the heads of all groups and the classifiers of clients without sums.

    Args:
        heads: of each group.
        temperatures: of each head.
        uploads: of all clients.
        server: gives the classes.

    Returns:
        A net where there is one head with all classes; otherwise a mixture by ``log-odds``, each
        member weighted in each class by the images of that class that it was made from.
    """
    classes = server.task.classes
    others = [upload for upload in uploads if SUMS not in upload.parts]
    if len(heads) == 1 and not others and heads[0][0].totals.classes == classes:
        group, head = heads[0]
        return group.part(head)
    members = []
    counts = []
    for (group, head), temperature in zip(heads, temperatures, strict=True):
        own = group.totals.counts.sum(0).clamp(min=0)
        rows = own.nonzero().squeeze(1)
        held = tuple(group.totals.classes[row] for row in rows.tolist())
        narrowed = replace(group, totals=replace(group.totals, classes=held))
        members.append(narrowed.part(head.divided(temperature).of_classes(rows)))
        counts.append(dict(zip(held, own[rows].tolist(), strict=True)))
    for upload in others:
        part = upload.parts[CLASSIFIER]
        members.append(part)
        counts.append(_counts_of(upload, part))
    known = {name for part in members for name in part.classes}
    if missing := [name for name in classes if name not in known]:
        raise NeedsError(
            f"No client has an image of {', '.join(missing)}.",
            fix="name the classes of the task with --classes",
        )
    table = torch.tensor([[float(own.get(name, 0)) for name in classes] for own in counts])
    return Mixture(tuple(members), "log-odds", evidence(table), classes)


def _counts_of(upload: Upload, part: Part) -> dict[str, float]:
    """Images of each class behind a classifier; even where counts were withheld."""
    if upload.label_counts is not None:
        return dict(zip(part.classes, map(float, upload.label_counts), strict=True))
    return dict.fromkeys(part.classes, upload.num_examples / len(part.classes))


def evidence(counts: Tensor) -> Tensor:
    """Each member's share of the images of each class, (K, C); 1 / K where nobody has any."""
    total = counts.sum(0)
    return torch.where(total > 0, counts / total.clamp(min=1e-12), 1 / len(counts))


def _with_quadratic_head(part: Part, head: QuadraticHead) -> Part:
    width = head.means.shape[1]
    rows, columns = torch.tril_indices(width, width)
    options = {**dict(part.spec.options), "quadratic": True}
    state = {name: value for name, value in part.state.items() if not name.startswith("head.")}
    state |= {
        "head.means": head.means.float(),
        "head.factors": head.factors[:, rows, columns].float(),
        "head.bias": head.bias.float(),
    }
    return replace(part, spec=ModelSpec.of(part.spec.arch, options), state=state)
