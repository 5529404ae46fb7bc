"""Check whether uploads and server fit a method, and say who would have to send what."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from attar.core import ModelSpec, Needs, Part, Preprocess, Server, Upload
from attar.internal.lookalikes import find_lookalikes
from attar.internal.text import list_some
from attar.nets.registry import find
from attar.uploads import describe_pair

CAPABILITIES: dict[str, Callable[[ModelSpec, nn.Module], bool]] = {
    # a packed net may have no head
    "features": lambda _, net: any(name == "head" for name, _ in net.named_children()),
    "tokens": lambda spec, _: find(spec.arch).tokens,
    "batchnorm": lambda _, net: any(isinstance(module, _BatchNorm) for module in net.modules()),
}


def unknown_capabilities(needs: Needs) -> list[str]:
    """A sentence for each capability that attar does not know: a mistake in the method."""
    known = ", ".join(CAPABILITIES)
    wanted = dict.fromkeys((*needs.capabilities, *needs.each))
    return [
        f"it needs a net with {name!r}, which attar does not know: it knows {known}"
        for name in wanted
        if name not in CAPABILITIES
    ]


def unmet_needs(needs: Needs, uploads: Sequence[Upload], server: Server) -> list[str]:
    """Every reason why a method cannot fuse these uploads on this server.

    Args:
        needs: of the method.
        uploads: what the clients sent.
        server: what the server has.

    Returns:
        A sentence for each reason; empty where everything fits.
    """
    if not uploads:
        return ["there is no upload"]
    if mistakes := unknown_capabilities(needs):
        return [f"the method itself is wrong: {mistake}" for mistake in mistakes]
    parts = [
        upload.parts[name] for upload in uploads for name in needs.parts if name in upload.parts
    ]
    return [
        *_part_reasons(needs, uploads),
        *(_architecture_reasons(parts) if needs.same_architecture else ()),
        *_capability_reasons(needs, uploads, parts),
        *(_patch_reasons(uploads, server) if needs.same_patches else ()),
        *_count_reasons(needs, uploads),
        *(_square_reasons(uploads) if needs.squares_by_class else ()),
        *_server_reasons(needs, server),
        *_class_reasons(needs, parts, server.task.classes),
    ]


def name_parts(parts: Sequence[str]) -> str:
    """Parts of uploads in words: ``a classifier or decoder``, ``sums of features``."""
    nets = [part for part in parts if part != "sums"]
    words = ["sums of features"] if len(nets) < len(parts) else []
    return " or ".join([*words, *([f"a {' or '.join(nets)}"] if nets else [])])


def _part_reasons(needs: Needs, uploads: Sequence[Upload]) -> Iterator[str]:
    """Clients that sent none of the wanted parts, and parts that too few clients sent."""
    wanted = name_parts(needs.parts)
    if lacking := [upload.client for upload in uploads if not set(needs.parts) & set(upload.parts)]:
        yield f"{_clients(lacking)} must send {wanted}{_sent_instead(uploads, lacking)}"
    for part, least in needs.at_least:
        senders = sum(part in upload.parts for upload in uploads)
        if senders < least:
            yield f"at least {least} client(s) must send {name_parts([part])}, {senders} did"


def _architecture_reasons(parts: Sequence[Part]) -> Iterator[str]:
    """Several architectures, or several normalisations."""
    kinds = Counter((part.spec, part.preprocess) for part in parts)
    if len(kinds) > 1:
        listed = ", ".join(
            f"{count} x {_kind(*kind, others=kinds)}" for kind, count in kinds.items()
        )
        yield f"all clients must have one architecture and preprocessing; these have {listed}"


def _capability_reasons(
    needs: Needs, uploads: Sequence[Upload], parts: Sequence[Part]
) -> Iterator[str]:
    """Nets that lack what some net, or every net, must have."""
    for capability in needs.capabilities:
        if not any(_has(part, capability) for part in parts):
            yield f"at least one client must have a net with {capability}"
    for capability in needs.each:
        lacking = [upload.client for upload in uploads if _lacks(upload, capability)]
        if lacking:
            yield (
                f"{_clients(lacking)} must have a net with {capability}: "
                "one that ends in a linear layer of its own"
            )


def _has(part: Part, capability: str) -> bool:
    net = part.spec.skeleton(part.preprocess.input_shape, len(part.classes))
    return CAPABILITIES[capability](part.spec, net)


def _lacks(upload: Upload, capability: str) -> bool:
    part = upload.parts.get("classifier")
    return part is not None and not _has(part, capability)


def _patch_reasons(uploads: Sequence[Upload], server: Server) -> Iterator[str]:
    """Nets without patches, and other patches: all nets must use one mask over patches."""
    parts = {
        upload.client: upload.parts["classifier"]
        for upload in uploads
        if "classifier" in upload.parts
    }
    grids = {
        client: part.spec.patches(part.preprocess.input_shape) for client, part in parts.items()
    }
    student = server.student.patches(server.student_preprocess.input_shape)
    if lacking := [client for client, grid in grids.items() if grid is None]:
        yield (
            f"{_clients(lacking)} must have a net with tokens: a vision transformer (vit-*, deit-*)"
        )
    if student is None:
        yield f"the student must have tokens, {server.student} has none (--student vit-tiny)"
    counts = Counter(grid for grid in [*grids.values(), student] if grid is not None)
    if len(counts) > 1:
        listed = ", ".join(
            f"{number} x {rows} x {columns}" for (rows, columns), number in counts.items()
        )
        yield (
            f"all nets, the student too, must cut images into the same patches; these have {listed}"
        )


def _count_reasons(needs: Needs, uploads: Sequence[Upload]) -> Iterator[str]:
    """Clients that withhold label counts."""
    with_counts = set(needs.label_counts_with)
    withheld = [
        upload
        for upload in uploads
        if (needs.label_counts or with_counts & set(upload.parts)) and upload.label_counts is None
    ]
    packed = [upload.client for upload in withheld if _is_packed(upload)]
    trained = [upload.client for upload in withheld if upload.client not in packed]
    if trained:
        yield f"{_clients(trained)} must send label counts (train without --withhold-counts)"
    if packed:
        yield f"{_clients(packed)} must send label counts (attar pack --label-counts 120,80)"


def _is_packed(upload: Upload) -> bool:
    """Whether the client's net is one of its own, which `attar pack` has packed."""
    return any(part.spec.arch == "graph" for part in upload.parts.values())


