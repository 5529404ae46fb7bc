"""What was typed, understood or not: the parser's refusals in the words of this project.

The parser (tyro) says of every word that it has no place for only that it is unrecognized. Here
it parses alone, and what it says is held back: a verb begins only when nothing is wrong, and the
commonest slips are told with what mends them. A refusal that is not known here is passed on as
the parser words it.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from difflib import get_close_matches
from functools import partial, wraps
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Union

import tyro
from tyro.conf import FlagCreatePairsOff, subcommand

from attar.data.catalogue import SOURCES
from attar.data.images import SUFFIXES
from attar.errors import SettingsError

Verb = Callable[..., None]

PROGRAM = "attar"
ABOUT = "One-shot federated learning: many uploads, one model, no data."
_NUMBERS = {
    "int()": "a whole number",
    "to float": "a number",
}  # a sign in what Python says of a word, and what was expected


def understood(words: Sequence[str], verbs: Mapping[str, Verb]) -> Callable[[], None]:
    """The verb that was typed with its arguments, ready to begin; a SettingsError that says what
    is wrong with them.
    """
    if not words or (not words[0].startswith("-") and words[0] not in verbs):
        raise _no_verb(words, verbs)
    told = StringIO()
    try:
        with redirect_stderr(told):
            command, strays = _parse(words, verbs)
    except SystemExit as ended:  # help was asked for and given, or something is wrong
        if ended.code:
            _refuse_number(words, told.getvalue())
            sys.stderr.write(told.getvalue())
        raise
    if strays:
        raise _stray(strays, words, _flags_of(words[0], verbs))
    return command


def _parse(words: Sequence[str], verbs: Mapping[str, Verb]) -> tuple[Callable[[], None], list[str]]:
    """What is to be done, and the words that have no place in it."""
    choices = tuple(
        Annotated[Any, subcommand(name, constructor=_later(verb))] for name, verb in verbs.items()
    )
    form: Any = Union[choices]  # noqa: UP007  there is no other way to write a union of what is only known now
    parsed: tuple[Callable[[], None], list[str]] = tyro.cli(
        form,
        prog=PROGRAM,
        description=ABOUT,
        args=words,
        config=(FlagCreatePairsOff,),
        return_unknown_args=True,
    )
    return parsed


def _later(verb: Verb) -> Callable[..., Callable[[], None]]:
    """The parser calls what it finds; this only keeps the arguments for the call."""

    @wraps(verb)
    def kept(*values: Any, **named: Any) -> Callable[[], None]:
        return partial(verb, *values, **named)

    return kept


def _flags_of(verb: str, verbs: Mapping[str, Verb]) -> list[str]:
    """The options of a verb, as its help names them."""
    told = StringIO()
    try:
        with redirect_stdout(told):
            _parse([verb, "--help"], verbs)
    except SystemExit:  # which is how help ends
        pass
    return list(dict.fromkeys(re.findall(r"^\W*(--[a-z][a-z-]*)", _plain(told.getvalue()), re.M)))


def _plain(text: str) -> str:
    """Without colours, and without the frame."""
    return re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", text)


def _no_verb(words: Sequence[str], verbs: Mapping[str, Verb]) -> SettingsError:
    fix = f"the verbs are {', '.join(verbs)}; `{PROGRAM} VERB --help` explains each"
    if not words:
        return SettingsError("No verb is given.", fix=fix)
    close = get_close_matches(words[0].lower(), verbs, 1)
    return SettingsError(
        f"There is no verb {words[0]!r}{f': did you mean {close[0]!r}?' if close else '.'}", fix=fix
    )


def _refuse_number(words: Sequence[str], told: str) -> None:
    """Raise a SettingsError where a number was expected of a flag and a word given; leave
    everything else to the parser's words.
    """
    text = " ".join(_plain(told).split())
    found = re.search(r"Error parsing (?:-\w/)?(--[a-z-]+)", text)
    expected = next((number for sign, number in _NUMBERS.items() if sign in text), None)
    if found is None or expected is None:
        return
    flag = found[1]
    values = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    values += [after for word, after in pairwise(words) if word == flag]
    raise SettingsError(
        f"{' '.join([flag, *values[-1:]])}: expected {expected}.",
        fix=f"`{PROGRAM} {words[0]} --help` explains it",
    )


def _stray(strays: Sequence[str], words: Sequence[str], flags: Sequence[str]) -> SettingsError:
    """Of the words that have no place: what each is not, and what would give it one."""
    verb = f"{PROGRAM} {words[0]}"
    fixes: dict[str, None] = {}  # each once, in the order of the words
    problems = []
    owed = False  # a value, by an unknown option before it
    for word in strays:
        if word.startswith("-") or not owed:
            meant = _meant(word, words, flags)
            problems.append(f"{word!r} is no option of {verb}")
            fixes |= {} if meant is None else {meant: None}
        owed = word.startswith("-") and "=" not in word
    help_ = f"`{verb} --help` names its options"
    fix = f"{'; '.join(fixes)} ({help_})" if fixes else help_
    if len(problems) == 1:
        return SettingsError(f"{problems[0]}.", fix=fix)
    return SettingsError(f"Words that {verb} has no place for:", problems=problems, fix=fix)


def _meant(word: str, words: Sequence[str], flags: Sequence[str]) -> str | None:
    """What somebody who wrote ``word`` may have had in mind; None where that is anybody's guess."""
    name, equals, value = word.partition("=")
    if word.startswith("-"):
        close = get_close_matches(name.lstrip("-"), [flag.lstrip("-") for flag in flags], 1)
        return f"did you mean --{close[0]}?" if close else None
    if equals and f"--{name}" in flags:
        return f"write --{name} {value}"
    if equals and "--set" in flags:
        return f"each setting needs a --set of its own: --set {word}"
    if word.endswith(".attar"):
        return "name the files first, before the options"
    given = {
        flag
        for flag in ("--data", "--partition")
        if any(typed.partition("=")[0] == flag for typed in words)
    }
    if word.endswith(".json") and "--partition" in flags and not given:
        return f"a partition is named with --partition {word}"
    if "--data" in flags and not given:
        return f"images are named with --data {_source(word)}"
    return None


def _source(word: str) -> str:
    if ":" in word or word in SOURCES:
        return word
    path = Path(word)
    if path.suffix == ".npz":
        return f"npz:{word}"
    return f"folder:{path.parent if path.suffix.lower() in SUFFIXES else word}"
