"""The words of a command line -> the call of a verb, or an error that says how to correct them.

Only the module of the verb that is named is imported. The parser (tyro) reports every word that it
does not know as unrecognized. Here it only parses, its messages are captured, and a verb starts
only when nothing is wrong. The commonest mistakes get a message of their own with a fix; all others
are printed as the parser words them.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import partial, wraps
from inspect import getdoc, signature
from io import StringIO
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, Union

import tyro
from tyro.conf import FlagCreatePairsOff, subcommand

from attar.cli.config import REPEATABLE, Flag, join_config, split_common, write_command
from attar.cli.output import console
from attar.cli.verbs import Verb
from attar.errors import SettingsError
from attar.version import __version__

PROGRAM = "attar"
ABOUT = "One-shot federated learning: many uploads, one model, no data."
COMMON_HELP = (
    "Like every verb it takes --quiet (no progress) and --config FILE.toml (the flags from a file; "
    "those that are typed win)."
)
# part of Python's message about a wrong number -> what was expected
_EXPECTED_NUMBER = {"int()": "a whole number", "to float": "a number"}


@dataclass(frozen=True)
class Command:
    """A verb with its arguments, ready to run.

    Attributes:
        call: Runs it.
        verb: Its name; "" for what attar answers itself, such as --version.
        words: The verb's arguments, those of a configuration file included.
        flags: The flags that the verb has, where its output can be made again from a file.
        quiet: Whether no progress is to be shown.
    """

    call: Callable[[], None]
    verb: str = ""
    words: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    quiet: bool = False

    def keep(self) -> None:
        """Write the flags beside the output, where the run can be repeated from them."""
        if not self.flags or "--dry-run" in self.words:
            return
        assert isinstance(self.call, partial), "verbs that write a run take a dataclass of options"
        (options,) = self.call.args
        if options.out is not None:
            write_command(self.verb, self.words, self.flags, options.out)


def parse_command(words: Sequence[str], verbs: Mapping[str, Verb]) -> Command:
    """The call of a verb with its arguments, ready to run.

    Args:
        words: What was typed after ``attar``.
        verbs: All verbs by name.

    Raises:
        SettingsError: The verb or an argument is unknown, or a value does not fit.
        SystemExit: Help was printed, or the parser refused the words with a message of its own.
    """
    first = words[0] if words else ""
    if first in ("-h", "--help"):
        return Command(partial(_show_overview, verbs))
    if first == "--version":
        return Command(lambda: print(f"{PROGRAM} {__version__}"))
    if first.replace("_", "-") in ("--tyro-print-completion", "--tyro-write-completion"):
        return Command(partial(parse_all, words, verbs))
    if first not in verbs:
        raise _unknown_verb(words, verbs)
    function = verbs[first].load()
    typed, common = split_common(words[1:], PROGRAM, first)
    if common.config is not None:
        typed = join_config(common.config, typed, flags_of(first, function), first)
    call = _checked(first, function, typed)
    flags = flags_of(first, function) if first in REPEATABLE else ()
    return Command(call, first, tuple(typed), flags, common.quiet)


def _checked(verb: str, function: Callable[..., None], words: Sequence[str]) -> Callable[[], None]:
    """The call of a verb, or an error about its words."""
    stderr = StringIO()
    try:
        with redirect_stderr(stderr):
            call, unknown_arguments = _parse(verb, function, words)
    except SystemExit as end:  # status 0 after help, else something is wrong
        if end.code:
            told = " ".join(_without_decoration(stderr.getvalue()).split())
            _check_numbers(verb, words, told)
            _check_choices(verb, told)
            sys.stderr.write(stderr.getvalue())
        raise
    if unknown_arguments:
        flags = [flag.name for flag in flags_of(verb, function)]
        raise _unknown_arguments(unknown_arguments, [verb, *words], flags)
    return call


def _parse(
    verb: str, function: Callable[..., None], words: Sequence[str]
) -> tuple[Callable[[], None], list[str]]:
    """The call of a verb, and the words that the parser does not know."""
    options = _options_of(function)
    parsed, unknown_arguments = tyro.cli(
        options or _deferred(function),
        prog=f"{PROGRAM} {verb}",
        description=f"{getdoc(function)}\n\n{COMMON_HELP}",
        args=words,
        config=(FlagCreatePairsOff,),
        return_unknown_args=True,
    )
    return (parsed if options is None else partial(function, parsed)), unknown_arguments


def parse_all(words: Sequence[str], verbs: Mapping[str, Verb]) -> None:
    """Let the parser answer with all verbs in view: it then writes a completion script."""
    choices = tuple(_subcommand(name, verb.load()) for name, verb in verbs.items())
    form: Any = Union[choices]  # noqa: UP007  no other syntax makes a union of a tuple
    try:
        tyro.cli(form, prog=PROGRAM, description=ABOUT, args=words, config=(FlagCreatePairsOff,))
    except SystemExit as end:  # which is how it ends
        if end.code:
            raise


def _show_overview(verbs: Mapping[str, Verb]) -> None:
    """What ``attar --help`` prints."""
    console.say(f"usage: {PROGRAM} [-h] [--version] VERB [OPTIONS]\n\n{ABOUT}")
    for group, named in groupby(verbs.items(), key=lambda item: item[1].group):
        console.say()
        console.show_pairs(group, [(f"  {name}", verb.summary) for name, verb in named])
    console.say(
        f"\n`{PROGRAM} VERB --help` explains a verb. Each verb takes --quiet (no progress) and "
        "--config FILE.toml (its flags from a file)."
    )


def _options_of(function: Callable[..., None]) -> type | None:
    """The dataclass that a verb takes; None where its parameters are the flags."""
    annotations = [parameter.annotation for parameter in signature(function).parameters.values()]
    if len(annotations) != 1:
        return None
    (options,) = annotations
    return options if isinstance(options, type) and is_dataclass(options) else None


def _subcommand(name: str, function: Callable[..., None]) -> Any:
    """A verb as the parser takes it beside others."""
    options = _options_of(function)
    if options is None:
        return Annotated[Any, subcommand(name, constructor=_deferred(function))]
    return Annotated[Any, subcommand(name, constructor=options, description=getdoc(function))]


def _deferred(function: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """A function with the signature of ``function`` that returns the call in place of making it."""

    @wraps(function)
    def defer(*values: Any, **named: Any) -> Callable[[], None]:
        return partial(function, *values, **named)

    return defer


def flags_of(verb: str, function: Callable[..., None]) -> tuple[Flag, ...]:
    """The flags of a verb, as its help names them."""
    stdout = StringIO()
    try:
        with redirect_stdout(stdout), _narrow():  # wide help has two columns
            _parse(verb, function, ["--help"])
    except SystemExit:  # which is how help ends
        pass
    shown = _without_decoration(stdout.getvalue())
    entries = re.split(r"^ *(?=--?[a-z])", shown, flags=re.M)
    found = (
        re.match(r"(?:-\w(?: [A-Z\[{]\S*)?, )?(--[a-z][a-z-]*)(.*)", entry, re.S)
        for entry in entries
    )
    flags = {
        entry[1]: Flag(
            entry[1],
            repeats="(repeatable)" in " ".join(entry[2].split()),
            switch=not re.match(r" ?[A-Z{\[]", entry[2]),
        )
        for entry in found
        if entry is not None
    }
    return tuple(flags.values())


@contextmanager
def _narrow() -> Iterator[None]:
    """Let the parser write for a window of 80 letters while the context is open."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _without_decoration(text: str) -> str:
    """Text of the parser without colours and frame."""
    return re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", text)


