"""The arithmetic of a run: precision, and the search for fast kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """Compute in the given precision within a ``with`` block.

    Args:
        precision: "fp32": single precision. "tf32": CUDA matrix products in TF32. "bf16": autocast
            to bfloat16, without its cache of converted weights, which recorded steps would read in
            place of the weights.
        device: where the computation runs.
    """
    kind = torch.device(device).type
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, cudnn.allow_tf32
    products.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    try:
        with torch.autocast(
            kind, dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False
        ):
            yield
    finally:
        products.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def autotune_cudnn() -> Iterator[None]:
    """Let cuDNN try which of its kernels is fastest within a ``with`` block.

    Its first guess can be three times as slow for stacked nets. A search takes up to half a second
    for each layer and shape, so it is for steps that repeat, not for a last, smaller batch.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
