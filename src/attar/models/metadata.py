"""The head of a model card, which the Hugging Face hub reads: YAML between two lines of dashes.

Names of classes, clients and data come from other people. Here and in the card below the head they
are text and nothing else.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attar.data.catalogue import SOURCES

TAGS = ("attar", "federated-learning", "one-shot-federated-learning", "model-fusion")
LINE = "---"
_HUB_DATA = re.compile(r"hf:([\w-][\w.-]*(?:/[\w.-]+)?)", re.ASCII)


@dataclass(frozen=True)
class EvaluatedOn:
    """Labelled images that a model was evaluated on, as others may know them.

    Attributes:
        type: a short name: of a public data set, or ``private``.
        name: in words.
    """

    type: str
    name: str


def card_head(
    name: str,
    record: Mapping[str, Any] | None,
    *,
    license: str | None = None,
    datasets: Sequence[str] = (),
) -> str:
    """Write the head of a card.

    Args:
        name: of the model.
        record: of the run that made it, if there is one.
        license: an identifier that the hub knows, such as ``apache-2.0``.
        datasets: names of data sets on the hub.

    Returns:
        YAML between lines of dashes, with an empty line after it.
    """
    method = None if record is None else str(record["method"])
    head: dict[str, Any] = {
        "library_name": "attar",
        "pipeline_tag": "image-classification",
        "tags": [*TAGS, *([] if method is None else [method])],
    }
    if license is not None:
        head["license"] = license
    evaluation = None if record is None else _evaluation(name, record)
    known = [] if record is None else [data for data in [_hub_data(record)] if data]
    if named := list(dict.fromkeys([*datasets, *known])):
        head["datasets"] = named
    if evaluation is not None:
        head["metrics"] = ["accuracy"]
        head["model-index"] = [{"name": name, "results": [evaluation]}]
    return "\n".join([LINE, *_yaml(head, 0), LINE, "", ""])


def evaluated_on(record: Mapping[str, Any]) -> EvaluatedOn:
    """What a run was evaluated on, without the names of files and folders."""
    text = str(record.get("evaluated_on") or "")
    for source in SOURCES:
        if re.search(rf"(?<![\w:/.-]){re.escape(source)}(?![\w:/-])", text):
            part = " (test part)" if "test part" in text else ""
            return EvaluatedOn(source, f"{source}{part}")
    if found := _HUB_DATA.search(text):
        return EvaluatedOn(found[1], found[1])
    return EvaluatedOn("private", "private images")


def _hub_data(record: Mapping[str, Any]) -> str | None:
    """The hub's data set that a run was evaluated on, if it was one."""
    found = _HUB_DATA.search(str(record.get("evaluated_on") or ""))
    return None if found is None else found[1]


def _evaluation(name: str, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """An entry of the hub's model index; None where nothing was evaluated."""
    accuracies = record.get("accuracies") or {}
    accuracy = accuracies.get(name, next(iter(accuracies.values()), None))
    if accuracy is None:
        return None
    data = evaluated_on(record)
    return {
        "task": {"type": "image-classification"},
        "dataset": {"type": data.type, "name": data.name},
        "metrics": [{"type": "accuracy", "value": round(float(accuracy), 4)}],
    }


def _yaml(value: Mapping[str, Any], depth: int) -> list[str]:
    """A mapping as lines of YAML; lists hold texts or mappings."""
    lines = []
    space = "  " * depth
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            lines += [f"{space}{key}:", *_yaml(entry, depth + 1)]
        elif isinstance(entry, list):
            lines.append(f"{space}{key}:")
            for item in entry:
                inner = _yaml(item, depth + 2) if isinstance(item, Mapping) else [_scalar(item)]
                lines.append(f"{space}  - {inner[0].strip()}")
                lines += inner[1:]
        else:
            lines.append(f"{space}{key}: {_scalar(entry)}")
    return lines


def _scalar(value: Any) -> str:
    """A number or a text; a text that is more than a plain word is quoted."""
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[A-Za-z][\w-]*", value, re.ASCII) and value.lower() not in _RESERVED:
        return value
    return "".join(
        letter if letter.isprintable() else f"\\U{ord(letter):08x}"
        for letter in json.dumps(value, ensure_ascii=False)
    )


_RESERVED = ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf")
