"""One fused model as a page: how good it is beside its clients, what they sent, its pictures."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from attar.bench import FINISHED, FORMAT, Record, arrays_json, outcome_json
from attar.core import Result, Upload
from attar.data import Dataset, PartName
from attar.errors import RunError
from attar.internal.files import write_atomic
from attar.models import Classifier, Evaluation, evaluate_on, list_pictures, load_description
from attar.report.facts import MOST_PICTURES, facts_of, federations_of
from attar.report.page import Section, page_of
from attar.report.standings import Entry, Standing

OF_CLIENTS = ("classifier", "knowledge")  # parts that can be measured alone
HOW_TO_MEASURE = (
    "<p>With labelled images of your own, and the clients' files, this page compares the model "
    "with each client, class by class: <code>attar report FOLDER --data folder:own-test-images "
    "--split all --uploads *.attar</code></p>"
)


@dataclass(frozen=True)
class Measured:
    """How good a fused model and its clients are.

    Attributes:
        images: On which, in words.
        models: Evaluations of the models in the folder, the headline first.
        clients: Evaluations of the clients' own nets.
        counts: For each client its images of each class of the task, where it tells.
    """

    images: str
    models: Mapping[str, Evaluation]
    clients: Mapping[str, Evaluation] = field(default_factory=dict)
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)


def is_model_folder(folder: Path) -> bool:
    """Whether ``attar fuse`` wrote a folder and finished."""
    return (folder / "record.json").is_file() and (folder / "config.json").is_file()


def measure_model(
    folder: Path,
    data: Dataset,
    part: PartName,
    images: str,
    uploads: Sequence[Upload] = (),
    device: str = "cpu",
) -> Measured:
    """Measure the models of a folder, and the nets that they were fused from.

    Args:
        folder: Of ``attar fuse``.
        data: Labelled images.
        part: Which of them.
        images: Which they are, in words.
        uploads: What was fused; those without a classifier are not measured.
        device: Where to compute.

    Raises:
        RunError: An upload is of nobody whose file was fused.
    """
    record = _read_record(folder)
    known = [client["client"] for client in record["clients"]]
    if strangers := [one.client for one in uploads if one.client not in known]:
        raise RunError(
            f"{folder} was not fused from {', '.join(strangers)}.",
            fix=f"give the files of {', '.join(known)}",
        )
    homes = {path.parent.name: path.parent for path in sorted(folder.glob("*/config.json"))}
    headline = next((name for name in record["accuracies"] if name not in homes), "model")
    models = {headline: load_description(folder)}
    models |= {name: load_description(home) for name, home in homes.items()}
    nets = {
        one.client: one.parts[name] for one in uploads for name in OF_CLIENTS if name in one.parts
    }

    def evaluate(net: Any) -> Evaluation:
        return evaluate_on(Classifier(net).to(device), data, part=part, device=device)

    return Measured(
        images=images,
        models={name: evaluate(model) for name, model in models.items()},
        clients={name: evaluate(net) for name, net in nets.items()},
        counts={one.client: counts for one in uploads if (counts := _counts(one, record))},
    )


def _counts(upload: Upload, record: Mapping[str, Any]) -> list[int] | None:
    """The images of each class of the task."""
    if upload.label_counts is None:
        return None
    classes = next(iter(upload.parts.values())).classes
    held = dict(zip(classes, upload.label_counts, strict=False))
    return [held.get(name, 0) for name in record["task"]["classes"]]


def write_model_report(folder: Path, out: Path, measured: Measured | None = None) -> Path:
    """Write the page of a fused model.

    Args:
        folder: Of ``attar fuse``.
        out: The file.
        measured: How good it is; None: what the run itself measured.

    Returns:
        The file.
    """
    record = _read_record(folder)
    result = _read_result(folder)
    facts = _facts(record, result, folder, measured)
    title = f"{folder.resolve().name}: fused by {record['method']} from {len(record['clients'])} "
    more = [
        *_robustness(record["robustness"]),
        *_pictures(folder, result, record),
        _settings(record),
    ]
    note = "" if measured is not None and measured.clients else HOW_TO_MEASURE
    write_atomic(out, page_of(facts, f"{title}clients", more=more, note=note))
    return out


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / "record.json"
    try:
        record = json.loads(path.read_text())
        missing = {"clients", "accuracies", "task", "method", "robustness"} - set(record)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} cannot be read: {error}", fix="fuse again") from None
    if missing:
        raise RunError(
            f"{path} is no record of `attar fuse`.", fix="name the --out folder of `attar fuse`"
        )
    return dict(record)


def _read_result(folder: Path) -> Result:
    """The tables and images of a run; its models stay where they are."""
    path = folder / "arrays.safetensors"
    tensors = load_file(path) if path.is_file() else {}
    groups: dict[str, dict[str, torch.Tensor]] = {"arrays": {}, "images": {}}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        groups.setdefault(kind, {})[name] = tensor
    return Result({}, arrays=groups["arrays"], images=groups["images"])


def _facts(
    record: Mapping[str, Any], result: Result, folder: Path, measured: Measured | None
) -> dict[str, Any]:
    shared = _describe_run(record, measured)
    runs = _runs(shared, record, result, measured)
    facts = facts_of(runs, [], folder)
    facts["summary"]["of"] = "model"
    facts["tables"] = []
    facts["federations"] = list(federations_of([shared]).values())
    facts["standings"] = [_standing(record, runs, measured)] if runs else []
    for federation in facts["federations"]:
        _describe_federation(federation, record, measured)
    return facts


def _describe_run(record: Mapping[str, Any], measured: Measured | None) -> Record:
    """What the models of the folder have in common, as a record of a bench has it."""
    alone = {} if measured is None else measured.clients
    images = record["evaluated_on"] if measured is None else measured.images
    return {
        "format": FORMAT,
        "recipe": "fused",
        "classes": record["task"]["classes"],
        "labels": {"measured on": images} if images else {},
        "key": "",
        "method": record["method"],
        "settings": record["settings"],
        "federation": {
            "data": "clients",
            "rule": "their own images",
        },
        "seed": record["seed"],
        "precision": record["precision"],
        "device": record["device"],
        "versions": {"attar": record["attar"], "torch": torch.__version__},
        "commit": "unknown",
        "ending": FINISHED,
        "oracle": None,
        "clients": [
            {**client, "accuracy": alone[client["client"]].accuracy}
            if client["client"] in alone
            else {**client, "accuracy": None}
            for client in record["clients"]
        ],
        "ensemble_accuracy": None,
        "gallery": None,
        "bytes_up": record["bytes_received"],
        "bytes_down": 0,
    }


def _runs(
    shared: Record, record: Mapping[str, Any], result: Result, measured: Measured | None
) -> list[Record]:
    """The models of the folder as records of a bench, the headline first."""
    runs = []
    for number, (name, outcome) in enumerate(_outcomes(record, measured).items()):
        first = number == 0
        row = f"this model ({record['method']})" if first else f"{name} (in {name}/)"
        runs.append(
            {
                **shared,
                **outcome,
                "row": row,
                "name": name,
                "arrays": arrays_json(result) if first else {},
                "seconds": record["seconds"] if first else 0.0,
                "seconds_by_phase": record["seconds_by_phase"] if first else {},
            }
        )
    return runs


def _outcomes(record: Mapping[str, Any], measured: Measured | None) -> dict[str, dict[str, Any]]:
    """What is known of each model of the folder."""
    if measured is None:
        return {
            name: {
                "accuracy": accuracy,
                "best_on_test": accuracy,
                "curve": [],
                "models": {name: {"per_class": [], "confusion": None}},
            }
            for name, accuracy in record["accuracies"].items()
        }
    return {
        name: {"classes": list(found.classes), **outcome_json({name: found}, [])}
        for name, found in measured.models.items()
    }


def _standing(
    record: Mapping[str, Any], runs: Sequence[Record], measured: Measured | None
) -> Standing:
    alone = {} if measured is None else measured.clients
    entries = [Entry(run["row"], (100 * run["accuracy"],)) for run in runs]
    entries += [
        Entry(f"{name} alone", (100 * found.accuracy,), "client") for name, found in alone.items()
    ]
    images = record["evaluated_on"] if measured is None else measured.images
    return Standing(
        title="",
        name="",
        place="",
        entries=tuple(sorted(entries, key=lambda entry: -entry.mean)),
        client=max((100 * found.accuracy for found in alone.values()), default=None),
        central=None,
        runs=len(runs),
        images=images or "the images that its maker chose",
        without_client="not measured (--data SOURCE --uploads FILES)",
        without_central="not known: the clients' images are in no one place",
    )


def _describe_federation(
    federation: dict[str, Any], record: Mapping[str, Any], measured: Measured | None
) -> None:
    """The classes of the task, and what was measured of each client, class by class."""
    federation["title"] = f"{len(record['clients'])} clients"
    federation["classes"] = record["task"]["classes"]
    counts = federation["counts"]
    if measured is not None and measured.counts:
        counts = [measured.counts.get(name) for name in federation["clients"]]
    fits = counts is not None and all(
        row is not None and len(row) == len(federation["classes"]) for row in counts
    )
    federation["counts"] = counts if fits else None
    if measured is not None:
        federation["per_class"] = [
            [None if value is None else round(100 * value, 2) for value in found.per_class]
            if (found := measured.clients.get(name)) is not None
            else None
            for name in federation["clients"]
        ]


def _robustness(report: Mapping[str, Any] | None) -> list[Section]:
    """Which clients fit in with the others."""
    if report is None:
        return []
    columns = {
        "agreement": "agreement with the others",
        "commonest": "share of its commonest answer",
        "logit_scale": "size of its logits",
        "weight_norm": "norm of its weights",
    }
    head = "".join(f'<th scope="col">{words}</th>' for words in columns.values())
    rows = "".join(
        f'<tr><th scope="row">{escape(client["client"])}</th>'
        + "".join(f"<td>{_number(client[key])}</td>" for key in columns)
        + f'<td class="words">{escape("; ".join(client["flags"]) or _unflagged(client))}</td></tr>'
        for client in report["clients"]
    )
    about = (
        f"Each client's answers to {report['images']:,} images ({escape(report['source'])}), "
        "compared with those of the others. Agreement: 1 is full agreement, 0 is chance."
    )
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Do the clients fit together">'
        f'<table><thead><tr><th scope="col">client</th>{head}<th scope="col">verdict</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )
    return [
        Section(
            "robustness",
            "Do the clients fit together",
            f"<figure>{table}<figcaption>{about}</figcaption></figure>",
        )
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _unflagged(client: Mapping[str, Any]) -> str:
    return f"not judged: {client['unjudged']}" if client.get("unjudged") else "fits in"


def _pictures(folder: Path, result: Result, record: Mapping[str, Any]) -> list[Section]:
    """The pictures of the folder, as long as there is room, each with what it shows."""
    figures = []
    room = MOST_PICTURES
    for picture in list_pictures(result, record):
        path = folder / picture.file
        if not path.is_file() or (size := path.stat().st_size) > room:
            continue
        room -= size
        kind = "svg+xml" if path.suffix == ".svg" else "png"
        data = base64.b64encode(path.read_bytes()).decode()
        rows = f" Each row is a class, from the top: {', '.join(picture.rows)}."
        words = f"{picture.shows[0].upper()}{picture.shows[1:]}."
        shows = escape(words + rows if picture.rows else words)
        figures.append(
            f'<figure><img src="data:image/{kind};base64,{data}" alt="{shows}">'
            f"<figcaption>{shows} <code>{escape(picture.file)}</code></figcaption></figure>"
        )
    if not figures:
        return []
    return [Section("pictures", "Pictures", f'<div class="pictures">{"".join(figures)}</div>')]


def _settings(record: Mapping[str, Any]) -> Section:
    """How the model was made."""
    values = {"method": record["method"], **record["settings"]}
    values |= {key: record[key] for key in ("student", "seed", "precision", "device")}
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td class="words">{escape(str(value))}</td></tr>'
        for key, value in values.items()
    )
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in record["remarks"])
    listed = f"<ul>{remarks}</ul>" if remarks else ""
    return Section(
        "settings",
        "How it was made",
        f"{listed}<details><summary>{len(values)} settings</summary>"
        f'<div class="scroll"><table><tbody>{rows}</tbody></table></div></details>',
    )
