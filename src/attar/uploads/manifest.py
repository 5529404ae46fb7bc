"""Parts as JSON, and everything that is checked before a stranger's JSON and tensors become a
model.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import AttarError
from attar.nets.registry import MAX_CLASSES, MAX_OPTION_TEXT, NETS

MAX_NAME = 200  # characters of a class name
MAX_OPTIONS = 64  # of a net
MAX_NUMBER = 1e6  # mean and standard deviation of an image's channel, in size


def brief(value: object, most: int = 20) -> str:
    """A stranger's value in a few letters; a nested one by its kind, for writing it out may take
    all memory or never end.
    """
    return type(value).__name__ if isinstance(value, list | dict) else str(value)[:most]


def is_int(value: object, low: int, high: int = 2**62) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def class_name_problems(classes: object) -> list[str]:
    """Why ``classes`` cannot be a list of class names; empty when it can."""
    if not isinstance(classes, list | tuple) or not 1 <= len(classes) <= MAX_CLASSES:
        return [f"classes must be a list of 1 to {MAX_CLASSES} names"]
    bad = [
        name
        for name in classes
        if not isinstance(name, str)
        or not 0 < len(name.strip()) <= len(name) <= MAX_NAME
        or not name.isprintable()
    ]
    if bad:
        return [
            f"class name {brief(bad[0], 40)!r} is empty, longer than {MAX_NAME} characters or not printable"
        ]
    if len({look(name) for name in classes}) != len(classes):
        return ["two classes have the same name"]
    return []


def look(name: str) -> str:
    """A name as a person reads it: compatible letters as one, spaces at its ends and runs of
    them gone.
    """
    return " ".join(unicodedata.normalize("NFKC", name).split())


def part_to_json(part: Part) -> dict[str, Any]:
    return {
        "arch": part.spec.arch,
        "options": dict(part.spec.options),
        "classes": list(part.classes),
        "preprocess": {
            "input_shape": list(part.preprocess.input_shape),
            "mean": list(part.preprocess.mean),
            "std": list(part.preprocess.std),
        },
    }


def part_from_json(given: object) -> tuple[ModelSpec, tuple[str, ...], Preprocess]:
    """The description of a part; raises ValueError whose ``args`` are all problems."""
    if not isinstance(given, dict) or set(given) != {"arch", "options", "classes", "preprocess"}:
        raise ValueError("a part must have exactly: arch, options, classes, preprocess")
    problems = class_name_problems(given["classes"])
    spec, preprocess = None, None
    try:
        spec = _spec(given["arch"], given["options"])
    except (AttarError, ValueError) as error:
        problems.append(_one_line(error))
    try:
        preprocess = _preprocess(given["preprocess"])
    except (AttarError, ValueError) as error:
        problems.append(_one_line(error))
    if problems or spec is None or preprocess is None:
        raise ValueError(*problems)
    return spec, tuple(given["classes"]), preprocess


def _one_line(error: Exception) -> str:
    """What and where, without the list of everything there would have been to choose from."""
    if isinstance(error, AttarError):
        return " ".join([error.what, *error.problems])
    return str(error)


def _spec(arch: object, options: object) -> ModelSpec:
    if not isinstance(arch, str) or len(arch) > MAX_NAME:
        raise ValueError("arch must be the name of a net")
    if not isinstance(options, dict) or any(
        not isinstance(value, bool | int | float | str) for value in options.values()
    ):
        raise ValueError("options must map names to numbers, texts or booleans")
    longest = NETS[arch].longest_option if arch in NETS else MAX_OPTION_TEXT
    texts = [value for value in options.values() if isinstance(value, str)]
    if (
        len(options) > MAX_OPTIONS
        or any(len(name) > MAX_NAME for name in options)
        or any(len(t) > longest for t in texts)
    ):
        raise ValueError(
            f"options must be at most {MAX_OPTIONS}, of at most {longest} characters each"
        )
    return ModelSpec.of(arch, options)


def _preprocess(given: object) -> Preprocess:
    if not isinstance(given, dict) or set(given) != {"input_shape", "mean", "std"}:
        raise ValueError("preprocess must have exactly: input_shape, mean, std")
    shape, mean, std = given["input_shape"], given["mean"], given["std"]
    if (
        not isinstance(shape, list)
        or len(shape) != 3
        or not all(is_int(side, 1, 4096) for side in shape)
    ):
        raise ValueError(
            "preprocess.input_shape must be three whole numbers: channels, height, width"
        )
    if any(isinstance(values, list) and len(values) != shape[0] for values in (mean, std)):
        raise ValueError(f"preprocess needs {shape[0]} means and stds")
    for name, values in (("mean", mean), ("std", std)):
        if not isinstance(values, list) or not all(_is_number(value) for value in values):
            raise ValueError(f"preprocess.{name} must be a list of numbers up to {MAX_NUMBER:.0f}")
    if any(value < 1 / MAX_NUMBER for value in std):
        raise ValueError(f"preprocess.std must be at least {1 / MAX_NUMBER}")
    channels, height, width = shape
    return Preprocess((channels, height, width), tuple(map(float, mean)), tuple(map(float, std)))


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return (
        -MAX_NUMBER <= value <= MAX_NUMBER
    )  # also false for NaN; a huge int never becomes a float


def role_problems(role: str, spec: ModelSpec) -> list[str]:
    """Whether a net can play the part: decoder and statistics are kinds, every other part
    classifies; a CVAE stays at home.
    """
    wanted = role if role in ("decoder", "statistics") else "classifier"
    return [] if spec.kind == wanted else [f"{spec} is a {spec.kind}, not a {wanted}"]


def statistics_problems(classifier: Part | None, statistics: Part | None) -> list[str]:
    """Whether statistics are of the features that a classifier has."""
    if statistics is None:
        return []
    if classifier is None:
        return ["statistics of features without the classifier that has them"]
    wanted, width = dict(statistics.spec.options).get("features"), feature_width(classifier)
    if width is None:
        return [f"{classifier.spec} has no penultimate features that statistics could be of"]
    return (
        []
        if width == wanted
        else [f"statistics of {wanted} features, {classifier.spec} has {width}"]
    )


def feature_width(part: Part) -> int | None:
    """How many penultimate features a classifier has; None where it does not end in a head.
    Computes nothing.
    """
    net = part.spec.skeleton(part.preprocess.input_shape, len(part.classes)).eval()
    head = dict(net.named_children()).get("head")
    if head is None or isinstance(
        head, nn.Linear
    ):  # a packed net's is one: nothing of a stranger's graph is run here
        return None if head is None else head.in_features
    found: list[int] = []
    head.register_forward_pre_hook(lambda _, inputs: found.append(int(inputs[0].shape[-1])))
    net(torch.zeros(1, *part.preprocess.input_shape, device="meta"))
    return found[0]


def shape_problems(
    spec: ModelSpec,
    classes: Sequence[str],
    preprocess: Preprocess,
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
) -> list[str]:
    """Where the tensors of a file differ from what the architecture has: names, shapes, dtypes.
    Allocates nothing.
    """
    try:
        expected = spec.skeleton(preprocess.input_shape, len(classes)).state_dict()
    except AttarError as error:
        return [_one_line(error)]
    problems = [*_some("missing tensor", sorted(expected.keys() - shapes.keys()))]
    problems += _some("unexpected tensor", sorted(shapes.keys() - expected.keys()))
    for name in sorted(expected.keys() & shapes.keys()):
        dtype, shape = shapes[name]
        if shape != tuple(expected[name].shape):
            problems.append(
                f"tensor {name} has shape {list(shape)}, {spec} needs {list(expected[name].shape)}"
            )
        elif dtype != expected[name].dtype:
            problems.append(
                f"tensor {name} has type {_short(dtype)}, {spec} needs {_short(expected[name].dtype)}"
            )
    return capped(problems)


def value_problems(state: Mapping[str, Tensor]) -> list[str]:
    """Weights that no training produces: NaN, infinities, negative variances."""
    problems = []
    for name, tensor in state.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            problems.append(f"tensor {name} holds NaN or infinite values")
        elif name.endswith("running_var") and bool((tensor < 0).any()):
            problems.append(f"tensor {name} holds negative variances")
        elif name.endswith("num_batches_tracked") and bool((tensor < 0).any()):
            problems.append(f"tensor {name} is negative")
    return capped(problems)


def all_finite(tensor: Tensor) -> bool:
    """By the ends of its range, in which a NaN shows: one pass over a large tensor, an eighth of
    ``isfinite``'s time.
    """
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.aminmax())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(what: str, names: Sequence[str], most: int = 3) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [f"{what} {', '.join(name[:80] for name in names[:most])}{more}"]


def capped(problems: list[str], most: int = 6) -> list[str]:
    """The first few of many problems of one kind."""
    return (
        problems
        if len(problems) <= most
        else [*problems[:most], f"and {len(problems) - most} more of this kind"]
    )