def _unknown_verb(words: Sequence[str], verbs: Mapping[str, Verb]) -> SettingsError:
    fix = f"the verbs are {', '.join(verbs)}; `{PROGRAM} VERB --help` explains each"
    if not words:
        return SettingsError("No verb is given.", fix=fix)
    if words[0].startswith("-"):
        close = get_close_matches(words[0], ("--help", "--version"), 1)
        ending = f": did you mean {close[0]}?" if close else "."
        return SettingsError(f"{words[0]!r} is not an option of {PROGRAM}{ending}", fix=fix)
    close = get_close_matches(words[0].lower(), verbs, 1)
    ending = f": did you mean {close[0]!r}?" if close else "."
    return SettingsError(f"There is no verb {words[0]!r}{ending}", fix=fix)


def _check_numbers(verb: str, words: Sequence[str], told: str) -> None:
    """Raise a SettingsError where the parser met a word in place of a flag's number."""
    named = re.search(r"Error parsing (?:-\w/)?(--[a-z-]+)", told)
    expected = next((kind for sign, kind in _EXPECTED_NUMBER.items() if sign in told), None)
    if named is None or expected is None:
        return
    flag = named[1]
    values = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    values += [after for word, after in pairwise(words) if word == flag]
    raise SettingsError(
        f"{' '.join([flag, *values[-1:]])}: expected {expected}.",
        fix=f"`{PROGRAM} {verb} --help` explains it",
    )


def _check_choices(verb: str, told: str) -> None:
    """Raise a SettingsError where the parser met a word that is not one of a flag's choices."""
    refused = re.search(r"invalid choice '(.*?)' for argument '(.*?)'.*?\((.*?)\)", told)
    if refused is None:
        return
    word, flag, listed = refused.groups()
    choices = sorted(choice for choice in re.findall(r"'([^']*)'", listed) if choice != "None")
    close = get_close_matches(word.lower(), choices, 1)
    ending = f": did you mean {close[0]}?" if close else "."
    raise SettingsError(
        f"{flag}: invalid choice {word!r}{ending}",
        fix=f"choose one of {', '.join(choices)} (`{PROGRAM} {verb} --help` explains it)",
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
    from attar.data.catalogue import SOURCES
    from attar.data.images import SUFFIXES

    if ":" in word or word in SOURCES:
        return word
    path = Path(word)
    if path.suffix == ".npz":
        return f"npz:{word}"
    return f"folder:{path.parent if path.suffix.lower() in SUFFIXES else word}"
