"""What an upload file reveals to the server, in plain words."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from attar.core import Part, Upload
from attar.internal.text import human_bytes, list_some
from attar.nets.graph.format import Graph, read_graph
from attar.privacy.decoder_check import Pair, PrivacyCheck
from attar.training import STATISTICS

SHOWN = 10  # class names


def describe_upload(upload: Upload, size: int) -> dict[str, Any]:
    """Everything in the file but the weights themselves, as JSON."""
    return {
        "client": upload.client,
        "bytes": size,
        "num_examples": upload.num_examples,
        "label_counts": None if upload.label_counts is None else list(upload.label_counts),
        "round": upload.round,
        "local_steps": upload.local_steps,
        "parts": {
            name: {
                "net": str(part.spec),
                "parameters": sum(tensor.numel() for tensor in part.state.values()),
                "classes": list(part.classes),
                "input_shape": list(part.preprocess.input_shape),
                "mean": list(part.preprocess.mean),
                "std": list(part.preprocess.std),
                **_graph(part),
                **_statistics(part),
            }
            for name, part in upload.parts.items()
        },
        "reveals": reveals(upload),
    }


def packed_graph(part: Part) -> Graph | None:
    """The graph of a packed net, None of a net of ours."""
    text = dict(part.spec.options).get("graph") if part.spec.arch == "graph" else None
    return (
        None
        if text is None
        else read_graph(str(text), part.preprocess.input_shape, len(part.classes))
    )


def _graph(part: Part) -> dict[str, Any]:
    graph = packed_graph(part)
    if graph is None:
        return {}
    described = {
        "nodes": len(graph.nodes),
        "operators": graph.operators(),
        "batchnorm_layers": len({name for name in graph.layers.values() if name != "head"}),
        "features": "head" in graph.layers.values(),
        "multiply_accumulates": graph.work,
        "bytes_per_image": 4 * graph.elements,
    }
    return {"graph": described}


def _statistics(part: Part) -> dict[str, Any]:
    if part.spec.kind != STATISTICS:
        return {}
    held = [
        name for name, there in zip(part.classes, part.state["held"].tolist(), strict=True) if there
    ]
    distances = {name: round(float(part.state[name]), 4) for name in ("own_mean", "own_spread")}
    return {STATISTICS: {**dict(part.spec.options), "held": held, **distances}}


def _statistics_told(part: Part) -> list[str]:
    """What feature statistics give away."""
    told = _statistics(part)[STATISTICS]
    width = told.get("dimensions") or told["features"]
    size = human_bytes(
        sum(tensor.numel() * tensor.element_size() for tensor in part.state.values())
    )
    lines = [
        f"statistics of features ({size}): the mean of {width} numbers for each of {len(told['held'])} classes, so also which "
        "classes are held; one covariance; how far the client's own images lie from these means, on average",
        "whoever holds them can tell how alike an image is to the client's, and average features of a class: with few images of a "
        "class its mean says more of each (the attack in benchmarks/membership.py measures it)",
    ]
    if epsilon := told.get("epsilon"):
        lines.append(
            f"noise in the statistics: ({epsilon:g}, {told['delta']:g})-differential privacy for each image, features clipped at "
            f"{told['clip']:g}; it says nothing of the weights and counts beside them"
        )
    else:
        lines.append("no noise was added to the statistics (--statistics-epsilon adds some)")
    return lines


def graph_lines(upload: Upload) -> list[str]:
    """Of each packed net: what it is made of, in a few lines."""
    lines = []
    for name, part in upload.parts.items():
        graph = packed_graph(part)
        if graph is not None:
            count = sum(tensor.numel() for tensor in part.state.values())
            words = ", ".join(
                f"{operator} x{times}" for operator, times in graph.operators().items()
            )
            features = (
                "its last layer is linear"
                if "head" in graph.layers.values()
                else "it has no penultimate features"
            )
            norms = len({layer for layer in graph.layers.values() if layer != "head"})
            lines += [
                f"{name}: a packed net, {len(graph.nodes)} nodes, {count:,} numbers, no code",
                f"operators: {words}",
                f"one image: {graph.work:,} multiplications, up to {human_bytes(4 * graph.elements)}; "
                f"{norms} BatchNorm layers, {features}",
            ]
    return lines


def reveals(upload: Upload) -> list[str]:
    """What whoever holds the file learns, one sentence each."""
    classes = next(iter(upload.parts.values())).classes
    learned = [
        f"the name {upload.client!r} and the {len(classes)} class names: {list_some(classes, SHOWN)}",
        _examples_told(upload),
    ]
    if upload.label_counts is None:
        learned.append("not how many of each class (label counts were withheld)")
    else:
        held = sum(count > 0 for count in upload.label_counts)
        learned.append(f"how many of each class: {held} of {len(classes)} classes are held")
    if {"classifier", "knowledge"} & set(upload.parts):
        learned.append(
            "a classifier's weights: no image is in them, but attacks on trained weights can guess whether a given image "
            "was trained on, and what a typical image of a class looks like"
        )
    if "knowledge" in upload.parts:
        learned.append(
            "nothing of the model that stays at home, but what the knowledge network has learned from it"
        )
    if "control" in upload.parts:
        learned.append(
            "a control variate: the mean gradient over the images of this round, as the difference of two models is"
        )
    if any(packed_graph(part) is not None for part in upload.parts.values()):
        learned.append(
            "how a packed net is built, operator by operator; not its source code, nor the names of its layers"
        )
    if STATISTICS in upload.parts:
        learned += _statistics_told(upload.parts[STATISTICS])
    if "decoder" in upload.parts:
        learned.append(
            "a decoder: whoever holds it can draw any number of pictures of each class, like the images it was trained on; "
            "where these were few or one stands out, a picture may come close to it (`attar privacy` shows the closest "
            "pairs before anything is sent)"
        )
        learned.append(
            "nothing of the encoder; but whoever has an image can search for the picture of the decoder that is most like it, "
            "and so guess whether it was trained on"
        )
    return learned


def _examples_told(upload: Upload) -> str:
    if upload.num_examples > 1:
        return f"that {upload.num_examples:,} examples were trained on"
    if upload.label_counts is None and any(
        packed_graph(part) is not None for part in upload.parts.values()
    ):
        return "not how many examples were trained on (packed without --examples: it counts as one)"
    return "that one example was trained on"


def describe_check(found: PrivacyCheck) -> dict[str, Any]:
    """A privacy check as JSON, without its pictures."""

    def numbers(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
        return [
            {
                "made_as": p.label,
                "nearest_is": p.real_label,
                "distance": p.distance,
                "relative": p.relative,
            }
            for p in pairs
        ]

    plain = {field.name: getattr(found, field.name) for field in fields(found)}
    return {
        **plain,
        "closest": numbers(found.closest),
        "singled_out": numbers(found.singled_out),
        "verdict": found.verdict,
        "quality": found.quality,
    }


def counts_line(upload: Upload, most: int = 12) -> str:
    """Label counts in one cell of a table."""
    if upload.label_counts is None:
        return "withheld"
    shown = " ".join(str(count) for count in upload.label_counts[:most])
    return shown + (" …" if len(upload.label_counts) > most else "")


def summary_row(upload: Upload, size: int) -> tuple[str, ...]:
    """client, sent, examples, per class, image, bytes."""
    sent = ", ".join(f"{name}: {part.spec}" for name, part in upload.parts.items())
    shape = "x".join(map(str, next(iter(upload.parts.values())).preprocess.input_shape))
    return (
        upload.client,
        sent,
        f"{upload.num_examples:,}",
        counts_line(upload),
        shape,
        human_bytes(size),
    )
