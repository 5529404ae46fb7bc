"""What comes out of a run, as the JSON of its record."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attar.bench.records import Record
from attar.core import Result, Upload
from attar.models import Evaluation

MOST_POINTS = 100  # of a phase's history in a record


def outcome_json(models: Mapping[str, Evaluation], history: Sequence[Mapping[str, Any]]) -> Record:
    """How good the models of a result are.

    Args:
        models: Evaluations by name; the first is the headline's.
        history: The metrics of each step.

    Returns:
        Entries of a record. The best accuracy on the way is apart from that of the last step.
    """
    headline = next(iter(models.values()))
    curve = accuracy_curve(history)
    return {
        "accuracy": headline.accuracy,
        "best_on_test": max([headline.accuracy, *(point["accuracy"] for point in curve)]),
        "curve": curve,
        "history": thin_history(history),
        "models": {name: evaluation_json(found) for name, found in models.items()},
    }


def evaluation_json(evaluation: Evaluation) -> Record:
    """An evaluation as JSON."""
    return {
        "accuracy": evaluation.accuracy,
        "balanced_accuracy": evaluation.balanced_accuracy,
        "calibration_error": evaluation.calibration_error,
        "per_class": list(evaluation.per_class),
        "confusion": evaluation.confusion.tolist(),
    }


def accuracy_curve(history: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The points of a history that have an accuracy."""
    return [
        {key: point[key] for key in ("phase", "step", "accuracy")}
        for point in history
        if point.get("accuracy") is not None
    ]


def thin_history(
    history: Sequence[Mapping[str, Any]], most: int = MOST_POINTS
) -> list[dict[str, Any]]:
    """Evenly spread points of each phase, including its first and last.

    Accuracies are left out, because the curve has them.
    """
    thinned = []
    for phase in dict.fromkeys(point["phase"] for point in history):
        points = [
            {key: value for key, value in point.items() if key != "accuracy"}
            for point in history
            if point["phase"] == phase
        ]
        every = max(1, -(-len(points) // most))
        last = len(points) - 1
        thinned += [
            point for place, point in enumerate(points) if place % every == 0 or place == last
        ]
    return thinned


def arrays_json(result: Result) -> Record:
    """A result's weights and tables of clients and classes, as lists."""
    tables = {
        name: table.detach().cpu().double()
        for name, table in result.arrays.items()
        if table.ndim <= 2
    }
    return {name: torch.round(table, decimals=6).tolist() for name, table in tables.items()}


def clients_json(
    uploads: Sequence[Upload],
    files: Mapping[str, tuple[int, str]],
    accuracies: Mapping[str, float],
) -> list[Record]:
    """What each client sent, and how good its own net is.

    Args:
        uploads: The uploads.
        files: Size and sha256 of each client's file.
        accuracies: Of the clients that sent a classifier.
    """
    return [
        {
            "client": upload.client,
            "parts": {name: str(part.spec) for name, part in upload.parts.items()},
            "num_examples": upload.num_examples,
            "label_counts": None if upload.label_counts is None else list(upload.label_counts),
            "bytes": files[upload.client][0],
            "sha256": files[upload.client][1],
            "accuracy": accuracies.get(upload.client),
        }
        for upload in uploads
    ]
