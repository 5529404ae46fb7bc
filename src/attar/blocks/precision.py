"""One switch for the arithmetic of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """fp32: exact single precision. tf32: CUDA matrix products in TF32. bf16: autocast to bfloat16.

    cuDNN tries which of its kernels is fastest: for stacked nets its first guess can be three times as slow. Autocast keeps no
    copies of weights, which recorded steps would take for the weights themselves.
    """
    kind = torch.device(device).type
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    products.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    cudnn.benchmark = True
    try:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            yield
    finally:
        products.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
