"""Memory that is free, and how many images at once fit into it."""

import re
from contextlib import suppress
from pathlib import Path

GROUP = Path("/sys/fs/cgroup")
SHARE = 4  # a batch may take one part in so many of what is free


def free_memory(device: str = "cpu") -> int | None:
    """Bytes that this process can still have; None where the system does not say.

    The least of what the machine has free, what the container may use, and what the shell's limit
    (``ulimit -v``) leaves.

    Args:
        device: "cpu", or a CUDA device, whose own memory counts.
    """
    if device.startswith("cuda"):
        import torch

        held: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free: int = torch.cuda.mem_get_info(device)[0]
        return free + held  # what torch holds and does not use is free, too
    bounds = [_of_machine(), _of_container(), _of_shell()]
    known = [bytes for bytes in bounds if bytes is not None]
    return max(0, min(known)) if known else None


def affordable_images(most: int, bytes_each: int, device: str = "cpu") -> int:
    """How many images to compute at once: ``most``, or fewer where these do not fit; at least one.

    Args:
        most: the usual number.
        bytes_each: what one image takes on its way.
        device: where it is computed.
    """
    free = free_memory(device)
    if free is None:
        return most
    return max(1, min(most, free // SHARE // max(1, bytes_each)))


def _of_machine() -> int | None:
    try:
        told = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable: +(\d+) kB", told, re.M)
    return None if found is None else 1024 * int(found[1])


def _of_container() -> int | None:
    """What the control group may still use: its pages of files can be given back."""
    with suppress(OSError, ValueError):
        limit = int((GROUP / "memory.max").read_text())  # "max": no limit
        used = int((GROUP / "memory.current").read_text())
        pages = re.findall(r"^(?:in)?active_file (\d+)$", (GROUP / "memory.stat").read_text(), re.M)
        return limit - used + sum(map(int, pages))
    return None


def _of_shell() -> int | None:
    try:
        import resource  # Windows has none
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return limit - pages * resource.getpagesize()
    return limit
