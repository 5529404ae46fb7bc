"""One switch for the arithmetic of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """fp32: exact single precision. tf32: CUDA matrix products in TF32. bf16: autocast to bfloat16.

    Autocast keeps no copies of weights, which recorded steps would take for the weights themselves.
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
def searching() -> Iterator[None]:
    """cuDNN tries which of its kernels is fastest: for stacked nets its first guess can be three
    times as slow.

    A search takes up to half a second for each layer and shape, so it is for steps that are
    repeated, not for a last, smaller batch.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
