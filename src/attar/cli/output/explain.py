"""One method, net or data source in full, for ``attar ls WHAT NAME``."""

from dataclasses import is_dataclass
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attar.cli.output import listing
from attar.cli.output.console import say, show_pairs, show_table
from attar.data.sources import FORMS, list_sources
from attar.errors import DataError
from attar.internal.meanings import describe_fields, describe_parameters
from attar.methods import find_method
from attar.nets import registry
from attar.nets.registry import NETS
from attar.settings import Setting, flatten, settings_of

# Comments that are a symbol of the paper alone stand behind these words.
PLAIN = {
    "epochs": "passes of the training",
    "batch_size": "images in a batch",
    "stability": "weight of the loss that holds statistics of batches",
    "transferability": "weight of the loss that seeks images on which student and clients differ",
    "diversity": "weight of the loss that seeks images on which student and clients differ",
    "adversarial": "weight of the loss that seeks images on which student and clients differ",
    "hard_labels": "weight of the cross entropy with the images' labels",
    "trade_off": "weight of the first term of the loss beside the others",
    "lr": "learning rate",
    "momentum": "share of the last step that is repeated",
    "weight_decay": "how strongly weights are drawn to 0",
    "generator_temperature": "temperature of the generator's loss",
    "activation": "weight of the loss that seeks strong features",
    "entropy": "weight of the loss that asks for all classes alike",
    "inversion_steps": "steps on the pixels of a batch",
    "variation": "weight of smoothness",
    "magnitude": "weight of small pixels",
    "features": "weight of the gap to the clients' BatchNorm statistics",
    "competition": "weight of images on which student and clients differ",
    "fidelity": "weight of the images' classes in the generator's loss",
    "weight_step_decay": "factor of the step of the clients' weights",
    "hard_generation": "whether the generator looks for hard samples",
    "hard_distillation": "whether the student learns harder copies of the images",
    "samples": "images that are drawn",
    "keep_ratio": "part of the images that the filter keeps",
    "beta1": "decay of the mean of gradients",
    "stratify_beta1": "decay of the mean of gradients in the stratification",
    "beta2": "decay of the mean of squared gradients",
    "global_lr": "step size of the server",
    "knowledge": "the small net that is sent and fused",
    "distance": "distance by which a client's two nets learn from each other",
    "server_distance": "distance by which the server's net learns from the clients",
    "ensemble": "how the answers of the clients become one",
    "variant": "preset of the settings that are not given",
    "spread": "weight of images that differ from each other",
}
SYMBOL = 14  # characters: a comment that is no longer says little without the paper


def explain(what: Literal["nets", "methods", "data"], name: str) -> dict[str, Any]:
    """Everything that ``attar ls`` knows about one method, net or data source.

    Raises:
        SettingsError: There is no such method.
        SpecError: There is no such net.
        DataError: There is no such data source.
    """
    return {"methods": _method, "nets": _net, "data": _source}[what](name)


def _method(name: str) -> dict[str, Any]:
    kind = find_method(name)
    method = kind()
    defaults = flatten(method)
    return {
        "name": name,
        "summary": (kind.__doc__ or "").strip().splitlines()[0],
        "about": {
            "paper": kind.paper,
            "needs": ", ".join(listing.describe_needs(method.needs)),
            "cost": kind.cost,
        },
        "head": "setting",
        "how": f"attar fuse FILES --method {name} --set setting=value",
        "options": [
            {
                "name": setting.name,
                "default": str(defaults[setting.name]),
                "values": _values(setting.type, setting.bounds),
                "meaning": _meaning(kind, setting),
            }
            for setting in settings_of(kind).values()
        ],
    }


