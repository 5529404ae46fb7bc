"""Dropout's random numbers, of torch's global state: seeded for a run, then restored."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def isolate_randomness(device: str) -> Iterator[None]:
    """Restore the global random state of the CPU and of ``device`` when the block ends."""
    kind = torch.device(device).type
    if kind == "mps":
        with torch.random.fork_rng(devices=[device], device_type="mps"):
            yield
        return
    with torch.random.fork_rng(devices=[torch.device(device)] if kind == "cuda" else []):
        yield


def reseed(device: str, seed: int) -> None:
    """Seed the global random state of the CPU and of ``device``, and of no other device."""
    kind = torch.device(device).type
    torch.default_generator.manual_seed(seed)
    if kind == "cuda":
        with torch.cuda.device(torch.device(device)):
            torch.cuda.manual_seed(seed)
    elif kind == "mps":
        torch.mps.manual_seed(seed)
