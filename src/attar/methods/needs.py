"""Do these uploads fit this method? Every reason why not, in words that say who would have to
send what.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from attar.core import ModelSpec, Needs, Part, Preprocess, Server, Upload
from attar.internal.text import list_some
from attar.nets.registry import find
from attar.uploads import normalise_name

CAPABILITIES: dict[str, Callable[[ModelSpec, nn.Module], bool]] = {
    "features": lambda _, net: any(
        name == "head" for name, _ in net.named_children()
    ),  # a packed net may have none
    "tokens": lambda spec, _: find(spec.arch).tokens,
    "batchnorm": lambda _, net: any(isinstance(module, _BatchNorm) for module in net.modules()),
}


def unknown_capabilities(needs: Needs) -> list[str]:
    """Capabilities that nothing can be asked for, with those that there are: a slip in a method,
    not in the uploads.
    """
    known = ", ".join(CAPABILITIES)
    asked = dict.fromkeys((*needs.capabilities, *needs.each))
    return [
        f"it needs a net with {name!r}, which attar does not know: it knows {known}"
        for name in asked
        if name not in CAPABILITIES
    ]


def unmet(needs: Needs, uploads: Sequence[Upload], server: Server) -> list[str]:
    """All reasons why a method with these needs cannot work; empty when it can."""
    if not uploads:
        return ["there is no upload"]
    if slips := unknown_capabilities(needs):
        return [f"the method itself is wrong: {slip}" for slip in slips]
    reasons = []
    wanted = " or ".join(needs.parts)
    if lacking := [upload.client for upload in uploads if not set(needs.parts) & set(upload.parts)]:
        reasons.append(f"{_clients(lacking)} must send a {wanted}{_sent_instead(uploads, lacking)}")
    for part, least in needs.at_least:
        senders = sum(part in upload.parts for upload in uploads)
        if senders < least:
            reasons.append(f"at least {least} client(s) must send a {part}, {senders} did")
    parts = [
        upload.parts[name] for upload in uploads for name in needs.parts if name in upload.parts
    ]
    if (
        needs.same_architecture
        and len(kinds := Counter((part.spec, part.preprocess) for part in parts)) > 1
    ):
        listed = ", ".join(
            f"{count} x {_kind(*kind, others=kinds)}" for kind, count in kinds.items()
        )
        reasons.append(
            f"all clients must have one architecture and preprocessing; these have {listed}"
        )
    for capability in needs.capabilities:
        if not any(_has(part, capability) for part in parts):
            reasons.append(f"at least one client must have a net with {capability}")
    for capability in needs.each:
        lacking = [upload.client for upload in uploads if _lacks(upload, capability)]
        if lacking:
            reasons.append(
                f"{_clients(lacking)} must have a net with {capability}: one that ends in a linear layer of its own"
            )
    if needs.same_patches:
        reasons += _patch_reasons(uploads, server)
    asked = [
        upload
        for upload in uploads
        if needs.label_counts or set(needs.label_counts_with) & set(upload.parts)
    ]
    if silent := [upload.client for upload in asked if upload.label_counts is None]:
        reasons.append(
            f"{_clients(silent)} must send label counts (train without --withhold-counts)"
        )
    if needs.public_data and (server.public is None or not len(server.public.pixels)):
        reasons.append(
            "the server needs unlabelled images (--public SOURCE, or a partition with --hold-out)"
        )
    elif needs.public_labels and (server.public is None or server.public.labels is None):
        reasons.append("the server needs labelled images (--public SOURCE with --public-labels)")
    if needs.initial and server.initial is None:
        reasons.append("the server needs the model that the clients started from (--start MODEL)")
    if not needs.different_classes and len({part.classes for part in parts}) > 1:
        reasons.append("all clients must list the same classes in the same order")
    return reasons + _class_reasons(parts, server.task.classes)


def _has(part: Part, capability: str) -> bool:
    return CAPABILITIES[capability](
        part.spec, part.spec.skeleton(part.preprocess.input_shape, len(part.classes))
    )


def _lacks(upload: Upload, capability: str) -> bool:
    part = upload.parts.get("classifier")
    return part is not None and not _has(part, capability)


def _patch_reasons(uploads: Sequence[Upload], server: Server) -> list[str]:
    """A mask over patches means the same to everybody only if all cut images into the same ones."""
    parts = {
        upload.client: upload.parts["classifier"]
        for upload in uploads
        if "classifier" in upload.parts
    }
    grids = {
        client: part.spec.patches(part.preprocess.input_shape) for client, part in parts.items()
    }
    own = server.student.patches(server.student_preprocess.input_shape)
    reasons = []
    if blind := [client for client, grid in grids.items() if grid is None]:
        reasons.append(
            f"{_clients(blind)} must have a net with tokens: a vision transformer (vit-*, deit-*)"
        )
    if own is None:
        reasons.append(
            f"the student must have tokens, {server.student} has none (--student vit-tiny)"
        )
    counted = Counter(grid for grid in [*grids.values(), own] if grid is not None)
    if len(counted) > 1:
        listed = ", ".join(
            f"{number} x {rows} x {columns}" for (rows, columns), number in counted.items()
        )
        reasons.append(
            f"all nets, the student too, must cut images into the same patches; these have {listed}"
        )
    return reasons


def _sent_instead(uploads: Sequence[Upload], lacking: Sequence[str]) -> str:
    """What the senders that lack the wanted part sent, where it is one thing."""
    sent = {name for upload in uploads if upload.client in lacking for name in upload.parts}
    return (
        f" ({'it' if len(lacking) == 1 else 'they'} sent a {sent.pop()})" if len(sent) == 1 else ""
    )


def _class_reasons(parts: Sequence[Part], classes: Sequence[str]) -> list[str]:
    known = {name for part in parts for name in part.classes}
    reasons = []
    if parts and (missing := [name for name in classes if name not in known]):
        reasons.append(f"no client knows the class{_es(missing)} {list_some(missing)} of the task")
    if foreign := sorted(known - set(classes)):
        reasons.append(
            f"the task lacks the class{_es(foreign)} {list_some(foreign)} that clients know"
        )
    seen: dict[str, str] = {}
    for name in sorted(known):
        if (other := seen.setdefault(normalise_name(name), name)) != name:
            reasons.append(
                f"the classes {other!r} and {name!r} look the same: say by a class map whether they are"
            )
    return reasons


def _kind(
    spec: ModelSpec, preprocess: Preprocess, others: Iterable[tuple[ModelSpec, Preprocess]]
) -> str:
    """An architecture in words, with the normalisation where nothing else tells it from another."""
    shape = preprocess.input_shape
    text = f"{spec} on {'x'.join(map(str, shape))}"
    twins = sum(
        (other, preprocessing.input_shape) == (spec, shape) for other, preprocessing in others
    )
    return text if twins == 1 else f"{text} with mean {preprocess.mean} and std {preprocess.std}"


def _clients(names: Sequence[str], most: int = 5) -> str:
    return f"client{'s' if len(names) > 1 else ''} {list_some(names, most)}"


def _es(names: Sequence[str]) -> str:
    return "es" if len(names) > 1 else ""
