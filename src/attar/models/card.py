"""The model card: what is in a model folder, in words for the person who finds it in a year."""

from collections.abc import Mapping, Sequence
from typing import Any

from attar.core import Deployable, Part
from attar.internal.text import human_bytes
from attar.models.gallery import Picture


def model_card(
    name: str, model: Deployable, record: Mapping[str, Any], pictures: Sequence[Picture] = ()
) -> str:
    """README.md of a model folder; ``pictures`` are the files that lie beside it."""
    clients = record["clients"]
    lines = [
        f"# {name}, fused by {record['method']}",
        "",
        f"Made by attar {record['attar']} from {len(clients)} uploads ({human_bytes(record['bytes_received'])} received), "
        "each sent once. The server saw no training data of any client.",
        "",
        "```python",
        "import attar",
        'model = attar.load_model("this/folder")     # images in [0, 1], B x C x H x W -> logits over model.classes',
        "```",
        "",
        *_model_and_accuracy(name, model, record),
        *_pictures(pictures, record["task"]["classes"]),
        "## Clients",
        "",
        "| client | sent | examples | bytes | sha256 |",
        "|---|---|---:|---:|---|",
    ]
    for client in clients:
        sent = ", ".join(f"{part}: {spec}" for part, spec in client["parts"].items())
        lines.append(
            f"| {client['client']} | {sent} | {client['num_examples']:,} | {client['bytes']:,} | `{client['sha256'][:12]}` |"
        )
    if record["excluded"]:
        lines += ["", f"Left out: {', '.join(record['excluded'])}."]
    if record["class_map"]:
        lines += [
            "",
            "Class names changed: "
            + ", ".join(f"{old} to {new}" for old, new in record["class_map"].items())
            + ".",
        ]
    if record["robustness"] is not None:
        lines += ["", *_suspicions(record["robustness"])]
    lines += ["", "## How it was made", "", "| setting | value |", "|---|---|"]
    settings = {"method": record["method"], **record["settings"]}
    for key in ("student", "seed", "precision", "device"):
        settings[key] = record[key]
    settings |= _public(record)
    lines += [f"| {key} | {value} |" for key, value in settings.items()]
    lines += ["", *(f"{remark}\n" for remark in record["remarks"]), _ending(record), ""]
    return "\n".join(lines)


def federation_card(
    name: str, model: Deployable, record: Mapping[str, Any], pictures: Sequence[Picture] = ()
) -> str:
    """README.md of the model that a federation of several rounds ends with."""
    rounds = record["rounds"]
    moved = f"{human_bytes(record['bytes_up'])} up, {human_bytes(record['bytes_down'])} down"
    lines = [
        f"# {name}, by {record['method']} over {len(rounds)} rounds",
        "",
        f"Made by attar {record['attar']} from {len(record['clients'])} clients ({moved}).",
        "",
        *_model_and_accuracy(name, model, record),
        *_pictures(pictures, record["task"]["classes"]),
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
    lines += [f"| {key} | {value} |" for key, value in settings.items()]
    lines += [
        "",
        *(f"{remark}\n" for remark in record["remarks"]),
        f"Ending: {record['ending']}.",
        "",
    ]
    return "\n".join(lines)


def _public(record: Mapping[str, Any]) -> dict[str, str]:
    if (public := record["public"]) is None:
        return {}
    kind = "labelled" if public["labelled"] else "unlabelled"
    return {"public images": f"{public['images']:,} {kind} from {public['source']}"}


def _model_and_accuracy(name: str, model: Deployable, record: Mapping[str, Any]) -> list[str]:
    classes = f"Classes ({len(model.classes)}): {', '.join(model.classes[:50])}{', …' if len(model.classes) > 50 else ''}."
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


def _pictures(pictures: Sequence[Picture], classes: Sequence[str]) -> list[str]:
    """Every picture in the folder, the one to look at first at the top, and what the rows of the
    sheets are.
    """
    if not pictures:
        return []
    first = " Look at this one first." if len(pictures) > 1 else ""
    lines = [
        f"- `{one.file}`: {one.shows}.{'' if place else first}"
        for place, one in enumerate(pictures)
    ]
    sheets = [one for one in pictures if one.rows]
    if sheets:
        rows = sheets[0].rows
        cut = (
            f" (the first {len(rows)} of {len(classes)} classes)"
            if len(rows) < len(classes)
            else ""
        )
        names = ", ".join(f"`{one.file}`" for one in sheets)
        lines += [
            "",
            f"In {names} each row is a class, from the top: {', '.join(rows)}{cut}. White is a place without an image.",
        ]
    return ["## Pictures", "", *lines, ""]


def _suspicions(found: Mapping[str, Any]) -> list[str]:
    """What the robustness report says, in short."""
    if not found["suspects"]:
        if found["unjudged"] is not None:
            return [
                f"No client looks suspicious, but none could be compared with the rest: {found['unjudged']}."
            ]
        judged = sum(one["agreement"] is not None for one in found["clients"])
        return [
            f"No client looks suspicious; {judged} of {len(found['clients'])} could be compared with the rest."
        ]
    return [
        f"- **{one['client']}** looks suspicious: {'; '.join(one['flags'])}"
        for one in found["clients"]
        if one["flags"]
    ]


def _describe(model: Deployable) -> str:
    if isinstance(model, Part):
        shape = " x ".join(map(str, model.preprocess.input_shape))
        count = sum(tensor.numel() for tensor in model.state.values())
        return f"One net, `{model.spec}`, on {shape} images, {count:,} numbers."
    members = ", ".join(f"`{part.spec}`" for part in model.members)
    return (
        f"A mixture of {len(model.members)} nets ({members}), combined by the rule `{model.rule}`."
    )


def _accuracy(name: str, record: Mapping[str, Any]) -> str:
    if name not in record["accuracies"]:
        return "Not measured."
    return f"{100 * record['accuracies'][name]:.2f} % of {record['evaluated_on'] or 'the data that its maker chose'}."


def _ending(record: Mapping[str, Any]) -> str:
    steps = ", ".join(f"{name} {done}" for name, done in record["steps"].items())
    walked = f" Steps: {steps}." if steps else ""
    if record["ending"] == "finished":
        return f"Finished in {record['seconds']:.1f} s.{walked}"
    return f"**Ended early** after {record['seconds']:.1f} s ({record['ending']}).{walked} The run can be resumed."
