"""The model card that the world reads. Unlike the card in a run's folder it says nothing about
clients unless told, and nothing about this machine: only what is listed here is in it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attar.core import Deployable, Part
from attar.internal.text import escape_markdown
from attar.models.classifier import largest_shape
from attar.models.metadata import card_head, evaluated_on

MOST_CLASSES = 50
# A value of a setting that can be shown: a number, a truth value, or a word that is no path.
_PLAIN = re.compile(r"[\w.,:=+-]{0,60}", re.ASCII)


def hub_card(
    name: str,
    model: Deployable,
    record: Mapping[str, Any] | None,
    *,
    where: str,
    license: str | None = None,
    datasets: Sequence[str] = (),
    clients: bool = False,
    pictures: Sequence[str] = (),
) -> str:
    """Write the card of a model that is published.

    Args:
        name: of the model, for people.
        model: the model.
        record: of the run that made it, as in ``record.json``; None where there is none.
        where: what ``attar.load_model`` takes, such as ``hf:OWNER/NAME``.
        license: an identifier that the hub knows.
        datasets: names of data sets on the hub.
        clients: name the clients, with the number of their images.
        pictures: files beside the card that it shows.

    Returns:
        Markdown with the head that the hub reads.
    """
    head = card_head(name, record, license=license, datasets=datasets)
    lines = [f"# {escape_markdown(name)}", "", *_summary(model, record), "", "## Use", ""]
    lines += [
        "```python",
        "import attar  # pip install 'attar[hub]'",
        "",
        f'model = attar.load_model("{where}")',
        "logits = model(images)  # images from 0 to 1, batch x channels x height x width",
        "```",
        "",
        *_describe_input(model),
        "",
        "## Classes",
        "",
        _list_classes(model.classes),
        "",
        "## Evaluation",
        "",
        _accuracy(record),
    ]
    if pictures:
        lines += ["", "## Pictures", "", *(f"![{file}]({file})" for file in pictures)]
    if record is not None:
        lines += ["", *_how_made(record), *(_list_clients(record) if clients else ())]
    return head + "\n".join(lines) + "\n"


def _summary(model: Deployable, record: Mapping[str, Any] | None) -> list[str]:
    parts = (model,) if isinstance(model, Part) else model.members
    nets = Counter(part.spec.arch for part in parts)
    if isinstance(model, Part):
        kind = f"a `{model.spec.arch}`"
    else:
        counted = ", ".join(f"{count} `{arch}`" for arch, count in nets.most_common())
        kind = f"a mixture of {len(parts)} nets ({counted}) by the rule `{model.rule}`"
    if record is None:
        return [f"An image classifier: {kind}. Made with attar."]
    number = len(record["clients"])
    how = f"`{record['method']}`"
    if "rounds" in record:
        return [f"An image classifier: {kind}, by {how} from {number} clients over several rounds."]
    return [
        f"An image classifier: {kind}, fused by {how} from the uploads of {number} clients.",
        "Each client sent one file, once. The server saw no training image of any client.",
    ]


def _describe_input(model: Deployable) -> list[str]:
    parts = (model,) if isinstance(model, Part) else model.members
    channels, height, width = largest_shape(parts)
    return [
        f"Images of any size are brought to {height} x {width} with {channels} "
        f"channel{'' if channels == 1 else 's'} and normalised inside the model."
    ]


def _list_classes(classes: Sequence[str]) -> str:
    shown = ", ".join(escape_markdown(name) for name in classes[:MOST_CLASSES])
    more = ", …" if len(classes) > MOST_CLASSES else ""
    return f"{len(classes)}, in the order of the logits: {shown}{more}."


def _accuracy(record: Mapping[str, Any] | None) -> str:
    if record is None or record.get("accuracy") is None:
        return "Not measured."
    return f"Accuracy {100 * record['accuracy']:.2f} % on {evaluated_on(record).name}."


def _how_made(record: Mapping[str, Any]) -> list[str]:
    settings = {"method": record["method"], **record["settings"]}
    for key in ("student", "seed", "precision"):
        settings[key] = record.get(key)
    plain = {
        key: value
        for key, value in settings.items()
        if value is not None and _PLAIN.fullmatch(str(value))
    }
    lines = [
        "## How it was made",
        "",
        f"With attar {record['attar']}.",
        "",
        "| setting | value |",
        "|---|---|",
        *(
            f"| {escape_markdown(str(key))} | {escape_markdown(str(value))} |"
            for key, value in plain.items()
        ),
    ]
    if record["ending"] != "finished":
        lines += ["", f"The run ended early ({record['ending']})."]
    return lines


def _list_clients(record: Mapping[str, Any]) -> list[str]:
    lines = ["", "## Clients", "", "| client | images |", "|---|---:|"]
    for client in record["clients"]:
        number = client.get("num_examples", client.get("images"))
        shown = "" if number is None else f"{number:,}"
        lines.append(f"| {escape_markdown(client['client'])} | {shown} |")
    return lines
