"""The verbs of the command line: parse, call, print. ``attar VERB --help`` explains each."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from tyro.extras import SubcommandApp

from attar.cli import about, benching, clients, fusing, network, rounds, sending  # noqa: F401  importing them is what adds their verbs
from attar.cli.app import app
from attar.cli.output import console
from attar.cli.words import understood
from attar.errors import AttarError, Stopped


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point: user errors end in one block and status 2, Ctrl-C in 130.

    Without ``arguments`` it is the process's own command line that is carried out, and the
    process that ends with it.
    """
    try:
        verbs = {
            name: verb.target
            for name, verb in app._subcommands.items()
            if not isinstance(verb.target, SubcommandApp)
        }
        understood(sys.argv[1:] if arguments is None else arguments, verbs)()
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except OSError as error:  # no permission, disk full, a folder where a file should be
        console.show_error(AttarError(f"{error.filename or 'A file'}: {error.strerror or error}"))
        return 2
    except KeyboardInterrupt as pressed:
        return _stopped(_said_already(pressed) or Stopped("Stopped."), at_the_end=arguments is None)
    except Stopped as stopped:
        return _stopped(stopped, at_the_end=arguments is None)
    except AttarError as error:
        console.show_error(error)
        return error.exit_status
    return 0


def _stopped(stopped: Stopped, *, at_the_end: bool) -> int:
    with _unheard(at_the_end=at_the_end):
        console.show_error(stopped)
    return stopped.exit_status


def _said_already(pressed: BaseException) -> Stopped | None:
    """How to go on, when Ctrl-C was pressed once more while that was on its way here."""
    before: BaseException | None = pressed
    while before is not None and not isinstance(before, Stopped):
        before = before.__context__
    return before


@contextmanager
def _unheard(*, at_the_end: bool) -> Iterator[None]:
    """The last word is not interrupted. What is left of a process that ends with it is, if it
    hangs, but leaves no traceback.
    """
    heard = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # not where whoever started us had it ignored
    if not heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end if at_the_end else signal.default_int_handler)
        if at_the_end:
            atexit.register(
                signal.signal, signal.SIGINT, signal.SIG_IGN
            )  # after this, Python's own handlers are taken away


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(Stopped.exit_status)
