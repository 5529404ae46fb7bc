"""The verbs of the command line: parse, call, print. ``attar VERB --help`` explains each."""

import sys
from collections.abc import Sequence

from tyro.conf import FlagCreatePairsOff

from attar import console
from attar.cli import about, benching, clients, fusing, network, rounds  # noqa: F401  importing them is what adds their verbs
from attar.cli.app import app
from attar.errors import AttarError

ABOUT = "One-shot federated learning: many uploads, one model, no data."


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point: user errors end in one block and status 2, Ctrl-C in 130."""
    try:
        app.cli(prog="attar", description=ABOUT, args=arguments, config=(FlagCreatePairsOff,))
    except AttarError as error:
        console.show_error(error)
        return error.exit_status
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except OSError as error:  # no permission, disk full, a folder where a file should be
        console.show_error(AttarError(f"{error.filename or 'A file'}: {error.strerror or error}"))
        return 2
    except KeyboardInterrupt:
        console.show_error(AttarError("Stopped."))
        return 130
    return 0
