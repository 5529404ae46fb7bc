"""Nets, methods and data sources as rows for ``attar ls`` and ``attar fuse --dry-run``."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from attar import methods
from attar.core import AnyMethod, ModelSpec, Needs, Server, Upload
from attar.data.sources import FORMS, list_sources
from attar.fusion import estimate
from attar.internal.plugins import in_a_line
from attar.methods import METHODS, name_parts, unmet_needs
from attar.nets import registry
from attar.nets.cost import multiply_accumulates
from attar.nets.registry import NETS, NetEntry
from attar.running import ProgressReport, Watch
from attar.settings import flatten, settings_of


def list_nets() -> list[dict[str, Any]]:
    """All nets by name, with the sizes of their usual form."""
    registry.load_plugins()
    return [describe_net(entry) for entry in sorted(NETS.values(), key=lambda entry: entry.name)]


def describe_net(entry: NetEntry) -> dict[str, Any]:
    """One net, with the sizes of its usual form; without them where the net comes in a file."""
    known: dict[str, Any] = {"name": entry.name, "kind": entry.kind, "summary": entry.summary}
    if entry.required:
        return {**known, "image": [], "parameters": None, "operations": None, "options": {}}
    net = ModelSpec(entry.name).skeleton(entry.usual_shape, 10)
    return {
        **known,
        "image": list(entry.usual_shape),
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "operations": multiply_accumulates(net, entry.usual_shape),
        "options": {name: parameter.default for name, parameter in entry.options.items()},
    }


def refused_plugins(what: str) -> list[str]:
    """Nets or methods of other packages that are not in the list, each with the reason."""
    load = {"nets": registry.load_plugins, "methods": methods.load_plugins}.get(what)
    return [] if load is None else list(load().values())


def list_methods() -> list[dict[str, Any]]:
    """All methods, with what they need, what they cost, and their settings."""
    methods.load_plugins()
    return [
        {
            "name": name,
            "paper": kind.paper,
            "summary": re.sub(
                r" \([^()]*\d{4}\)", "", (kind.__doc__ or "").strip().splitlines()[0]
            ),
            "needs": describe_needs(kind().needs),
            "cost": kind.cost,
            "settings": describe_settings(kind()),
        }
        for name, kind in METHODS.items()
    ]


def list_data() -> list[dict[str, Any]]:
    """All data sources, then the forms in which a user's own data are named."""
    rows = [
        {
            "name": source.name,
            "summary": source.summary,
            "image": list(source.shape),
            "classes": source.classes,
            "here": source.available,
        }
        for source in list_sources()
    ]
    return rows + [
        {"name": form, "summary": text, "image": [], "classes": None, "here": None}
        for form, text in FORMS.items()
    ]


def describe_needs(needs: Needs) -> list[str]:
    """What a method asks of clients and server, a few words each."""
    words = [f"{name_parts(needs.parts)} from each client"]
    words += [f"at least {least} x {part}" for part, least in needs.at_least]
    if needs.same_architecture:
        words.append("one architecture")
    words += [f"a net with {capability}" for capability in needs.capabilities]
    words += [f"{capability} of each net" for capability in needs.each]
    if needs.same_patches:
        words.append("transformers with the same patches")
    if needs.label_counts:
        words.append("label counts")
    if needs.squares_by_class:
        words.append("squares for each class")
    words += [f"label counts with a {part}" for part in needs.label_counts_with]
    if needs.public_data:
        words.append(
            "labelled images at the server"
            if needs.public_labels
            else "unlabelled images at the server"
        )
    if needs.initial:
        words.append("the model that clients started from")
    if not needs.different_classes:
        words.append("one class list")
    return words


def describe_settings(method: AnyMethod) -> dict[str, str]:
    """Each hyper-parameter with its default, and its choices where there are few."""
    values = flatten(method)
    words = {}
    for name, setting in settings_of(type(method)).items():
        choices = get_args(setting.type) if get_origin(setting.type) is not None else ()
        listed = (
            f" ({' | '.join(map(str, choices))})"
            if choices and all(isinstance(choice, str) for choice in choices)
            else ""
        )
        words[name] = f"{values[name]}{listed}"
    return words


def estimate_methods(
    uploads: Sequence[Upload],
    server: Server,
    chosen: Mapping[str, AnyMethod] | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """Which methods fit some uploads, and what each would cost on this machine.

    Args:
        uploads: To be fused.
        server: What the server has.
        chosen: Methods by name; None means all, with their defaults.
        watch: Called with a ``ProgressReport`` for each method.

    Returns:
        A row for each method; of one that does not fit, why.
    """
    methods.load_plugins()
    candidates = chosen or {name: kind() for name, kind in METHODS.items()}
    rows: list[dict[str, Any]] = []
    for place, (name, method) in enumerate(candidates.items()):
        if watch is not None:
            done = place / len(candidates)
            watch(ProgressReport(f"timing {name}", place, len(candidates), done, None, {}))
        reasons = unmet_needs(method.needs, uploads, server)
        cost = None
        try:
            cost = None if reasons else estimate(method, uploads, server)
        except Exception as error:
            if name in methods.BUILT_IN or chosen is not None:
                raise
            # It is a plug-in's: the others are listed nevertheless.
            reasons = [f"the method itself fails: {in_a_line(error)}"]
        rows.append(
            {
                "method": name,
                "fits": not reasons,
                "why_not": reasons,
                "seconds": None if cost is None else round(cost.seconds, 1),
                "memory_bytes": None if cost is None else cost.memory,
            }
        )
    return rows
