"""The model card: what a model folder holds, in words for whoever finds it in a year."""

from collections.abc import Mapping, Sequence
from typing import Any

from attar.core import Deployable, Part
from attar.internal.text import escape_markdown, human_bytes
from attar.models.gallery import Picture
from attar.models.metadata import card_head


def model_card(
    name: str, model: Deployable, record: Mapping[str, Any], pictures: Sequence[Picture] = ()
) -> str:
    """Write the card of a fused model.

    Args:
        name: of the model in the result.
        model: the model in the folder.
        record: of the run, as in ``record.json``.
        pictures: the files beside the card.

    Returns:
        The text of ``README.md``: Markdown, with the head that the Hugging Face hub reads.
    """
    clients = record["clients"]
    received = human_bytes(record["bytes_received"])
    lines = [
        f"# {name}, fused by {record['method']}",
        "",
        f"Made by attar {record['attar']} from {len(clients)} uploads ({received} received), "
        "each sent once. The server saw no training data of any client.",
        "",
        "```python",
        "import attar",
        'model = attar.load_model("this/folder")     '
        "# images in [0, 1], B x C x H x W -> logits over model.classes",
        "```",
        "",
        *_model_and_accuracy(name, model, record),
        *_list_pictures(pictures, record["task"]["classes"]),
        "## Clients",
        "",
        "| client | sent | examples | bytes | sha256 |",
        "|---|---|---:|---:|---|",
    ]
    for client in clients:
        sent = ", ".join(f"{part}: {spec}" for part, spec in client["parts"].items())
        numbers = f"{client['num_examples']:,} | {client['bytes']:,}"
        digest = client["sha256"][:12]
        name_and_nets = f"{escape_markdown(client['client'])} | {escape_markdown(sent)}"
        lines.append(f"| {name_and_nets} | {numbers} | `{digest}` |")
    if record["excluded"]:
        lines += ["", f"Left out: {_names(record['excluded'])}."]
    lines += _describe_sums(record)
    if record["class_map"]:
        changes = _names([f"{old} to {new}" for old, new in record["class_map"].items()])
        lines += ["", f"Class names changed: {changes}."]
    if record["robustness"] is not None:
        lines += ["", *_describe_suspects(record["robustness"])]
    lines += ["", "## How it was made", "", "| setting | value |", "|---|---|"]
    settings = {"method": record["method"], **record["settings"]}
    for key in ("student", "seed", "precision", "device"):
        settings[key] = record[key]
    settings |= _public(record)
    lines += _list_settings(settings)
    lines += ["", *_remarks(record), _ending(record), ""]
    return card_head(name, record) + "\n".join(lines)


def _names(names: Sequence[str]) -> str:
    """Names that others chose, with commas between them."""
    return ", ".join(map(escape_markdown, names))


def _list_settings(settings: Mapping[str, Any]) -> list[str]:
    return [f"| {key} | {escape_markdown(str(value))} |" for key, value in settings.items()]


def _remarks(record: Mapping[str, Any]) -> list[str]:
    return [f"{escape_markdown(remark)}\n" for remark in record["remarks"]]


def _describe_sums(record: Mapping[str, Any]) -> list[str]:
    """What the folder keeps of the clients' features, and who has joined or left."""
    lines = []
    if kept := [sums["file"] for sums in record.get("sums", ())]:
        files = " and ".join(f"`{file}`" for file in kept)
        lines += [
            "",
            f"{files} beside this card: the sums of the clients' features, with which clients can "
            "join and leave (`attar update`). The model does not need them: delete them before you "
            "give it away.",
        ]
    for step in record.get("updates", ()):
        words = [
            f"{how}: {_names([client['client'] for client in step[key]])}"
            for key, how in (("added", "joined"), ("removed", "left"))
            if step[key]
        ]
        lines += ["", f"{step['at']}: {'; '.join(words)}."]
    return lines


