"""The manifest of an upload as JSON: its entries, and the description of each part.

Everything here treats its input as foreign: types, lengths and ranges are checked before a value
is used, and problems are collected, so that one reading names all of them.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import AttarError
from attar.internal.lookalikes import BLANKS, find_lookalikes, show_characters, skeleton
from attar.nets import MAX_CLASSES, MAX_OPTION_TEXT, NETS

SCHEMA = 1  # the version of the manifest
SCHEMA_WITH_CLAIM = 2  # of one that has the entry privacy, which older versions do not know
MAX_PARTS = 8
MAX_NAME = 200  # characters of a class name
MAX_OPTIONS = 64  # of a net
MAX_NUMBER = 1e6  # largest magnitude of a mean; 1 / MAX_NUMBER is the smallest deviation
CLIENT_NAME = (
    "1 to 64 letters a to z, digits, single spaces or . _ @ + -, start with a letter or digit and "
    "not end with a space"
)

_CLIENT = re.compile(r"(?!.*  )[A-Za-z0-9]([A-Za-z0-9._@+ -]{0,62}[A-Za-z0-9._@+-])?")
_PART = re.compile(r"[a-z][a-z0-9-]{0,31}")
_KEYS = {
    "schema",
    "attar",
    "client",
    "num_examples",
    "label_counts",
    "round",
    "local_steps",
    "parts",
    "sha256",
}


def brief(value: object, most: int = 20) -> str:
    """Write a foreign value in at most ``most`` characters.

    Of a list or dict only the type is named: writing it out could take all memory.
    """
    return type(value).__name__ if isinstance(value, list | dict) else str(value)[:most]


def is_int(value: object, low: int, high: int = 2**62) -> bool:
    """Whether a JSON value is a whole number (not a boolean) between ``low`` and ``high``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_client_name(name: object) -> bool:
    """Whether a value is a valid client name: safe in a terminal, a path and a table.

    ``CLIENT_NAME`` says the rule in words.
    """
    return isinstance(name, str) and _CLIENT.fullmatch(name) is not None


def normalise_name(name: str) -> str:
    """A name as a person reads it, to compare names by.

    Compatible characters become one (NFKC), and white space is trimmed and collapsed.
    """
    return " ".join(unicodedata.normalize("NFKC", name).split())


def client_looks(name: str) -> set[str]:
    """What a client's name looks like; two clients who share one look are one to a person.

    So are ``oslo-1`` and ``Oslo-1``, and ``oslo-1`` and ``oslo-l``. Unlike classes, clients that
    look alike in ASCII are not told apart: whoever leaves one out would keep its twin.
    """
    plain = name.casefold()
    return {f"case {plain}", f"shape {skeleton(name)}", f"shape {skeleton(plain)}"}


def class_name_problems(classes: object) -> list[str]:
    """Check a list of class names from a file or a user.

    Args:
        classes: any value.

    Returns:
        Why it is no list of 1 to ``MAX_CLASSES`` distinct, printable names; empty if it is one.
    """
    if not isinstance(classes, list | tuple) or not 1 <= len(classes) <= MAX_CLASSES:
        return [f"classes must be a list of 1 to {MAX_CLASSES} names"]
    invalid = [name for name in classes if not _is_class_name(name)]
    if invalid:
        limit = f"longer than {MAX_NAME} characters"
        return [f"class name {brief(invalid[0], 40)!r} is empty, {limit} or not printable"]
    if len(set(classes)) != len(classes):
        return ["two classes have the same name"]
    if pairs := find_lookalikes(classes):
        return [f"two classes have the same name, or look it: {describe_pair(*pairs[0])}"]
    return []


def describe_pair(name: str, other: str) -> str:
    """Two names that look the same, with the characters in which they differ as numbers."""
    return f"{show_characters(name)} and {show_characters(other)}"


def _is_class_name(name: object) -> bool:
    if not isinstance(name, str) or not name.isprintable() or BLANKS & set(name):
        return False
    return 0 < len(name.strip()) <= len(name) <= MAX_NAME


def manifest_problems(manifest: dict[str, Any]) -> list[str]:
    """Check the entries of a manifest, but for the content of its parts.

    Args:
        manifest: a JSON object.

    Returns:
        One sentence for each problem; empty if there is none.
    """
    schema = manifest.get("schema")
    if not is_int(schema, SCHEMA, SCHEMA_WITH_CLAIM):
        known = f"schema {SCHEMA} and {SCHEMA_WITH_CLAIM}"
        versions = f"written in schema {brief(schema)}, this attar reads {known}"
        return [f"{versions}: update one of the two"]
    keys = _KEYS if schema == SCHEMA else _KEYS | {"privacy"}
    if set(manifest) != keys:
        return [f"the manifest must have exactly the entries {', '.join(sorted(keys))}"]
    texts = ("attar", "sha256")
    problems = [f"{key} must be a text" for key in texts if not isinstance(manifest[key], str)]
    if not is_client_name(manifest["client"]):
        problems.append(f"client must be {CLIENT_NAME}")
    for key, low in (("num_examples", 1), ("round", 1), ("local_steps", 0)):
        if not is_int(manifest[key], low):
            problems.append(f"{key} must be a whole number from {low}")
    if not _are_counts(manifest["label_counts"]):
        problems.append("label_counts must be null or a list of whole numbers")
    if not _are_parts(manifest["parts"]):
        problems.append(f"parts must be 1 to {MAX_PARTS} parts with short lower-case names")
    return problems


