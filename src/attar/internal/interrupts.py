"""Ctrl-C while modules are imported."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_end_the_process() -> Iterator[None]:
    """Let Ctrl-C end the process at once, with one line, as long as this lasts.

    For imports, which take seconds: there is nothing to keep yet, and an exception that is raised
    in a callback of the import system would be printed and lost. Where whoever started the process
    has Ctrl-C ignored, or handles it otherwise, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Stopped.\n")
    os._exit(130)
