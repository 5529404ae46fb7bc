"""Dropout's random numbers, of torch's global state: seeded for training, then restored."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def isolate_randomness(device: str) -> Iterator[None]:
    """Restore the global random state of the CPU and of ``device`` when the block ends."""
    with torch.random.fork_rng(devices=[torch.device(device)] if device.startswith("cuda") else []):
        yield


def reseed(device: str, seed: int) -> None:
    """Seed the global random state of the CPU and of ``device``, and of no other device."""
    torch.default_generator.manual_seed(seed)
    if device.startswith("cuda"):
        with torch.cuda.device(torch.device(device)):
            torch.cuda.manual_seed(seed)
