"""Tables that several verbs print, and those of ``attar fuse`` and ``attar eval``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attar.cli.output.console import fits, human_seconds, say, show_pairs, show_table
from attar.core import Upload
from attar.data import Dataset
from attar.fusion import Fused
from attar.internal.text import human_bytes, list_some
from attar.methods import find_method
from attar.models import Evaluation, list_pictures
from attar.privacy import (
    MAX_SHOWN,
    describe_graphs,
    list_claims,
    list_revelations,
    summarise_upload,
)
from attar.settings import flatten
from attar.training import STATISTICS, Verdict
from attar.uploads import Signer

UPLOAD_COLUMNS = ("client", "sends", "examples", "per class", "image", "bytes")


def show_partition(
    title: str, names: Sequence[str], counts: NDArray[np.int64], classes: Sequence[str]
) -> None:
    """Print the images of each class at each client."""
    rows = [(name, f"{row.sum():,}", *row) for name, row in zip(names, counts, strict=True)]
    columns = ("client", "images", *classes)
    if fits(columns, rows):
        show_table(title, columns, rows, right=columns[1:])
        return
    # A class a line: their names are never cut.
    by_class = zip(classes, counts.T, strict=True)
    lines = [("images", *(f"{row.sum():,}" for row in counts))]
    lines += [(name, *map(str, held)) for name, held in by_class]
    show_table(title, ("class", *names), lines, right=names)


def show_uploads(
    uploads: Sequence[Upload], sizes: Sequence[int], signers: Mapping[str, Signer] | None = None
) -> None:
    """Print a line for each upload; with ``signers`` also whose signature it bears."""
    rows = [summarise_upload(upload, size) for upload, size in zip(uploads, sizes, strict=True)]
    columns: tuple[str, ...] = UPLOAD_COLUMNS
    if signers is not None:
        columns = (*columns, "signature")
        rows = [
            (*row, signers[upload.client].summary)
            for row, upload in zip(rows, uploads, strict=True)
        ]
    title = f"{len(uploads)} upload{'s' if len(uploads) > 1 else ''}, {human_bytes(sum(sizes))}"
    show_table(title, columns, rows, right=("examples", "bytes"))


def show_revelations(uploads: Sequence[Upload]) -> None:
    """Print what each upload gives away."""
    for upload in uploads:
        if lines := describe_graphs(upload):
            say(f"\n{upload.client} sends")
            for line in lines:
                say(f"  - {line}")
        say(f"\n{upload.client} reveals")
        for sentence in list_revelations(upload):
            say(f"  - {sentence}")
        if claims := list_claims(upload):
            say(f"\n{upload.client} claims")
            for claim in claims:
                say(f"  - {claim}")


def show_trained(
    uploads: Mapping[Path, Upload],
    validation: Mapping[str, float],
    at_home: Mapping[str, float],
    verdicts: Mapping[str, Verdict] | None = None,
) -> None:
    """Print the uploads with accuracies and verdicts by client; ``at_home``: on the client's own
    images.
    """
    measured = {"own images": at_home, "validation": validation}
    # A decoder has no accuracy: no column where nobody has one.
    shown = {title: accuracies for title, accuracies in measured.items() if accuracies}
    rows = []
    for path, upload in uploads.items():
        cells = [
            f"{100 * accuracies[upload.client]:.1f} %" if upload.client in accuracies else ""
            for accuracies in shown.values()
        ]
        if verdicts:
            verdict = verdicts.get(upload.client)
            cells.append("" if verdict is None else verdict.outcome)
        rows.append((*summarise_upload(upload, path.stat().st_size), *cells))
    columns = (*UPLOAD_COLUMNS, *shown, *(("verdict",) if verdicts else ()))
    show_table("Uploads", columns, rows, right=("examples", "bytes", *shown))


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print what was seen of the clients that have not plainly learned, and what to change."""
    for verdict in verdicts:
        if verdict.outcome == "learned":
            continue
        fix = f" To change it: {verdict.fix}." if verdict.fix else ""
        say(f"{verdict.client}: {verdict.outcome}: {verdict.why}.{fix}")
    if bad := [verdict.client for verdict in verdicts if verdict.is_bad]:
        say(f"Do not send yet, nothing was learned: {list_some(bad)}")


