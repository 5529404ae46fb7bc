"""The random numbers of dropout, which come from torch's global state: seeded for training, and
put back afterwards.
"""

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