def _are_counts(counts: object) -> bool:
    if counts is None:
        return True
    return isinstance(counts, list) and all(is_int(count, 0) for count in counts)


def _are_parts(parts: object) -> bool:
    if not isinstance(parts, dict) or not 1 <= len(parts) <= MAX_PARTS:
        return False
    return all(_PART.fullmatch(name) for name in parts)


def count_problems(manifest: dict[str, Any], class_lists: Sequence[Sequence[str]]) -> list[str]:
    """Check that label counts agree with the classes and with the number of examples.

    Args:
        manifest: one without ``manifest_problems``.
        class_lists: the class names of each part.

    Returns:
        One sentence for each problem; empty where the counts were withheld.
    """
    counts = manifest["label_counts"]
    if counts is None:
        return []
    problems = []
    if any(len(classes) != len(counts) for classes in class_lists):
        number = f"label_counts has {len(counts)} entries"
        problems.append(f"{number}, which is not the number of classes")
    if sum(counts) != manifest["num_examples"]:
        examples = manifest["num_examples"]
        problems.append(f"label_counts add up to {sum(counts)}, num_examples is {examples}")
    return problems


def part_to_json(part: Part) -> dict[str, Any]:
    """Describe a part, without its weights, as the JSON of manifests and model folders."""
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


def part_from_json(value: object) -> tuple[ModelSpec, tuple[str, ...], Preprocess]:
    """Read the description of a part; the inverse of ``part_to_json``.

    Args:
        value: foreign JSON.

    Returns:
        The net, its class names and its preprocessing, checked one by one. Whether they fit each
        other and the weights is for ``shape_problems``.

    Raises:
        ValueError: ``args`` are all problems, one sentence each.
    """
    if not isinstance(value, dict) or set(value) != {"arch", "options", "classes", "preprocess"}:
        raise ValueError("a part must have exactly: arch, options, classes, preprocess")
    problems = class_name_problems(value["classes"])
    spec = None
    preprocess = None
    try:
        spec = _read_spec(value["arch"], value["options"])
    except (AttarError, ValueError) as error:
        problems.append(one_line(error))
    try:
        preprocess = _read_preprocess(value["preprocess"])
    except (AttarError, ValueError) as error:
        problems.append(one_line(error))
    if problems or spec is None or preprocess is None:
        raise ValueError(*problems)
    return spec, tuple(value["classes"]), preprocess


def one_line(error: Exception) -> str:
    """What an error says, on one line and without its fix."""
    if isinstance(error, AttarError):
        return " ".join([error.what, *error.problems])
    return str(error)


def _read_spec(arch: object, options: object) -> ModelSpec:
    if not isinstance(arch, str) or len(arch) > MAX_NAME:
        raise ValueError("arch must be the name of a net")
    plain = (bool, int, float, str)
    if not isinstance(options, dict) or not all(isinstance(v, plain) for v in options.values()):
        raise ValueError("options must map names to numbers, texts or booleans")
    longest = NETS[arch].longest_option if arch in NETS else MAX_OPTION_TEXT
    texts = [value for value in options.values() if isinstance(value, str)]
    long_names = any(len(name) > MAX_NAME for name in options)
    long_texts = any(len(text) > longest for text in texts)
    if len(options) > MAX_OPTIONS or long_names or long_texts:
        limits = f"at most {MAX_OPTIONS}, of at most {longest} characters each"
        raise ValueError(f"options must be {limits}")
    return ModelSpec.of(arch, options)


def _read_preprocess(value: object) -> Preprocess:
    if not isinstance(value, dict) or set(value) != {"input_shape", "mean", "std"}:
        raise ValueError("preprocess must have exactly: input_shape, mean, std")
    shape = value["input_shape"]
    mean = value["mean"]
    std = value["std"]
    sides = "channels, height, width"
    if not isinstance(shape, list) or len(shape) != 3:
        raise ValueError(f"preprocess.input_shape must be three whole numbers: {sides}")
    if not all(is_int(side, 1, 4096) for side in shape):
        raise ValueError(f"preprocess.input_shape must be three whole numbers: {sides}")
    if any(isinstance(values, list) and len(values) != shape[0] for values in (mean, std)):
        raise ValueError(f"preprocess needs {shape[0]} means and stds")
    for name, values in (("mean", mean), ("std", std)):
        if not isinstance(values, list) or not all(_is_number(number) for number in values):
            raise ValueError(f"preprocess.{name} must be a list of numbers up to {MAX_NUMBER:.0f}")
    if any(number < 1 / MAX_NUMBER for number in std):
        raise ValueError(f"preprocess.std must be at least {1 / MAX_NUMBER}")
    channels, height, width = shape
    return Preprocess((channels, height, width), tuple(map(float, mean)), tuple(map(float, std)))


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # False for NaN, too; and an int of any length is compared without becoming a float.
    return -MAX_NUMBER <= value <= MAX_NUMBER