def _meaning(kind: type[Any], setting: Setting) -> str:
    """What a setting means, from its field in the method or in a group of it."""
    owner: Any = kind
    for place in setting.path[:-1]:
        owner = get_type_hints(owner)[place]
    assert is_dataclass(owner), "a path of a setting leads through groups"
    words = describe_fields(owner).get(setting.path[-1], "").rstrip(".")  # type: ignore[arg-type]
    plain = PLAIN.get(setting.name, PLAIN.get(setting.path[-1]))
    if plain is not None and len(words) <= SYMBOL and words != plain:
        return f"{plain} ({words})" if words else plain
    return words


def _values(kind: Any, bounds: Any) -> str:
    """The values that a setting can have, in words."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    members = [member for member in get_args(kind) if member is not type(None)]
    names = {int: "whole number", float: "number", bool: "true | false", str: "text"}
    if members and all(get_origin(member) is Literal for member in members):
        words = " | ".join(str(value) for member in members for value in get_args(member))
    else:
        words = " | ".join(names.get(member, str(member)) for member in (members or [kind]))
    if bounds is not None:
        words += f" {bounds}"
    return f"{words}, or none" if type(None) in get_args(kind) else words


def _net(name: str) -> dict[str, Any]:
    entry = registry.find(name)
    row = listing.describe_net(entry)
    sizes = {
        "kind": entry.kind,
        "image": "x".join(map(str, row["image"])) or "as its file says",
        "parameters": "as its file says"
        if row["parameters"] is None
        else f"{row['parameters']:,} (10 classes)",
    }
    first = next(iter(entry.options), "option")
    return {
        "name": name,
        "summary": entry.summary,
        "about": sizes,
        "head": "option",
        "how": f"--net {name}:{first}=VALUE" if entry.options else f"--net {name}",
        "options": [
            {
                "name": option,
                "default": "none: it must be given"
                if parameter.default is Parameter.empty
                else str(parameter.default),
                "values": _values(get_type_hints(entry.build).get(option, str), None),
                "meaning": _option_meaning(name, option),
            }
            for option, parameter in entry.options.items()
        ],
    }


def _option_meaning(net: str, option: str) -> str:
    """What an option means: from the net's builder, or that of a net in the same module."""
    builder = NETS[net].build
    family = [
        entry.build for entry in NETS.values() if entry.build.__module__ == builder.__module__
    ]
    told = (describe_parameters(build).get(option) for build in (builder, *family))
    return next((words.rstrip(".") for words in told if words), "")


def _source(name: str) -> dict[str, Any]:
    sources = {source.name: source for source in list_sources()}
    if name in FORMS or name.partition(":")[0] in {form.partition(":")[0] for form in FORMS}:
        form = next(form for form in FORMS if form.partition(":")[0] == name.partition(":")[0])
        return _plain(form, FORMS[form], f"--data {form}")
    if name not in sources:
        close = get_close_matches(name, [*sources, *FORMS], 1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(
            f"There is no data source {name!r}.{meant}", fix="`attar ls data` names them all"
        )
    source = sources[name]
    about = {
        "image": "x".join(map(str, source.shape)),
        "classes": str(source.classes),
        "licence": source.licence,
        "here": "yes" if source.available else "no: it is downloaded when it is named",
    }
    return {**_plain(name, source.summary, f"--data {name}"), "about": about}


def _plain(name: str, summary: str, how: str) -> dict[str, Any]:
    return {
        "name": name, "summary": summary, "about": {}, "head": "", "how": how, "options": []
    }  # fmt: skip


def show(explanation: dict[str, Any]) -> None:
    """Print what ``explain`` returned."""
    say(f"{explanation['name']}: {explanation['summary']}")
    if explanation["about"]:
        show_pairs("", list(explanation["about"].items()))
    say(f"\nUse it: {explanation['how']}")
    if explanation["options"]:
        columns = (explanation["head"], "default", "values", "meaning")
        rows = [
            (option["name"], option["default"], option["values"], option["meaning"])
            for option in explanation["options"]
        ]
        show_table(f"{len(rows)} {explanation['head']}s", columns, rows)
