"""Dropout draws from torch's global state; these lend it a stream of ours and put back what was
there.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_randomness(device: str) -> Iterator[None]:
    """Whatever is drawn inside leaves the global random state, of the CPU and of ``device``, as
    it was.
    """
    with torch.random.fork_rng(devices=[torch.device(device)] if device.startswith("cuda") else []):
        yield


def reseed(device: str, seed: int) -> None:
    """Seed the CPU's global state and that of ``device``, no other device's."""
    torch.default_generator.manual_seed(seed)
    if device.startswith("cuda"):
        with torch.cuda.device(torch.device(device)):
            torch.cuda.manual_seed(seed)
