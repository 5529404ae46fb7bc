"""Parts, mixtures and gates as JSON and tensors: the content of a model folder."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attar.blocks.ensemble import GATED_RULES, RULES, gate_of
from attar.core import Gate, Mixture, Part
from attar.uploads import (
    class_name_problems,
    part_from_json,
    part_to_json,
    role_problems,
    shape_problems,
    statistics_problems,
    value_problems,
)

HALF = (torch.bfloat16, torch.float16)


def mixture_to_json(model: Mixture) -> dict[str, Any]:
    """What ``config.json`` says of a mixture, beside the tensors of ``mixture_tensors``."""
    gate = gate_of(model)
    return {
        "rule": model.rule,
        "weights": None if model.weights is None else model.weights.tolist(),
        "classes": list(model.classes),
        "members": [part_to_json(part) for part in model.members],
        **({} if gate is None else gate_to_json(gate)),
    }


def mixture_tensors(model: Mixture) -> dict[str, Tensor]:
    """The tensors of a mixture: of member 3 as ``member3.NAME``, of its statistics likewise."""
    gate = gate_of(model)
    parts = {f"member{number}.": part for number, part in enumerate(model.members)}
    for number, part in enumerate(() if gate is None else gate.statistics):
        if part is not None:
            parts[f"statistics{number}."] = part
    return {
        prefix + name: tensor
        for prefix, part in parts.items()
        for name, tensor in part.state.items()
    }


def read_mixture(given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mixture:
    """A mixture from its JSON and its tensors, checked like an upload.

    Raises:
        ValueError: with all problems as arguments.
        KeyError, TypeError: if something is missing or of another type.
    """
    if given["rule"] not in RULES:
        raise ValueError(f"unknown rule {given['rule']}")
    if problems := class_name_problems(given["classes"]):
        raise ValueError(*problems)
    members = tuple(
        read_part(member, _with_prefix(f"member{number}.", tensors))
        for number, member in enumerate(given["members"])
    )
    classes = tuple(given["classes"])
    if {name for part in members for name in part.classes} != set(classes):
        raise ValueError("the members' classes are not those of the mixture")
    weights = None
    if given["weights"] is not None:
        weights = torch.tensor(given["weights"], dtype=torch.float32)
        if weights.shape not in ((len(members),), (len(members), len(classes))):
            raise ValueError(
                f"weights of shape {list(weights.shape)} for {len(members)} members and"
                f" {len(classes)} classes"
            )
    gate = read_gate(given, tensors, members) if given["rule"] in GATED_RULES else None
    return Mixture(members, given["rule"], weights, classes, gate)


def gate_to_json(gate: Gate) -> dict[str, Any]:
    """The keys of a gate, which stand among those of its mixture."""
    statistics = [None if part is None else part_to_json(part) for part in gate.statistics]
    return {
        "statistics": statistics,
        "familiarity": gate.sharpness,
        "temperature": gate.temperature,
    }


def read_gate(
    given: Mapping[str, Any], tensors: Mapping[str, Tensor], members: Sequence[Part]
) -> Gate:
    """The gate of a mixture of ``members``, from its JSON and its tensors; errors as above."""
    statistics = tuple(
        None
        if part is None
        else read_part(part, _with_prefix(f"statistics{number}.", tensors), "statistics")
        for number, part in enumerate(given["statistics"])
    )
    if len(statistics) not in (0, len(members)):
        raise ValueError(f"statistics of {len(statistics)} clients for {len(members)} members")
    problems = [
        problem
        for member, part in zip(members, statistics, strict=False)
        for problem in statistics_problems(member, part)
    ]
    if problems:
        raise ValueError(*problems)
    sharpness = _read_number(given, "familiarity")
    temperature = _read_number(given, "temperature")
    if temperature == 0:
        raise ValueError("temperature must be above 0")
    return Gate(statistics, sharpness, temperature)


def read_part(given: object, tensors: Mapping[str, Tensor], role: str = "classifier") -> Part:
    """A part from its JSON and its tensors, checked like one of an upload.

    Args:
        given: as ``part_to_json`` wrote it.
        tensors: its state; half precision is read as single precision.
        role: "classifier", "decoder" or "statistics".

    Raises:
        ValueError: with all problems as arguments.
    """
    spec, classes, preprocess = part_from_json(given)
    state = {
        name: tensor.float() if tensor.dtype in HALF else tensor for name, tensor in tensors.items()
    }
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}
    problems = role_problems(role, spec) or shape_problems(spec, classes, preprocess, shapes)
    problems = problems or value_problems(state)
    if problems:
        raise ValueError(*problems)
    return Part(spec, state, classes, preprocess)


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _read_number(given: Mapping[str, Any], name: str) -> float:
    value = given[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number from 0")
    return float(value)
