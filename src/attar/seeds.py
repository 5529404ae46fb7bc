"""One seed for a run, and from it an independent stream for each purpose."""

import hashlib

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, unrelated to the seeds of all other purposes.

    Args:
        seed: of the run.
        purpose: words and numbers, for example ``"student", 3``.

    Returns:
        A number of 63 bits, the same on every machine and in every version.
    """
    text = "/".join([str(seed), *(str(word) for word in purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rng(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator for one purpose, seeded with ``derive(seed, *purpose)``.

    It draws on the CPU, so that every device sees the same numbers.
    """
    return torch.Generator().manual_seed(derive(seed, *purpose))


def __getattr__(name: str) -> object:
    if name == "generator":
        raise AttributeError("attar.seeds.generator is called attar.seeds.rng since 0.2")
    raise AttributeError(f"module 'attar.seeds' has no attribute {name!r}")