def show_missing_statistics(uploads: Sequence[Upload]) -> None:
    """Print which classifiers come without the statistics that were asked for."""
    without = [
        upload.client
        for upload in uploads
        if "classifier" in upload.parts and STATISTICS not in upload.parts
    ]
    if without:
        say(
            f"Too few images to send statistics without revealing single ones: {', '.join(without)}"
        )


def show_packed(upload: Upload, size: int, out: Path) -> None:
    """Print what ``attar pack`` has written."""
    show_uploads([upload], [size])
    show_revelations([upload])
    say(f"\nRead back and compared with the net itself. Written to {out}")


def show_fused(fused: Fused, out: Path, measured_on: str | None, student: str = "") -> None:
    """Print what ``attar fuse`` has made.

    Args:
        fused: The outcome.
        out: Its folder.
        measured_on: The images of its accuracy.
        student: Why the student has its net; empty where there is none.
    """
    record = fused.record
    name = next(iter(fused.result.models))
    classes = record["task"]["classes"]
    defaults = flatten(find_method(record["method"])())
    settings = ", ".join(
        f"{key}={value}"
        for key, value in record["settings"].items()
        if defaults.get(key, "") != value
    )
    received = human_bytes(record["bytes_received"])
    accuracy = "not measured (--data SOURCE)"
    if record["accuracy"] is not None:
        accuracy = f"{100 * record['accuracy']:.2f} % of {measured_on}"
    early = []
    if not fused.finished:
        steps = ", ".join(f"{phase} {done}" for phase, done in record["steps"].items())
        early = [("ended early", f"out of minutes after {steps}; --resume goes on")]
    rows = [
        *early,
        ("model", f"{name}, {record['student']}" if name == "student" else name),
        *([("student", f"{record['student']}, {student}")] if student else []),
        ("method", record["method"]),
        ("settings", settings or "the defaults"),
        ("clients", f"{len(record['clients'])}, {received} received"),
        ("classes", f"{len(classes)}: {list_some(classes, MAX_SHOWN)}"),
        ("time", human_seconds(record["seconds"])),
        ("accuracy", accuracy),
        ("folder", str(out)),
    ]
    if pictures := [picture.file for picture in list_pictures(fused.result, record)]:
        first, *more = pictures
        rows.append(
            ("pictures", ", ".join([f"{first} (look at it first)" if more else first, *more]))
        )
    rows += [
        (f"accuracy of {other}", f"{100 * value:.2f} %")
        for other, value in list(record["accuracies"].items())[1:]
    ]
    rows += describe_bounded(record.get("bounded", {}))
    rows += [("remark", remark) for remark in record["remarks"]]
    rows += [("left out", name) for name in record["excluded"]]
    show_pairs("Fused" if fused.finished else "Fused, but ended early", rows)
    for other, evaluation in fused.evaluations.items():
        if evaluation.advice:
            say(
                f"{other}: {evaluation.advice}" if len(fused.evaluations) > 1 else evaluation.advice
            )
    if record["robustness"] is not None:
        show_robustness(record["robustness"])


def show_robustness(report: Mapping[str, Any]) -> None:
    """Print each client's agreement with the rest and what is odd about it.

    One line where nobody is judged and nothing is odd.
    """
    if report["unjudged"] is not None and not report["suspects"]:
        say(f"Robustness: cannot tell; {report['unjudged']}.")
        for client in report["clients"]:
            for remark in client["remarks"]:
                say(f"{client['client']}: {remark}.")
        return
    columns = (
        "client",
        "agreement",
        "effect",
        "weight",
        "weight norm",
        "logit scale",
        "entropy",
        "trigger",
        "",
    )
    rows = [_robustness_row(client) for client in report["clients"]]
    # Empty columns are left out: the flags need the space.
    shown = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    show_table(
        f"Robustness, on {report['images']} images: {report['source']}",
        [columns[place] for place in shown],
        [[row[place] for place in shown] for row in rows],
        right=columns[1:-1],
    )
    suspects = report["suspects"]
    if suspects and len(suspects) == len(report["clients"]):  # nobody can be excluded
        say(f"Look at {', '.join(suspects)}: every client is suspicious, so none is.")
    elif suspects:
        flags = " ".join(f"--exclude {name}" for name in suspects)
        say(
            f"Look at {', '.join(suspects)}, and ask before you leave anybody out: this is no "
            f"proof. The same command with another --out and {flags} shows what the model is "
            "without."
        )


