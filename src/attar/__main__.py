"""The command ``attar``, and ``python -m attar``."""

import os
import sys

from attar.internal.interrupts import interrupts_end_the_process

# Threads that share a step wait for each other by spinning. On a machine with other work that keeps
# cores from the very threads that
# are waited for, and the step takes many times as long (docs/speed.md); a short spin does not, and
# costs an idle machine little.
SPINS = ("GOMP_SPINCOUNT", "1000")
ASKED = (SPINS[0], "OMP_WAIT_POLICY")  # whoever set one of these knows better
# On an Apple GPU torch computes operators that it lacks there on the CPU, and says so.
FALLBACK = ("PYTORCH_ENABLE_MPS_FALLBACK", "1")


def main() -> int:
    """The entry point. Ctrl-C while something is imported ends in one line."""
    if not any(name in os.environ for name in ASKED):
        os.environ[SPINS[0]] = SPINS[1]  # read once, when torch is loaded
    if sys.platform == "darwin":
        os.environ.setdefault(*FALLBACK)  # the same
    with interrupts_end_the_process():
        from attar.cli import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
