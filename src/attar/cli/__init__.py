"""The command line: ``attar VERB`` is the module ``VERB`` here; ``attar VERB --help`` explains it.

parse.py reads the words that were typed, app.py lists the verbs, arguments.py turns the values of
flags into data, and output/ prints.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from attar.cli.app import VERBS
from attar.cli.output import console
from attar.cli.parse import parse_command
from attar.errors import AttarError, Stopped


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words after ``attar``; None means the command line of this process, which
            ends with the command.

    Returns:
        The exit status: 0, 2 after a user's mistake, 130 after Ctrl-C, 141 when the reader of
        standard output has gone.
    """
    try:
        command = parse_command(sys.argv[1:] if arguments is None else arguments, VERBS)
        with console.quietly(command.quiet):
            try:
                command.call()
            except Stopped:
                command.keep()
                raise
        command.keep()
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except OSError as error:  # no permission, disk full, a folder where a file should be
        console.show_error(AttarError(f"{error.filename or 'A file'}: {error.strerror or error}"))
        return 2
    except KeyboardInterrupt as interrupt:
        stopped = _stopped_before(interrupt) or Stopped("Stopped.")
        return _show_stopped(stopped, process_ends=arguments is None)
    except Stopped as stopped:
        return _show_stopped(stopped, process_ends=arguments is None)
    except AttarError as error:
        console.show_error(error)
        return error.exit_status
    return 0


def _show_stopped(stopped: Stopped, *, process_ends: bool) -> int:
    with _without_interrupts(process_ends=process_ends):
        console.show_error(stopped)
    return stopped.exit_status


def _stopped_before(interrupt: BaseException) -> Stopped | None:
    """The ``Stopped`` that was on its way here when Ctrl-C was pressed once more."""
    error: BaseException | None = interrupt
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error


@contextmanager
def _without_interrupts(*, process_ends: bool) -> Iterator[None]:
    """Ignore Ctrl-C while the last message is printed.

    With ``process_ends`` it may still end a process that hangs afterwards, without a traceback.
    """
    # Whoever started this process may have it ignored: then it stays ignored.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not interruptible or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end if process_ends else signal.default_int_handler)
        if process_ends:
            # Python's own handlers are removed after these functions.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(Stopped.exit_status)