def _robustness_row(client: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = "; ".join((*client["flags"], *client["remarks"])) or "nothing suspicious"
    if client["unjudged"] and not client["flags"]:
        verdict = "; ".join((client["unjudged"], *client["remarks"]))
    return (
        client["client"],
        _number(client["agreement"], ".2f"),
        _number(client["effect"], "+.2f"),
        _number(client["weight"], ".3f"),
        _number(client["weight_norm"], ".3g"),
        _number(client["logit_scale"], ".3g"),
        _number(client["entropy"], ".2f"),
        _number(client["trigger"], ".1f"),
        verdict,
    )


def describe_bounded(bounded: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What did not count as it was sent, in rows of label and words."""
    rows = [
        (
            "not believed",
            f"{claim['client']} says it has {claim['claimed']:,} images, "
            f"{claim['times']:,.0f} times the median of the others; counted as "
            f"{claim['counted']:,} (--trust-counts believes it)",
        )
        for claim in bounded.get("claims", ())
    ]
    rows += [
        ("weights bounded", f"{client}: divided by up to {by:,.0f}")
        for client, by in bounded.get("weights", {}).items()
    ]
    rows += [
        ("not used", f"{client}: {told}") for client, told in bounded.get("statistics", {}).items()
    ]
    return rows


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def show_evaluation(
    title: str, evaluation: Evaluation, classes: Sequence[str], measured_on: str
) -> None:
    """Print the accuracy of each class, and what is measured over all."""
    rows = [
        (
            name,
            f"{int(evaluation.confusion[row].sum()):,}",
            "" if value is None else f"{100 * value:.2f} %",
        )
        for row, (name, value) in enumerate(zip(classes, evaluation.per_class, strict=True))
    ]
    show_table(title, ("class", "images", "accuracy"), rows, right=("images", "accuracy"))
    say(f"accuracy {100 * evaluation.accuracy:.2f} % of {measured_on}")
    say(
        f"balanced {100 * evaluation.balanced_accuracy:.2f} %   "
        f"calibration error {100 * evaluation.calibration_error:.2f} %"
    )
    if evaluation.advice:
        say(evaluation.advice)
    if evaluation.unknown:
        count = sum(
            int(evaluation.confusion[classes.index(name)].sum()) for name in evaluation.unknown
        )
        whose = "its" if len(evaluation.unknown) == 1 else "their"
        wrong = "1 image counts" if count == 1 else f"{count:,} images count"
        unknown = list_some(evaluation.unknown, MAX_SHOWN)
        say(f"The model does not know {unknown}: {whose} {wrong} as wrong.")


def show_cut(source: str, dataset: Dataset) -> None:
    """Say that only a fifth of the images was measured, where data have no test part."""
    if dataset.was_cut:
        number = len(dataset.train) + len(dataset.test)
        say(
            f"{source} has no test part of its own, so a fifth of it was measured: "
            f"--split all takes all {number:,} images."
        )


def show_list(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of ``attar ls``; ``title``: nets, methods or data."""
    columns = [name for name in rows[0] if title != "methods" or name != "settings"]
    show_table(
        title,
        columns,
        [[_cell(row[name]) for name in columns] for row in rows],
        right=("parameters", "operations", "classes"),
    )
    if title in ("methods", "nets"):
        has = {"methods": "settings of a method", "nets": "options of a net"}[title]
        say(f"`attar ls {title} NAME` explains the {has}.")


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case list() if all(isinstance(item, int) for item in value):
            return "x".join(map(str, value))
        case list():
            return ", ".join(value)
        case dict():
            return "  ".join(f"{key}={item}" for key, item in value.items())
    return str(value)
