"""The weights of nets of one kind: their size, and many of them as one stack."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attar.core import Part


def weight_bytes(part: Part) -> int:
    """What the net's weights and buffers take in memory."""
    skeleton = part.spec.skeleton(part.preprocess.input_shape, len(part.classes))
    return sum(value.numel() * value.element_size() for value in skeleton.state_dict().values())


def stack_states(parts: Sequence[Part]) -> dict[str, Tensor]:
    """Weights and buffers of nets of one kind, each (K, ...), in the types that the net uses.

    Buffers that a file does not hold follow from the architecture.
    """
    net = parts[0].spec.blank(parts[0].preprocess.input_shape, len(parts[0].classes))
    stacks = {}
    for name, default in [*net.named_parameters(), *net.named_buffers()]:
        values = [part.state.get(name, default) for part in parts]
        stacks[name] = torch.stack([value.detach().to("cpu", default.dtype) for value in values])
    return stacks
