"""What a setting means, as its author wrote it beside the field: for lists and help."""

import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def describe_fields(kind: type[Any]) -> dict[str, str]:
    """The meaning of each field of a dataclass, where its source says it.

    That is its entry under ``Attributes:`` in the docstring, or else the comment behind or
    directly above the field; inherited fields are described by the classes they come from.
    """
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        meanings |= _comments(base) | describe_entries(base.__doc__ or "", "Attributes")
    return meanings


def describe_parameters(function: Callable[..., Any]) -> dict[str, str]:
    """The meaning of each parameter of a function or class, from ``Args:`` in its docstring."""
    return describe_entries(function.__doc__ or "", "Args")


def describe_entries(docstring: str, section: str) -> dict[str, str]:
    """The entries of a section of a docstring: ``name: text``, whose text may have more lines."""
    lines = inspect.cleandoc(docstring).splitlines()
    if f"{section}:" not in lines:
        return {}
    entries: dict[str, list[str]] = {}
    name = ""
    for line in lines[lines.index(f"{section}:") + 1 :]:
        if line and not line.startswith(" "):
            break
        entry = re.match(r"    (\w+): (.*)", line)
        if entry is not None:
            name = entry[1]
            entries[name] = [entry[2]]
        elif name and line.strip():
            entries[name].append(line.strip())
    return {name: " ".join(words).strip() for name, words in entries.items()}


def _comments(kind: type[Any]) -> dict[str, str]:
    """The comments behind the fields of a class, or directly above them."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # made at run time
        return {}
    behind = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()
    meanings: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        field = re.match(r"    (\w+): ", line)
        if field is None:
            continue
        above: list[str] = []
        while lines[number - len(above) - 2].startswith("    #"):
            above.insert(0, lines[number - len(above) - 2].lstrip("# "))
        if text := behind.get(number, " ".join(above)):
            meanings.setdefault(field[1], text)
    return meanings
