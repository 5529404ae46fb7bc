"""Hashes of tensors."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def hash_tensors(tensors: Iterable[Tensor]) -> str:
    """The sha256 over the bytes of tensors, in hex.

    Args:
        tensors: on any device; their order counts, their shapes and names do not.
    """
    hasher = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        hasher.update(flat.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()
