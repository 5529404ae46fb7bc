"""The command ``attar``, and ``python -m attar``."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """The entry point. Ctrl-C while torch is imported, which takes seconds, ends in one line: there is nothing to keep yet."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # whoever started us may have it ignored
    if ours:
        signal.signal(signal.SIGINT, _end)
    from attar.cli import main as run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _end(number: int, frame: FrameType | None) -> None:
    """End here and now: an exception that is raised in a callback of the import system would be printed and lost."""
    os.write(2, b"Stopped.\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
