"""What an upload file reveals to the server, in plain words."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from attar.core import Part, Upload
from attar.internal.text import human_bytes, list_some
from attar.nets import Graph, read_graph
from attar.privacy.claims import list_claims
from attar.privacy.decoder_check import Pair, PrivacyCheck
from attar.privacy_claim import PrivacyClaim
from attar.training import STATISTICS, SUMS
from attar.uploads import MIXTURES

MAX_SHOWN = 10  # class names
FEW = 5  # images in a half of a class below which their mean is close to each of them


def describe_upload(upload: Upload, size: int) -> dict[str, Any]:
    """Describe everything in an upload file but the weights themselves.

    Args:
        upload: its content.
        size: of the file, in bytes.

    Returns:
        JSON.
    """
    counts = upload.label_counts
    parts = {}
    for name, part in upload.parts.items():
        parts[name] = {
            "net": str(part.spec),
            "parameters": _count_numbers(part),
            "classes": list(part.classes),
            "input_shape": list(part.preprocess.input_shape),
            "mean": list(part.preprocess.mean),
            "std": list(part.preprocess.std),
            **_describe_graph(part),
            **_describe_statistics(part),
            **_describe_sums(part),
            **_describe_mixtures(part),
        }
    return {
        "client": upload.client,
        "bytes": size,
        "num_examples": upload.num_examples,
        "label_counts": None if counts is None else list(counts),
        "round": upload.round,
        "local_steps": upload.local_steps,
        "parts": parts,
        **({} if upload.privacy is None else {"privacy_claim": asdict(upload.privacy)}),
        "reveals": list_revelations(upload),
        "claims": list_claims(upload),
    }


def packed_graph(part: Part) -> Graph | None:
    """The graph of a packed net; None for an architecture of attar."""
    text = dict(part.spec.options).get("graph") if part.spec.arch == "graph" else None
    if text is None:
        return None
    return read_graph(str(text), part.preprocess.input_shape, len(part.classes))


def _count_numbers(part: Part) -> int:
    # By the architecture, which the weights were checked against: they may lie in their file.
    net = part.spec.skeleton(part.preprocess.input_shape, len(part.classes))
    return sum(tensor.numel() for tensor in net.state_dict().values())


def _count_norms(graph: Graph) -> int:
    return len({layer for layer in graph.layers.values() if layer != "head"})


def _describe_graph(part: Part) -> dict[str, Any]:
    graph = packed_graph(part)
    if graph is None:
        return {}
    described = {
        "nodes": len(graph.nodes),
        "operators": graph.operators(),
        "batchnorm_layers": _count_norms(graph),
        "features": "head" in graph.layers.values(),
        "multiply_accumulates": graph.work,
        "bytes_per_image": 4 * graph.elements,
    }
    return {"graph": described}


def _describe_statistics(part: Part) -> dict[str, Any]:
    if part.spec.kind != STATISTICS:
        return {}
    flags = part.state["held"].tolist()
    held = [name for name, present in zip(part.classes, flags, strict=True) if present]
    distances = {name: round(float(part.state[name]), 4) for name in ("own_mean", "own_spread")}
    return {STATISTICS: {**dict(part.spec.options), "held": held, **distances}}


def _describe_sums(part: Part) -> dict[str, Any]:
    if part.spec.kind != SUMS:
        return {}
    counts = part.state["counts"].tolist()
    return {SUMS: {**dict(part.spec.options), "counts": counts, "few": list_small_classes(part)}}


def list_small_classes(part: Part) -> list[str]:
    """Classes with so few images in a half that their sum says much of each.

    Args:
        part: sums of features.

    Returns:
        Names; empty where noise was added.
    """
    if dict(part.spec.options).get("epsilon"):
        return []
    counts = part.state["counts"]
    few = ((counts > 0) & (counts < FEW)).any(0).tolist()
    return [name for name, small in zip(part.classes, few, strict=True) if small]


def _describe_mixtures(part: Part) -> dict[str, Any]:
    if part.spec.kind != MIXTURES:
        return {}
    counts = part.state["counts"].tolist()
    few = _few_per_gaussian(part)
    return {MIXTURES: {**dict(part.spec.options), "counts": counts, "few": few}}


def _few_per_gaussian(part: Part) -> list[str]:
    images = part.state["weights"] * part.state["counts"][:, None]
    few = ((images > 0) & (images < FEW)).any(1).tolist()
    return [name for name, small in zip(part.classes, few, strict=True) if small]


def list_few_per_gaussian(upload: Upload) -> list[str]:
    """Classes with a Gaussian of a mixture that stands for so few images that it shows them.

    Args:
        upload: with mixtures or without.

    Returns:
        Names.
    """
    return _few_per_gaussian(upload.parts[MIXTURES]) if MIXTURES in upload.parts else []


def _explain_mixtures(part: Part) -> list[str]:
    """What mixtures of Gaussians give away."""
    options = dict(part.spec.options)
    size = sum(tensor.numel() * tensor.element_size() for tensor in part.state.values())
    lines = [
        f"for each class a mixture of up to {options['components']} Gaussians of its features, "
        f"{options.get('covariance', 'diagonal')} ({human_bytes(size)}), without noise: what "
        "groups its images form, how many are in each, and the mean features of each group",
    ]
    if few := _few_per_gaussian(part):
        lines.append(
            f"a group of a few images is nearly the features of each of them, from which a picture "
            f"like it can be made; groups of fewer than {FEW} images: {list_some(few, MAX_SHOWN)}"
        )
    return lines


def _explain_sums(part: Part) -> list[str]:
    """What sums of features give away."""
    options = dict(part.spec.options)
    width = options.get("dimensions") or options["features"]
    size = sum(tensor.numel() * tensor.element_size() for tensor in part.state.values())
    spread = "a covariance for each class" if options.get("per_class") else "one covariance"
    epsilon = options.get("epsilon")
    exact = "about" if epsilon else "exactly"
    lines = [
        f"sums of {width} features of {options['backbone']} ({human_bytes(size)}), in two halves: "
        f"{exact} how many images of each class, the mean features of each class, {spread}",
        "neither an image nor the features of one, but whoever holds the sums knows what a class "
        "looks like on average to the backbone",
    ]
    if few := list_small_classes(part):
        lines.append(
            f"the mean over one image is that image's features, from which a picture like it can "
            f"be made; fewer than {FEW} images in a half: {list_some(few, MAX_SHOWN)}"
        )
    if epsilon:
        lines.append(
            f"noise in all of it, as its sender says: ({epsilon:g}, {options['delta']:g})-"
            "differential privacy for adding or removing one image (not a person with several "
            "images, not a client), "
            f"features clipped at {options['clip']:g}; it does not cover which class names there "
            "are"
        )
    else:
        lines.append("no noise was added to the sums (--epsilon, with --clip, adds some)")
    return lines


def _explain_statistics(part: Part) -> list[str]:
    """What feature statistics give away."""
    described = _describe_statistics(part)[STATISTICS]
    width = described.get("dimensions") or described["features"]
    size = sum(tensor.numel() * tensor.element_size() for tensor in part.state.values())
    lines = [
        f"statistics of features ({human_bytes(size)}): the mean of {width} numbers for each of "
        f"{len(described['held'])} classes, so also which classes are held; one covariance; the "
        "mean distance of the client's own images from these means",
        "whoever holds them can tell how similar an image is to the client's, and knows the "
        "average features of a class: the fewer images a class has, the more its mean says of "
        "each (the attack in benchmarks/membership.py measures it)",
    ]
    if epsilon := described.get("epsilon"):
        lines.append(
            f"noise in the statistics, as their sender says: ({epsilon:g}, "
            f"{described['delta']:g})-differential privacy for each image, features clipped at "
            f"{described['clip']:g}; it does not cover the weights and counts beside them"
        )
    else:
        lines.append("no noise was added to the statistics (--statistics-epsilon adds some)")
    return lines


def describe_graphs(upload: Upload) -> list[str]:
    """Describe what each packed net of an upload is made of, in a few lines."""
    lines = []
    for name, part in upload.parts.items():
        graph = packed_graph(part)
        if graph is None:
            continue
        counts = graph.operators().items()
        operators = ", ".join(f"{operator} x{times}" for operator, times in counts)
        numbers = f"{len(graph.nodes)} nodes, {_count_numbers(part):,} numbers"
        memory = human_bytes(4 * graph.elements)
        features = "it has no penultimate features"
        if "head" in graph.layers.values():
            features = "its last layer is linear"
        lines += [
            f"{name}: a packed net, {numbers}, no code",
            f"operators: {operators}",
            f"one image: {graph.work:,} multiplications, up to {memory}; "
            f"{_count_norms(graph)} BatchNorm layers, {features}",
        ]
    return lines


def list_revelations(upload: Upload) -> list[str]:
    """List what whoever holds an upload file learns, one sentence each."""
    classes = next(iter(upload.parts.values())).classes
    packed = any(packed_graph(part) is not None for part in upload.parts.values())
    names = f"{len(classes)} class names: {list_some(classes, MAX_SHOWN)}"
    lines = [
        f"the name {upload.client!r} and the {names}",
        _explain_examples(upload, packed),
    ]
    if set(upload.parts) <= {SUMS, MIXTURES}:
        pass  # counts are in the sums, and said there
    elif upload.label_counts is None:
        lines.append("not how many of each class (label counts were withheld)")
    else:
        held = sum(count > 0 for count in upload.label_counts)
        lines.append(f"how many of each class: {held} of {len(classes)} classes are held")
    if {"classifier", "knowledge"} & set(upload.parts):
        lines.append(
            "a classifier's weights: no image is in them, but attacks on trained weights can guess "
            "whether a given image was trained on, and what a typical image of a class looks like"
        )
    if "knowledge" in upload.parts:
        lines.append(
            "nothing of the model that stays with the client, but what the knowledge network has "
            "learned from it"
        )
    if upload.privacy is not None:
        lines.append(explain_claim(upload.privacy))
    if "control" in upload.parts:
        lines.append(
            "a control variate: the mean gradient over the images of this round, as the difference "
            "of two models is"
        )
    if packed:
        lines.append(
            "how a packed net is built, operator by operator; not its source code, nor the names "
            "of its layers"
        )
    if SUMS in upload.parts:
        lines += _explain_sums(upload.parts[SUMS])
    if MIXTURES in upload.parts:
        lines += _explain_mixtures(upload.parts[MIXTURES])
    if STATISTICS in upload.parts:
        lines += _explain_statistics(upload.parts[STATISTICS])
    if "decoder" in upload.parts:
        lines += [
            "a decoder: whoever holds it can draw any number of pictures of each class, similar to "
            "the images it was trained on; where these were few or one is unusual, a picture may "
            "come close to it (`attar privacy` shows the closest pairs before anything is sent)",
            "nothing of the encoder; but whoever has an image can search for the picture of the "
            "decoder that is most like it, and so guess whether it was trained on",
        ]
    return lines


def explain_claim(claim: PrivacyClaim) -> str:
    """What a sender says of differential privacy, as its claim."""
    return (
        f"the sender claims ({claim.epsilon:g}, {claim.delta:g})-differential privacy of the "
        f"weights for one {claim.unit}, the number of images being public: DP-SGD of "
        f"{claim.steps:,} steps, each image in a step with probability "
        f"{claim.sampling_rate:.4g}, its gradient clipped at {claim.clip:g}, noise of "
        f"{claim.noise_multiplier:.4g} times that ({claim.accountant.upper()} accountant); "
        "nothing in the file proves how it was trained"
    )


def _explain_examples(upload: Upload, packed: bool) -> str:
    if set(upload.parts) <= {SUMS, MIXTURES}:
        noisy = dict(upload.parts[SUMS].spec.options).get("epsilon")
        return f"that {'about ' if noisy else ''}{upload.num_examples:,} images were summed"
    if upload.num_examples > 1:
        return f"that {upload.num_examples:,} examples were trained on"
    if upload.label_counts is None and packed:
        unknown = "packed without --examples: it counts as one"
        return f"not how many examples were trained on ({unknown})"
    return "that one example was trained on"


def describe_check(check: PrivacyCheck) -> dict[str, Any]:
    """Describe a privacy check as JSON, without its pictures."""

    def describe(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
        return [
            {
                "made_as": pair.label,
                "nearest_is": pair.real_label,
                "distance": pair.distance,
                "relative": pair.relative,
            }
            for pair in pairs
        ]

    return {
        **{field.name: getattr(check, field.name) for field in fields(check)},
        "closest": describe(check.closest),
        "singled_out": describe(check.singled_out),
        "answer": check.answer,
        "verdict": check.verdict,
        "advice": check.advice,
        "quality": check.quality,
    }


def _show_counts(upload: Upload, most: int = 12) -> str:
    """Label counts in one cell of a table."""
    if upload.label_counts is None:
        return "withheld"
    shown = " ".join(str(count) for count in upload.label_counts[:most])
    return shown + (" …" if len(upload.label_counts) > most else "")


def summarise_upload(upload: Upload, size: int) -> tuple[str, ...]:
    """One row of a table: client, parts, examples, label counts, image shape, file size.

    Args:
        upload: its content.
        size: of the file, in bytes.
    """
    sent = ", ".join(f"{name}: {part.spec}" for name, part in upload.parts.items())
    shape = next(iter(upload.parts.values())).preprocess.input_shape
    return (
        upload.client,
        sent,
        f"{upload.num_examples:,}",
        _show_counts(upload),
        "x".join(map(str, shape)),
        human_bytes(size),
    )
