"""The words of a command line -> the call of a verb, or an error that says how to correct them.

The parser (tyro) reports every word that it does not know as unrecognized. Here it only parses,
its messages are captured, and a verb starts only when nothing is wrong. The commonest mistakes
get a message of their own with a fix; all others are printed as the parser words them.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import partial, wraps
from inspect import getdoc, signature
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Union

import tyro
from tyro.conf import FlagCreatePairsOff, subcommand

from attar.data.catalogue import SOURCES
from attar.data.images import SUFFIXES
from attar.errors import SettingsError

Verb = Callable[..., None]  # of its flags, or of one dataclass whose fields are the flags
Command = Callable[[], None]

PROGRAM = "attar"
ABOUT = "One-shot federated learning: many uploads, one model, no data."
# part of Python's message about a wrong number -> what was expected
_EXPECTED_NUMBER = {"int()": "a whole number", "to float": "a number"}


def parse_command(words: Sequence[str], verbs: Mapping[str, Verb]) -> Command:
    """The call of a verb with its arguments, ready to run.

    Args:
        words: What was typed after ``attar``.
        verbs: All verbs by name.

    Returns:
        A function without arguments that runs the command.

    Raises:
        SettingsError: The verb or an argument is unknown, or a value is no number.
        SystemExit: Help was printed, or the parser refused the words with a message of its own.
    """
    if not words or (not words[0].startswith("-") and words[0] not in verbs):
        raise _unknown_verb(words, verbs)
    stderr = StringIO()
    try:
        with redirect_stderr(stderr):
            command, unknown_arguments = _parse(words, verbs)
    except SystemExit as end:  # status 0 after help, else something is wrong
        if end.code:
            _check_numbers(words, stderr.getvalue())
            sys.stderr.write(stderr.getvalue())
        raise
    if unknown_arguments:
        raise _unknown_arguments(unknown_arguments, words, _flags_of(words[0], verbs))
    return command


def _parse(words: Sequence[str], verbs: Mapping[str, Verb]) -> tuple[Command, list[str]]:
    """The command, and the words that the parser does not know."""
    choices = tuple(_subcommand(name, verb) for name, verb in verbs.items())
    form: Any = Union[choices]  # noqa: UP007  no other syntax makes a union of a tuple
    parsed, unknown_arguments = tyro.cli(
        form,
        prog=PROGRAM,
        description=ABOUT,
        args=words,
        config=(FlagCreatePairsOff,),
        return_unknown_args=True,
    )
    verb_of = {_options_of(verb): verb for verb in verbs.values()}
    verb_of_options = verb_of.get(type(parsed))
    command: Command = parsed if verb_of_options is None else partial(verb_of_options, parsed)
    return command, unknown_arguments


def _options_of(verb: Verb) -> type | None:
    """The dataclass that a verb takes; None where its parameters are the flags."""
    annotations = [parameter.annotation for parameter in signature(verb).parameters.values()]
    if len(annotations) != 1:
        return None
    (options,) = annotations
    return options if isinstance(options, type) and is_dataclass(options) else None


def _subcommand(name: str, verb: Verb) -> Any:
    """A verb as the parser takes it."""
    options = _options_of(verb)
    if options is None:
        return Annotated[Any, subcommand(name, constructor=_deferred(verb))]
    return Annotated[Any, subcommand(name, constructor=options, description=getdoc(verb))]


def _deferred(verb: Verb) -> Callable[..., Command]:
    """A function with the signature of ``verb`` that returns the call in place of making it."""

    @wraps(verb)
    def defer(*values: Any, **named: Any) -> Command:
        return partial(verb, *values, **named)

    return defer


def _flags_of(verb: str, verbs: Mapping[str, Verb]) -> list[str]:
    """The options of a verb, as its help names them."""
    stdout = StringIO()
    try:
        with redirect_stdout(stdout):
            _parse([verb, "--help"], verbs)
    except SystemExit:  # which is how help ends
        pass
    shown = _without_decoration(stdout.getvalue())
    return list(dict.fromkeys(re.findall(r"^\W*(--[a-z][a-z-]*)", shown, re.M)))


def _without_decoration(text: str) -> str:
    """Text of the parser without colours and frame."""
    return re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", text)


def _unknown_verb(words: Sequence[str], verbs: Mapping[str, Verb]) -> SettingsError:
    fix = f"the verbs are {', '.join(verbs)}; `{PROGRAM} VERB --help` explains each"
    if not words:
        return SettingsError("No verb is given.", fix=fix)
    close = get_close_matches(words[0].lower(), verbs, 1)
    ending = f": did you mean {close[0]!r}?" if close else "."
    return SettingsError(f"There is no verb {words[0]!r}{ending}", fix=fix)


def _check_numbers(words: Sequence[str], stderr: str) -> None:
    """Raise a SettingsError where the parser met a word in place of a flag's number."""
    text = " ".join(_without_decoration(stderr).split())
    named = re.search(r"Error parsing (?:-\w/)?(--[a-z-]+)", text)
    expected = next((kind for sign, kind in _EXPECTED_NUMBER.items() if sign in text), None)
    if named is None or expected is None:
        return
    flag = named[1]
    values = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    values += [after for word, after in pairwise(words) if word == flag]
    raise SettingsError(
        f"{' '.join([flag, *values[-1:]])}: expected {expected}.",
        fix=f"`{PROGRAM} {words[0]} --help` explains it",
    )


def _unknown_arguments(
    unknown: Sequence[str], words: Sequence[str], flags: Sequence[str]
) -> SettingsError:
    """The error that names each unknown word, and how it may have been meant."""
    verb = f"{PROGRAM} {words[0]}"
    fixes: dict[str, None] = {}  # each once, in the order of the words
    problems: list[str] = []
    expects_value = False  # the word before is an unknown option
    for word in unknown:
        if word.startswith("-") or not expects_value:
            problems.append(f"{word!r} is not an option of {verb}")
            suggestion = _suggestion(word, words, flags)
            if suggestion is not None:
                fixes[suggestion] = None
        expects_value = word.startswith("-") and "=" not in word
    see_help = f"`{verb} --help` names its options"
    fix = f"{'; '.join(fixes)} ({see_help})" if fixes else see_help
    if len(problems) == 1:
        return SettingsError(f"{problems[0]}.", fix=fix)
    return SettingsError(f"Unknown arguments of {verb}:", problems=problems, fix=fix)


def _suggestion(word: str, words: Sequence[str], flags: Sequence[str]) -> str | None:
    """What somebody who typed ``word`` probably meant; None without a good guess."""
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
    typed_flags = {typed.partition("=")[0] for typed in words}
    data_is_named = not typed_flags.isdisjoint({"--data", "--partition"})
    if word.endswith(".json") and "--partition" in flags and not data_is_named:
        return f"a partition is named with --partition {word}"
    if "--data" in flags and not data_is_named:
        return f"images are named with --data {_as_source(word)}"
    return None


def _as_source(word: str) -> str:
    """A word as the data source that it probably means."""
    if ":" in word or word in SOURCES:
        return word
    path = Path(word)
    if path.suffix == ".npz":
        return f"npz:{word}"
    return f"folder:{path.parent if path.suffix.lower() in SUFFIXES else word}"
