"""One seed for a run, one independent stream for each purpose in it."""

import hashlib

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose: the same everywhere, unrelated to the seed of any other
    purpose.
    """
    text = "/".join([str(seed), *(str(word) for word in purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose (draws on the CPU are the same for every device)."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
