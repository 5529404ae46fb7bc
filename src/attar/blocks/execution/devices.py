"""What the kinds of devices can do."""

import torch


def widest_float(device: torch.device | str) -> torch.dtype:
    """Return the most precise type of a device: Apple GPUs have no double precision.

    Sums that must be exact belong on the CPU where this is not float64.
    """
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def has_float64(device: torch.device | str) -> bool:
    """Whether a device computes in double precision."""
    return widest_float(device) == torch.float64


def synchronise(device: torch.device | str) -> None:
    """Wait until a GPU has done what it was given, so that a clock can be read."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()