def _square_reasons(uploads: Sequence[Upload]) -> Iterator[str]:
    """Clients that sent one matrix of squares for all classes."""
    lacking = [
        upload.client
        for upload in uploads
        if "sums" in upload.parts and not dict(upload.parts["sums"].spec.options).get("per_class")
    ]
    if lacking:
        yield f"{_clients(lacking)} must send squares for each class (train with --per-class)"


def _server_reasons(needs: Needs, server: Server) -> Iterator[str]:
    """Images or a model that the server lacks."""
    public = server.public
    if needs.public_data and (public is None or not len(public.pixels)):
        yield (
            "the server needs unlabelled images (--public SOURCE, or a partition with --hold-out)"
        )
    elif needs.public_labels and (public is None or public.labels is None):
        yield "the server needs labelled images (--public SOURCE with --public-labels)"
    if needs.initial and server.initial is None:
        yield "the server needs the model that the clients started from (--start MODEL)"


def _sent_instead(uploads: Sequence[Upload], lacking: Sequence[str]) -> str:
    """What the clients without the wanted part sent, where all sent the same."""
    sent = {name for upload in uploads if upload.client in lacking for name in upload.parts}
    return (
        f" ({'it' if len(lacking) == 1 else 'they'} sent {name_parts([*sent])})"
        if len(sent) == 1
        else ""
    )


def _class_reasons(needs: Needs, parts: Sequence[Part], classes: Sequence[str]) -> Iterator[str]:
    """Classes of the clients that differ, or do not fit the classes of the task."""
    if not needs.different_classes and len({part.classes for part in parts}) > 1:
        yield "all clients must list the same classes in the same order"
    known = {name for part in parts for name in part.classes}
    if parts and (missing := [name for name in classes if name not in known]):
        yield f"no client knows the class{_es(missing)} {list_some(missing)} of the task"
    if foreign := sorted(known - set(classes)):
        yield f"the task lacks the class{_es(foreign)} {list_some(foreign)} that clients know"
    for name, other in find_lookalikes(sorted(known)):
        yield (
            f"the classes {name!r} and {other!r} look the same, as characters they are "
            f"{describe_pair(name, other)}: say by a class map whether they are"
        )


def _kind(
    spec: ModelSpec, preprocess: Preprocess, others: Iterable[tuple[ModelSpec, Preprocess]]
) -> str:
    """An architecture in words, with its normalisation where another differs in that alone."""
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