def federation_card(
    name: str, model: Deployable, record: Mapping[str, Any], pictures: Sequence[Picture] = ()
) -> str:
    """Write the card of the model that a federation of several rounds ends with.

    Args:
        name: of the model in the result.
        model: the model in the folder.
        record: of the federation.
        pictures: the files beside the card.

    Returns:
        The text of ``README.md``: Markdown, with the head that the Hugging Face hub reads.
    """
    rounds = record["rounds"]
    moved = f"{human_bytes(record['bytes_up'])} up, {human_bytes(record['bytes_down'])} down"
    lines = [
        f"# {name}, by {record['method']} over {len(rounds)} rounds",
        "",
        f"Made by attar {record['attar']} from {len(record['clients'])} clients ({moved}).",
        "",
        *_model_and_accuracy(name, model, record),
        *_list_pictures(pictures, record["task"]["classes"]),
        "## How it was made",
        "",
        "| setting | value |",
        "|---|---|",
    ]
    settings = {
        "method": record["method"],
        **record["settings"],
        **record["plan"],
        "seed": record["seed"],
    }
    settings |= _public(record)
    lines += _list_settings(settings)
    lines += [
        "",
        *_remarks(record),
        f"Ending: {record['ending']}.",
        "",
    ]
    return card_head(name, record) + "\n".join(lines)


def _public(record: Mapping[str, Any]) -> dict[str, str]:
    if (public := record["public"]) is None:
        return {}
    kind = "labelled" if public["labelled"] else "unlabelled"
    return {"public images": f"{public['images']:,} {kind} from {public['source']}"}


def _model_and_accuracy(name: str, model: Deployable, record: Mapping[str, Any]) -> list[str]:
    more = ", …" if len(model.classes) > 50 else ""
    classes = f"Classes ({len(model.classes)}): {_names(model.classes[:50])}{more}."
    return [
        "## Model",
        "",
        _describe(model),
        "",
        classes,
        "",
        "## Accuracy",
        "",
        _accuracy(name, record),
        "",
    ]


def _list_pictures(pictures: Sequence[Picture], classes: Sequence[str]) -> list[str]:
    """Every picture in the folder, and what the rows of the sheets are."""
    if not pictures:
        return []
    first = " Look at this one first." if len(pictures) > 1 else ""
    lines = [
        f"- `{picture.file}`: {picture.shows}.{'' if number else first}"
        for number, picture in enumerate(pictures)
    ]
    sheets = [picture for picture in pictures if picture.rows]
    if sheets:
        rows = sheets[0].rows
        cut = ""
        if len(rows) < len(classes):
            cut = f" (the first {len(rows)} of {len(classes)} classes)"
        files = ", ".join(f"`{sheet.file}`" for sheet in sheets)
        names = f"In {files} each row is a class, from the top: {_names(rows)}{cut}."
        lines += ["", f"{names} White is a place without an image."]
    return ["## Pictures", "", *lines, ""]


def _describe_suspects(report: Mapping[str, Any]) -> list[str]:
    """What the robustness report says, in short."""
    clients = report["clients"]
    if report["suspects"]:
        return [
            f"- **{escape_markdown(client['client'])}** looks suspicious: "
            f"{escape_markdown('; '.join(client['flags']))}. This is no proof."
            for client in clients
            if client["flags"]
        ]
    if report["unjudged"] is not None:
        reason = f"but none could be compared with the rest: {escape_markdown(report['unjudged'])}"
        return [f"No client looks suspicious, {reason}."]
    compared = sum(client["agreement"] is not None for client in clients)
    numbers = f"{compared} of {len(clients)} could be compared with the rest"
    return [f"No client looks suspicious; {numbers}."]


def _describe(model: Deployable) -> str:
    if isinstance(model, Part):
        shape = " x ".join(map(str, model.preprocess.input_shape))
        count = sum(tensor.numel() for tensor in model.state.values())
        return f"One net, {escape_markdown(str(model.spec))}, on {shape} images, {count:,} numbers."
    members = _names([str(part.spec) for part in model.members])
    rule = f"combined by the rule `{model.rule}`"
    return f"A mixture of {len(model.members)} nets ({members}), {rule}."


def _accuracy(name: str, record: Mapping[str, Any]) -> str:
    if name not in record["accuracies"]:
        return "Not measured."
    data = escape_markdown(record["evaluated_on"] or "the data that its maker chose")
    return f"{100 * record['accuracies'][name]:.2f} % of {data}."


def _ending(record: Mapping[str, Any]) -> str:
    steps = ", ".join(f"{name} {done}" for name, done in record["steps"].items())
    walked = f" Steps: {steps}." if steps else ""
    seconds = f"{record['seconds']:.1f} s"
    if record["ending"] == "finished":
        return f"Finished in {seconds}.{walked}"
    learned = "" if record.get("learned", True) else " The model has not learned anything yet."
    early = f"**Ended early** after {seconds} ({record['ending']}).{walked}"
    return f"{early}{learned} The run can be resumed."
