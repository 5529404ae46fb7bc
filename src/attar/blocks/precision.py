"""One switch for the arithmetic of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """fp32: exact single precision. tf32: CUDA matrix products in TF32. bf16: autocast to bfloat16."""
    kind = torch.device(device).type
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, conv
