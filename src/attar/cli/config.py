"""The flags that every verb has, ``--quiet`` and ``--config FILE.toml``, and the file
``command.toml`` that a run leaves beside its output, so that it can be repeated from there.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from json import dumps
from pathlib import Path
from typing import Any

from attar.errors import SettingsError
from attar.internal.files import write_atomic
from attar.version import __version__

NAME = "command.toml"
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
# The words that a verb takes without a flag, by their key in a file.
POSITIONAL = {"fuse": "files", "bench": "recipes"}
# Verbs whose output can be made again; others print or check something.
REPEATABLE = ("train", "pack", "fuse", "federate", "bench")
# What belongs to one call and not to the run.
ONCE = ("--resume", "--json", "--dry-run")


@dataclass(frozen=True)
class Flag:
    """A flag of a verb.

    Attributes:
        name: With its dashes.
        repeats: Whether it may be given several times, and all count.
        switch: Whether it has no value.
    """

    name: str
    repeats: bool = False
    switch: bool = False

    @property
    def key(self) -> str:
        """Its name in a file."""
        return self.name.removeprefix("--")


@dataclass(frozen=True)
class Common:
    """The values of the flags that every verb has."""

    quiet: bool = False
    config: Path | None = None


def split_common(words: Sequence[str], program: str, verb: str) -> tuple[list[str], Common]:
    """Take ``--quiet`` and ``--config FILE`` out of the words of a command line.

    Raises:
        SettingsError: ``--config`` names no file, or is given twice.
    """
    left: list[str] = []
    files: list[str] = []
    quiet = False
    rest = iter(words)
    for word in rest:
        if word == "--quiet":
            quiet = True
        elif word == "--config":
            files.append(next(rest, ""))
        elif word.startswith("--config="):
            files.append(word.partition("=")[2])
        else:
            left.append(word)
    if len(files) > 1 or "" in files:
        raise SettingsError(
            f"--config takes one file{' once' if len(files) > 1 else ''}.",
            fix=f"{program} {verb} --config FILE.toml",
        )
    return left, Common(quiet, Path(files[0]) if files else None)


def join_config(path: Path, typed: Sequence[str], flags: Sequence[Flag], verb: str) -> list[str]:
    """The words of a command line with the flags of a file; what is typed wins.

    A flag that may be repeated keeps the file's values, too; of ``key=value`` only those whose key
    is not typed.

    Args:
        path: A TOML file: a verb's flags as keys.
        typed: The words after the verb.
        flags: Those that the verb has.
        verb: Its name.

    Raises:
        SettingsError: The file cannot be read, belongs to another verb, or has unknown keys.
    """
    given = _read(path, verb)
    known = {flag.key: flag for flag in flags if flag.name not in ("--help", *ONCE)}
    named = {key.replace("_", "-"): value for key, value in given.items()}
    positional = named.pop(POSITIONAL.get(verb, ""), None)
    _check_keys(path, named, [*known, *filter(None, [POSITIONAL.get(verb)])], verb)
    words = list(typed)
    typed_flags = {word.partition("=")[0].replace("_", "-") for word in typed if word[:2] == "--"}
    for key, value in named.items():
        flag = known[key]
        if flag.repeats:
            words += _repeat(flag, value, typed)
        elif flag.name not in typed_flags:
            words += _words(path, flag, value)
    if positional is not None and not _loose_words(typed, flags):
        words = [*_texts(positional), *words]
    return words


def _read(path: Path, verb: str) -> dict[str, Any]:
    try:
        given = tomllib.loads(path.read_text(), parse_float=str)
    except FileNotFoundError:
        raise SettingsError(
            f"--config {path}: there is no such file.", fix="check the path"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"--config {path} is not a TOML file: {error}.",
            fix='write a flag in each line, such as method = "dense"',
        ) from None
    owner = given.pop("verb", verb)
    if owner != verb:
        raise SettingsError(
            f"--config {path}: these are flags of `attar {owner}`.",
            fix=f"attar {owner} --config {path}",
        )
    return given


def _check_keys(path: Path, given: Mapping[str, Any], known: Sequence[str], verb: str) -> None:
    """Raise a SettingsError with all keys that are no flags."""
    problems = []
    for key in given:
        if key in known:
            continue
        if f"--{key}" in ONCE:
            problems.append(f"{key} belongs to one call: type --{key}")
            continue
        close = get_close_matches(key, known, 1)
        problems.append(f"{key} is no flag{f': did you mean {close[0]}?' if close else ''}")
    if problems:
        raise SettingsError(
            f"--config {path} has keys that `attar {verb}` does not know:",
            problems=problems,
            fix=f"`attar {verb} --help` names its flags",
        )


def _texts(value: Any) -> list[str]:
    """A value of a file as words."""
    if isinstance(value, dict):
        return [f"{key}={item}" for key, item in value.items()]
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _words(path: Path, flag: Flag, value: Any) -> list[str]:
    """A flag with its value from a file, as typed."""
    if flag.switch:
        if not isinstance(value, bool):
            raise SettingsError(
                f"--config {path}: {flag.key} = {value!r}: expected true or false.",
                fix=f"{flag.key} = true",
            )
        return [flag.name] if value else []
    return [f"{flag.name}={','.join(_texts(value))}"]


def _repeat(flag: Flag, value: Any, typed: Sequence[str]) -> list[str]:
    """The values of a flag that may be repeated, without those whose key is typed."""
    values = [after for word, after in pairwise(typed) if word == flag.name]
    values += [word.partition("=")[2] for word in typed if word.startswith(f"{flag.name}=")]
    keys = {text.partition("=")[0].strip() for text in values}
    kept = [text for text in _texts(value) if text.partition("=")[0].strip() not in keys]
    return [f"{flag.name}={text}" for text in kept]


def _loose_words(words: Sequence[str], flags: Sequence[Flag]) -> list[str]:
    """The words that belong to no flag."""
    with_value = {flag.name for flag in flags if not flag.switch}
    return [
        word
        for before, word in pairwise(["", *words])
        if not word.startswith("-") and before.replace("_", "-") not in with_value
    ]


def write_command(verb: str, words: Sequence[str], flags: Sequence[Flag], out: Path) -> Path | None:
    """Write the flags of a run beside its output.

    Args:
        verb: Its name.
        words: Its arguments.
        flags: Those that it has.
        out: What it wrote: a folder, or one file.

    Returns:
        The file; None where the run wrote nothing to stand beside.
    """
    if out.is_dir():
        path = out / NAME
    elif out.is_file():
        path = out.with_suffix(f".{NAME}")
    else:
        return None
    lines = [
        f"# attar {__version__}, in {os.getcwd()}",
        f"# Again: attar {verb} --config {path} --out ANOTHER",
        f"verb = {dumps(verb)}",
    ]
    if verb in POSITIONAL:
        lines.append(
            f"{POSITIONAL[verb]} = {dumps(_loose_words(words, flags), ensure_ascii=False)}"
        )
    lines += [f"{key} = {_toml(value)}" for key, value in _flags_with_values(words, flags).items()]
    write_atomic(path, "\n".join(lines) + "\n")
    return path


def _flags_with_values(words: Sequence[str], flags: Sequence[Flag]) -> dict[str, Any]:
    """The flags among some words, with what they were given."""
    by_name = {flag.name: flag for flag in flags}
    found: dict[str, Any] = {}
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        flag = by_name.get(name.replace("_", "-"))
        if flag is None or flag.name in ONCE or flag.name == "--out":
            continue
        if flag.switch:
            found[flag.key] = True
        elif flag.repeats:
            found.setdefault(flag.key, []).append(value if equals else after)
        else:
            found[flag.key] = value if equals else after
    return found


def _toml(value: Any) -> str:
    """A value in TOML, whose basic strings are written like those of JSON; numbers as typed."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return value
    return dumps(value, ensure_ascii=False)
