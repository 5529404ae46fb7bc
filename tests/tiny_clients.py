"""Small clients, and recorded steps on a CPU, for the tests of local training."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from attar import seeds
from attar.blocks.execution.cuda_graphs import GraphRunner
from attar.nets.registry import Shape
from attar.training import ClientData


def random_client(name: str, size: int, shape: Shape, classes: tuple[str, ...]) -> ClientData:
    """Return a client with random images and labels, drawn by its name."""
    draws = seeds.rng(0, "data", name)
    pixels = torch.randint(0, 256, (size, *shape), generator=draws, dtype=torch.uint8)
    return ClientData(
        name=name,
        pixels=pixels,
        labels=torch.randint(0, len(classes), (size,), generator=draws),
        classes=classes,
    )


def record_operations() -> GraphRunner:
    """Return a runner that writes steps down as operations on addresses, as a CUDA graph does."""

    def record(work, inputs: Sequence[Tensor]):  # type: ignore[no-untyped-def]
        return make_fx(work)(*(torch.zeros_like(value) for value in inputs))

    return GraphRunner(record)


def count_recordings(replay: GraphRunner) -> int:
    """Return how many steps were recorded."""
    return sum(recording is not None for recording in replay._recordings.values())
