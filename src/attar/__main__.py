"""The command ``attar``, and ``python -m attar``."""

import os
import signal
import sys
from types import FrameType

# Threads that share a step wait for each other by spinning. On a machine with other work that keeps
# cores from the very threads that
# are waited for, and the step takes many times as long (docs/speed.md); a short spin does not, and
# costs an idle machine little.
SPINS = ("GOMP_SPINCOUNT", "1000")
ASKED = (SPINS[0], "OMP_WAIT_POLICY")  # whoever set one of these knows better


def main() -> int:
    """The entry point. Ctrl-C while torch is imported, which takes seconds, ends in one line:
    there is nothing to keep yet.
    """
    if not any(name in os.environ for name in ASKED):
        os.environ[SPINS[0]] = SPINS[1]  # read once, when torch is loaded
    ours = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # whoever started us may have it ignored
    if ours:
        signal.signal(signal.SIGINT, _end)
    from attar.cli import main as run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _end(number: int, frame: FrameType | None) -> None:
    """End here and now: an exception that is raised in a callback of the import system would be
    printed and lost.
    """
    os.write(2, b"Stopped.\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
