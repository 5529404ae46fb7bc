"""One process at a time trains a set of clients or runs a cell; others wait for it."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attar.errors import OutOfTime, Stopped

POLL_SECONDS = 0.5


@contextmanager
def hold(lock: Path, deadline: float | None = None) -> Iterator[bool]:
    """Hold a lock, once whoever holds it has let it go; that of a dead process is void.

    A folder may have come from another machine, where another process had the same number. So a
    lock also says when its process began and since when its machine runs.

    Args:
        lock: a file; missing folders are made.
        deadline: By ``time.time()``, how long to wait; None: for ever.

    Yields:
        Whether another process held it before.

    Raises:
        OutOfTime: The deadline came while another process held it.
        Stopped: Ctrl-C was pressed while waiting.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    waited = False
    while (owner := _take(lock)) is not None:
        waited = True
        if deadline is not None and time.time() > deadline:
            raise OutOfTime(
                f"Process {owner}, another bench in this folder, is at the same work.",
                fix=f"run the same command again when it has ended, or delete {lock}",
            )
        try:
            time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            raise Stopped("Stopped by Ctrl-C.", fix="run the same command again") from None
    try:
        yield waited
    finally:
        lock.unlink(missing_ok=True)


def _take(lock: Path) -> str | None:
    """Take a lock; the number of the process that holds it, if one does."""
    own = identify(os.getpid())
    draft = lock.with_name(f"{lock.name}.{os.getpid()}")
    draft.write_text(f"{own}\n")
    try:
        for _ in range(2):
            with suppress(FileExistsError):
                os.link(draft, lock)  # whole or not at all, and never over another
                return None
            held = _read(lock)
            owner = held.partition(" ")[0]
            if owner.isdecimal() and held != own and held == identify(int(owner)):
                return owner
            lock.unlink(missing_ok=True)
        return "?"  # another took it in between
    finally:
        draft.unlink(missing_ok=True)


def _read(lock: Path) -> str:
    try:
        return lock.read_text().strip()
    except FileNotFoundError:
        return ""


def identify(process: int) -> str | None:
    """A running process in words that no other process has; None where it does not run."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it runs, under another user
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        began = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # not on Linux
        return f"{process} {platform.node()}"
    return f"{process} {machine} {began}"
